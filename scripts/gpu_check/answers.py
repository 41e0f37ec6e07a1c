"""Checks the first report about a real program: `tllmprof run -- PROGRAM` without options (docs/first-report.md).

The window must have iterations. The ledger (the report's list of causes) must explain the host's and the GPU's
time. The GPU's busy time per step must match nsys's for the same load."""
import os
import shutil
from dataclasses import dataclass

from . import busy, child, ledger
from .kernels import Report
from .record_file import output_of

NAME = "answers"
ROWS = 5
SECONDS = 200
TITLE = ("## The first answer about engines", "", "Each once by `tllmprof run --` with no option. *Busy*: the GPU, by our kernels, and by nsys "
         "in a run of the same load.")


@dataclass(frozen=True)
class Loop:
    program: str
    count: int  # number of steps; for llama.cpp, the number of rounds
    rule: str = "auto"


LOOPS = (Loop("jax_jit", 8000), Loop("hf_generate", 2000), Loop("llama.cpp", 100, "sym:^llama_decode$"))


def wrap(bench):
    """Returns the words that are put in front of a program's command, so that `tllmprof run` starts the program."""
    return ["env", f"TLLMPROF_LIB={bench.shim}", bench.command, "run", "--"]


def keep(path, text):
    with open(path, "w") as file:
        file.write(text)


def iterations_of(process):
    return [one for window in process["windows"] for one in window["iterations"]]


def shown(rows):
    return ", ".join(f"{row['cause']} {row['share']:.1%}" for row in rows[:ROWS])


def check(bench, report, what, folder, by_nsys):
    """Judges the newest record in a folder. `by_nsys(window)` runs the same program under nsys and returns (busy
    time, duration) of the median step among iterations (first, last)."""
    answer = output_of(bench.command, "report", "--json", folder=folder)
    process = max(answer["processes"], key=lambda one: len(iterations_of(one)), default=None)
    iterations = iterations_of(process) if process else []
    report.check(f"{what}: window", f"{len(iterations)} iterations; {process['rule'] if process else 'no process'}", len(iterations) > 0)
    if not iterations:
        return
    found = [f"{one['rule']}: {one['evidence']}" for one in answer["findings"] if one["verdict"] == "yes"]
    report.check(f"{what}: findings", "; ".join(found) or "none", None)
    report.check(f"{what}: ledger", *ledger.judge(process))
    for side in ("host", "gpu"):
        report.check(f"{what}: {side}", shown((process["ledger"] or {}).get(side) or []), None)
    measured = [one for one in iterations if one["gpu_busy_ns"] is not None]
    if not measured:
        report.check(f"{what}: busy", "kernels were taken in no iteration", False)
        return
    # tllmprof's run and nsys's run are compared in the same iterations, because an iteration's work grows with the
    # number of tokens generated before.
    window = measured[0]["n"], measured[-1]["n"]
    ours = busy.median([(one["gpu_busy_ns"], one["dur_ns"]) for one in measured])
    busy.compare(report, f"{what}: busy", [ours], [by_nsys(window)])


def check_engine(bench, report, own, run):
    """Makes this check for a real engine (engines.py)."""
    what, folder = f"{own.name}, {run.label}", own.records(run)
    if run.is_server:
        made = own.made(run, NAME, folder=folder, WRAP=" ".join(wrap(bench)))
    else:
        made = own.made(run, NAME, wrap=wrap(bench), folder=folder)
    keep(os.path.join(folder, "printed.txt"), made.ended.out + made.log)
    if made.ended.status != 0:
        report.raw(what, made.ended)
    check(bench, report, what, folder, lambda window: busy.by_nsys(bench, what, lambda base: own.under_nsys(
        run, base, own.settings(window), "node").ended))


def check_loop(bench, report, loop):
    program = bench.programs[loop.program]
    if program.missing:
        return report.check(loop.program, program.missing, None)
    words, folder = program.words(loop.count), os.path.join(bench.folder, NAME, loop.program)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    ended = child.run([*wrap(bench), *words], child.variables(TRUTH_LIBRARY=os.path.join(bench.folder, "bin", "libtruth.so")), SECONDS, folder)
    keep(os.path.join(folder, "printed.txt"), ended.out + ended.err)
    if ended.status != 0:
        report.raw(loop.program, ended)
    return check(bench, report, loop.program, folder, lambda window: busy.by_nsys(
        bench, f"answer {loop.program}", lambda base: busy.under_nsys(bench, base, words, "{}-{}".format(*window), loop.rule)))


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    for loop in LOOPS:
        report.guarded(check_loop, bench, loop)
    return report.page(*TITLE)
