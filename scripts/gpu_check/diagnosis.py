"""Checks the report about programs that are slow for one reason each (examples/slow/causes.txt). The first finding must
name the reason, and no other finding may name a cause.

tests/diagnosis.rs uses the same table on the stand-in for CUDA.
"""
import glob
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass

from . import child
from .kernels import Report
from .programs import ROOT

NAME = "diagnosis"
FOLDER = os.path.join(ROOT, "examples", "slow")
TABLE = os.path.join(FOLDER, "causes.txt")
NONE = "-"
# Number of runs of each program. The report must find the cause in every run.
TIMES = 3
TITLE = ("## Planted causes", "", f"Each program {TIMES} times by `tllmprof run`: what is found first, and all causes that are found.")


@dataclass(frozen=True)
class Planted:
    program: tuple  # the program's file in FOLDER, and its arguments
    finds: str
    says: str
    step: str
    window: str
    variables: dict
    options: tuple

    @property
    def name(self):
        return " ".join(self.program)


def planted_in(text):
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        program, finds, says, step, window, variables, options, _work = (field.strip() for field in line.split("|"))
        found.append(Planted(tuple(program.split()), finds, says, step, window,
                             dict(word.split("=", 1) for word in variables.split()), tuple(options.split())))
    return found


def start(planted, folder):
    """Returns the command line of the program. Builds the program if it is in C."""
    file, *words = planted.program
    source = os.path.join(FOLDER, file)
    if file.endswith(".py"):
        return [sys.executable, source, *words]
    built = os.path.join(folder, file.removesuffix(".c"))
    if not os.path.exists(built):
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-O2", "-o", built, source, "-ldl", "-lpthread"], check=True,
                       capture_output=True, timeout=120)
    return [built, *words]


def judge(planted, findings):
    """Compares the report's findings with the planted cause. Returns the errors, or None."""
    yes = [one for one in findings if one["verdict"] == "yes" and one["kind"] in ("cause", "note")]
    rules = [one["rule"] for one in yes]
    if planted.finds == NONE:
        return f"found {rules}" if rules else None
    if rules[:1] != [planted.finds] or len(rules) != 1:
        return f"found {rules}, not {planted.finds} alone"
    if planted.says not in yes[0]["evidence"]:
        return f"`{yes[0]['evidence']}` lacks `{planted.says}`"
    if yes[0]["kind"] == "cause" and not yes[0]["loss"]:
        return "what would be gained is not known"
    return None


def once(bench, planted, words, folder):
    """Runs a program once with the library. Returns (errors, the evidence of the first finding, how the run
    ended)."""
    for old in glob.glob(f"{folder}/*.tllmprof"):
        os.remove(old)
    ended = child.run([bench.command, "run", "--window", planted.window, "--step", planted.step, "--trace",
                       f"{folder}/%p.tllmprof", *planted.options, "--", *words],
                      bench.variables(TLLMPROF_LIB=bench.shim, PYTHONDONTWRITEBYTECODE=1, **planted.variables))
    if ended.status != 0:
        return f"status {ended.status}", "", ended
    report = child.run([bench.command, "report", "--json", *sorted(glob.glob(f"{folder}/*.tllmprof"))], child.variables())
    if report.status != 0:
        return report.why(), "", ended
    findings = json.loads(report.out)["findings"]
    return judge(planted, findings), findings[0]["evidence"] if findings else "", ended


def check(bench, report, planted):
    folder = os.path.join(bench.folder, NAME)
    os.makedirs(folder, exist_ok=True)
    words = start(planted, folder)
    wrong, evidence = [], ""
    for _ in range(TIMES):
        found, evidence, ended = once(bench, planted, words, folder)
        if found:
            wrong.append(found)
            report.raw(planted.name, ended)
    report.check(planted.name, f"{planted.finds}: {'; '.join(wrong) or f'{TIMES} of {TIMES}: {evidence}'}", not wrong)


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check("the command", "target/release/tllmprof is not there", False)
        return report.page(*TITLE)
    with open(TABLE) as text:
        planted = planted_in(text.read())
    for one in planted:
        try:
            check(bench, report, one)
        except Exception as error:  # an error of one program must not lose the results of the others
            report.check(one.name, f"{type(error).__name__}: {error}", False)
    return report.page(*TITLE)
