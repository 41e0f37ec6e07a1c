#!/usr/bin/env python3
"""One loop by three recorders: tllmprof, nsys and the PyTorch profiler record the same steps in runs that take turns
(programs/sources.py). `tllmprof report` of each has to show the same steps, kernels and busy time, and `tllmprof compare` of each two
no kernel that is new or gone. Without the rest of gpu-check, where time on a GPU is short:

    python3 scripts/gpu_check/sources.py --command target/release/tllmprof --lib target/release/libtllmprof.so --out DIR [KIND...]
"""
import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace

# Replaces the script's own folder in Python's search path by its parent, because some modules in the script's
# folder have names of standard modules.
if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from gpu_check import child, host, nsys  # noqa: E402
from gpu_check.busy import WITHIN  # noqa: E402
from gpu_check.kernels import Report, short  # noqa: E402

NAME = "sources"
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "sources.py")
RULE = "nvtx:^ProfilerStep#"
KINDS = ("eager", "graph", "cpu")
FIRST, COUNT = 300, 200
# For vLLM: the first recorded step, and the number of recorded steps.
SERVED_FIRST, SERVED = 20, 60
# ANOTHER_ROUND: number of seconds after which no further round is begun. RUN_SECONDS: time limit of
# a run.
ANOTHER_ROUND, RUN_SECONDS = 25, 150
ROUNDS = 2
TITLE = ("## One loop by three recorders", "", "The same steps, recorded in turn. *Busy*: the median step's, by `tllmprof report`, as the "
         "median of the rounds.")


@dataclass(frozen=True)
class Steps:
    """The steps of a program that are recorded. `words(way, out)` returns its command line, and `variables` are its
    environment variables."""

    first: int
    count: int
    words: object
    variables: dict

    @property
    def window(self):
        return f"{self.first}-{self.first + self.count - 1}"


def steps_of(kind):
    """Returns the Steps for a loop of programs/sources.py of this kind."""
    return Steps(FIRST, COUNT, lambda way, out: [sys.executable, PROGRAM, kind, way, out, str(FIRST), str(COUNT)], {})


@dataclass
class Seen:
    """Data from the report of a trace, for the process with the most steps."""

    steps: int
    kernels: Counter  # number of kernels in all steps by name
    busy: list  # the GPU's busy time in each step, in ns
    lacks: list
    notes: list


def seen(report):
    process = max(report["processes"], key=lambda one: (one["inside"] or {"iterations": 0})["iterations"], default=None)
    if not process or not process["inside"]:
        return Seen(0, Counter(), [], [], [])
    kernels = Counter()
    for kernel in process["kernels"]:
        kernels[short(kernel["name"])] += kernel["count"]
    busy = [one["gpu_busy_ns"] for window in process["windows"] for one in window["iterations"] if one["gpu_busy_ns"] is not None]
    return Seen(process["inside"]["iterations"], kernels, busy, (process["recorded_by"] or {"lacks": []})["lacks"], process["refused"])


def differences(kernels, others):
    """Returns the names of kernels whose numbers differ between two recorders: {name: (number by the first, number
    by the second)}."""
    return {name: (kernels[name], others[name]) for name in sorted(kernels | others) if kernels[name] != others[name]}


def new_or_gone(compared):
    """Returns the names of kernels that `tllmprof compare` finds on only one side."""
    return [one["name"] for one in compared["kernels"] if one["counts"] and 0 in one["counts"]]


class Recorders:
    """Runs a program under each of the three recorders. Files are written to `folder`."""

    def __init__(self, command, lib, nsys_path, folder):
        self.command, self.lib, self.nsys, self.folder = command, lib, nsys_path, folder
        os.makedirs(folder, exist_ok=True)

    def tllmprof(self, *words):
        """Runs the tllmprof command with nsys on PATH, as it is for a user who reads nsys reports."""
        path = ":".join([os.path.dirname(self.nsys), os.environ.get("PATH", "")])
        return child.run([self.command, *words], child.variables(PATH=path, TLLMPROF_NSYS=self.nsys), RUN_SECONDS, self.folder)

    def json(self, *words):
        ended = self.tllmprof(*words)
        if ended.status != 0:
            raise nsys.Failed(f"tllmprof {' '.join(words)}: {ended.why()}")
        return json.loads(ended.out)

    def run(self, words, variables):
        ended = child.run(words, child.variables(**variables), RUN_SECONDS, self.folder)
        if ended.status != 0:
            raise nsys.Failed(f"{' '.join(words)}: {ended.why()}")
        return ended

    def path(self, name):
        path = os.path.join(self.folder, name)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.exists(path):
            os.remove(path)
        return path

    def by_tllmprof(self, steps, name):
        trace = self.path(f"{name}.tllmprof")
        self.run([self.command, "run", "--no-summary", "--step", RULE, "--window", steps.window, f"--kernels={steps.count}", "--trace", trace, "--",
                  *steps.words("plain", "none")], dict(steps.variables, TLLMPROF_LIB=self.lib))
        return [trace]

    def by_nsys(self, steps, name, is_range=True):
        """Records steps with nsys. Returns the paths of [the SQLite export, the nsys report]."""
        report, export = self.path(f"{name}.nsys-rep"), self.path(f"{name}.sqlite")
        arguments = nsys.profile_arguments(report.removesuffix(".nsys-rep"), "stop" if is_range else None, "node")
        self.run([self.nsys, "profile", *arguments, *steps.words("range" if is_range else "plain", "none")], steps.variables)
        if not os.path.exists(report):
            raise nsys.Failed(f"nsys wrote no report: {sorted(os.listdir(self.folder))}")
        self.run([self.nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", report], {})
        return [export, report]

    def by_profiler(self, steps, name):
        """Records steps with the PyTorch profiler. Returns the paths of [the trace, the same trace compressed]."""
        trace, packed = self.path(f"{name}.json"), self.path(f"{name}.json.gz")
        self.run(steps.words("profile", trace), steps.variables)
        return [trace, packed]


def check_alike(report, what, found, wanted):
    """Compares the reports of all recorders. `found`: {recorder: [Seen of each round]}. Each must have `wanted`
    steps, the same kernels, and a similar busy time."""
    numbers = {name: [one.steps for one in rounds] for name, rounds in found.items()}
    report.check(f"{what}: steps", f"{wanted} wanted; {numbers}", all(number == wanted for rounds in numbers.values() for number in rounds))
    every = [(name, one) for name, rounds in found.items() for one in rounds]
    base, first = every[0]
    unlike = {name: differences(first.kernels, one.kernels) for name, one in every if one.kernels != first.kernels}
    a_step = f"{first.kernels.total() / max(1, first.steps):.2f} a step, {len(first.kernels)} names"
    report.check(f"{what}: kernels", f"{a_step}; {f'unlike {base}: {unlike}' if unlike else 'the same of all'}", bool(first.kernels) and not unlike)
    measured = {name: [len(one.busy) for one in rounds] for name, rounds in found.items()}
    if not all(count == wanted for rounds in measured.values() for count in rounds):
        report.check(f"{what}: busy", f"{wanted} steps wanted; measured in {measured}", False)
        return
    busy = {name: statistics.median(statistics.median(one.busy) for one in rounds) for name, rounds in found.items()}
    apart = max(busy.values()) / max(1, min(busy.values())) - 1
    report.check(f"{what}: busy", f"{', '.join(f'{name} {ns / 1000:.1f} us' for name, ns in busy.items())}: {apart:.2%} apart", apart <= WITHIN)


def check_same(recorders, report, what, one, other):
    """Checks that two files with the same trace, such as one and its compressed form, give the same report."""
    shown = [seen(recorders.json("report", "--json", path)) for path in (one, other)]
    report.check(f"{what}: {os.path.basename(other)} as {os.path.basename(one)}", f"{[one.steps for one in shown]} steps, "
                 f"{[one.kernels.total() for one in shown]} kernels", shown[0] == shown[1] and shown[0].steps > 0)


def check_compare(recorders, report, what, one, other):
    compared = recorders.json("compare", "--json", one, other)
    wrong, listed = new_or_gone(compared), len(compared["kernels"])
    report.check(f"{what}: compare {os.path.basename(one)} {os.path.basename(other)}",
                 f"{compared['text']}; {listed} kernels listed, {len(wrong)} of them new or gone {wrong[:3] or ''}", listed > 0 and not wrong)


def check_loop(recorders, report, what, steps, rounds=ROUNDS):
    """Runs the program under the three recorders in turn. Repeats this `rounds` times, unless the first round took
    too long."""
    began, found, files = time.monotonic(), {}, {}
    ways = {"tllmprof": recorders.by_tllmprof, "nsys": recorders.by_nsys, "PyTorch": recorders.by_profiler}
    for turn in range(rounds):
        if turn and time.monotonic() - began > ANOTHER_ROUND:
            break
        for name, record in ways.items():
            files[name] = record(steps, f"{what.replace(', ', '-')}-{turn}")
            found.setdefault(name, []).append(seen(recorders.json("report", "--json", files[name][0])))
    check_alike(report, what, found, steps.count)
    for name in ("nsys", "PyTorch"):
        report.guarded(check_same, recorders, what, *files[name])
    for one, other in itertools.combinations(files, 2):
        report.guarded(check_compare, recorders, what, files[one][0], files[other][0])
    report.check(f"{what}: time", f"{time.monotonic() - began:.0f} s, {len(found['nsys'])} rounds", None)


def check_cpu(recorders, report, what, steps):
    """Checks traces of a program without GPU work. `tllmprof report` must succeed and say that there is no GPU
    work."""
    for record in (lambda *given: recorders.by_nsys(*given, is_range=False), recorders.by_profiler):
        trace = record(steps, what)[0]
        one, text = seen(recorders.json("report", "--json", trace)), recorders.tllmprof("report", trace)
        said = [line.strip() for line in text.out.splitlines() if "GPU work" in line]
        report.check(f"{what}: {os.path.basename(trace)}", f"status {text.status}; {one.steps} steps; {said[:2]}",
                     text.status == 0 and one.steps > 0 and "gpu" in one.lacks and bool(said) and not one.kernels)


def check_all(report, recorders, kinds=KINDS):
    for kind in kinds:
        report.guarded(check_cpu if kind == "cpu" else check_loop, recorders, kind, steps_of(kind))


def check_engine(bench, report, own, run):
    """Makes the same check with vLLM (engines.py), only in one round, because vLLM takes long to start."""
    what = f"{own.name}, {run.label}"
    recorders = Recorders(bench.command, bench.shim, bench.nsys, own.records(run))
    program, kind, *model = run.words

    def words(way, out):
        return own.words(replace(run, words=(program, kind, way, out, str(SERVED_FIRST), str(SERVED), *model)))

    check_loop(recorders, report, what, Steps(SERVED_FIRST, SERVED, words, own.variables(**run.variables)), rounds=1)


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command or not host.has_module("torch"):
        report.check("what it needs", "skipped: target/release/tllmprof, or torch, is not there", None)
        return report.page(*TITLE)
    check_all(report, Recorders(bench.command, bench.shim, bench.nsys, os.path.join(bench.folder, NAME)))
    return report.page(*TITLE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument("--command", required=True, help="the tllmprof command")
    parser.add_argument("--lib", required=True, help="the library")
    parser.add_argument("--out", metavar="DIR", required=True, help="gets the records and traces")
    given = parser.parse_args()
    child.end_with_us()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"{', '.join(sorted(unknown))}: wanted: {', '.join(KINDS)}")
    found = host.find_nsys()
    if not found:
        parser.error("no nsys (TLLMPROF_NSYS, PATH, /opt/nvidia)")
    report = Report(NAME, lambda line: print(line, flush=True))
    recorders = Recorders(os.path.abspath(given.command), os.path.abspath(given.lib), found, os.path.abspath(given.out))
    check_all(report, recorders, given.kinds or KINDS)
    print("\n".join(report.page(*TITLE)[0]))
    return 1 if report.wrong or not report.right else 0


if __name__ == "__main__":
    sys.exit(main())
