#!/usr/bin/env python3
"""Planted changes of 2 % and pairs of equal runs: `tllmprof compare` of six runs a side has to find each change and name its cause, and
of three a side to see none between equal sides. The runs of all programs take turns (programs/pairs.cu). Without the rest of gpu-check,
here with 25 comparisons for each change (240 runs):

    python3 scripts/gpu_check/pairs.py --command target/release/tllmprof --lib target/release/libtllmprof.so --out DIR --comparisons 25 --budget 540
"""
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# Replaces the script's own folder in Python's search path by its parent, because some modules in the script's
# folder have names of standard modules.
if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from gpu_check import child, host  # noqa: E402
from gpu_check.kernels import Report  # noqa: E402

NAME = "pairs"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "pairs.cu")
STEPS, WINDOW, WITH_KERNELS = 620, "100-599", 60
CHANGES = ("host", "kernel", "launches", "layer")
# Number of runs on each side of a comparison. CHANGED_SIDE: if one side has a planted change. A_SIDE: if both sides are
# equal.
CHANGED_SIDE, A_SIDE = 6, 3
# EQUAL: number of runs without a change. They are compared in overlapping groups: each group begins
# APART runs after the one before it. This gives 20 comparisons.
EQUAL, APART = 44, 2
BUDGET, RUN_SECONDS = 180, 60
# Minimum share of the comparisons with a change that have to find it and to name its cause.
MIN_FOUND = 0.95
ALARMS = ("faster", "slower")
TITLE = ("## Planted changes, and equal runs", "", f"`compare` of {CHANGED_SIDE} runs a side with a change, of {A_SIDE} a side without; the runs took turns.")


def schedule(equal=EQUAL, changes=CHANGES, comparisons=1):
    """Returns the order of the runs: the runs of each change for this number of comparisons, spread evenly among
    `equal` runs without a change. `equal` is raised to the number of all other runs if it is smaller, so that a run
    without a change comes before each of them."""
    planted = [change for _ in range(CHANGED_SIDE + comparisons - 1) for change in changes]
    equal = max(equal, len(planted)) if comparisons > 1 else equal
    order, done = [], 0
    for number in range(equal):
        order.append("none")
        while done < len(planted) and (done + 1) * equal <= (number + 1) * len(planted):
            order.append(planted[done])
            done += 1
    return order


def equal_pairs(count):
    """Returns pairs of sides made of runs without a change, as two lists of run numbers. In each pair, sides A and B alternate
    within 2 * A_SIDE consecutive runs, and neighbouring pairs share runs."""
    starts = range(0, count - 2 * A_SIDE + 1, APART)
    return [([start + 2 * n for n in range(A_SIDE)], [start + 2 * n + 1 for n in range(A_SIDE)]) for start in starts]


def sides_of(order, change):
    """Returns the sides of each comparison with a change, as numbers in `order`: (for each run with the change, the
    run without a change before it; CHANGED_SIDE successive runs with the change). Each comparison begins one run with
    the change after the one before it."""
    changed = [number for number, one in enumerate(order) if one == change]
    before = [max((at for at in range(number) if order[at] == "none"), default=None) for number in changed]
    starts = range(len(changed) - CHANGED_SIDE + 1)
    return [(before[start:start + CHANGED_SIDE], changed[start:start + CHANGED_SIDE]) for start in starts]


def cause_of(compared):
    """Returns the kind of the first cause that `tllmprof compare` lists, and this cause in words."""
    causes = compared["why"]["causes"]
    if not causes:
        return "", "nothing"
    first = causes[0]
    kind = "launches" if first["what"] == "more often" else {"idle": "host"}.get(first["kind"], first["kind"])
    return kind, f"{first['what']}: {first['name']}: {first['ns'] / 1000:+.1f} us"


@dataclass(frozen=True)
class Wanted:
    """The cause that `tllmprof compare` has to name for a change: its kind and a part of its name."""

    cause: str
    name: str


WANTED = {"host": Wanted("host", ""), "kernel": Wanted("kernel", "attention"), "launches": Wanted("launches", "sample"), "layer": Wanted("layer", "layer 3")}


def build(folder):
    """Builds the program. Returns its path, or raises an error with the reason why it cannot be built."""
    cuda, built = host.find_cuda(), os.path.join(folder, "pairs")
    if not cuda:
        raise RuntimeError("no nvcc")
    done = subprocess.run([os.path.join(cuda, "bin", "nvcc"), "-O2", "-std=c++17", "-arch=native", "-o", built, SOURCE, "-ldl"],
                          capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"nvcc: {(done.stderr or done.stdout).strip()[-600:]}")
    return built


class Runner:
    """Records runs of the program and compares them with the tllmprof command. Records are kept in `folder`."""

    def __init__(self, command, lib, folder):
        self.command, self.lib, self.folder = command, lib, folder
        os.makedirs(folder, exist_ok=True)
        self.program = None

    def record(self, number, change):
        """Records a run with this change. Returns the path of its record."""
        self.program = self.program or build(self.folder)
        trace = os.path.join(self.folder, f"{number:02}-{change}.tllmprof")
        if os.path.exists(trace):
            os.remove(trace)
        ended = child.run([self.command, "run", "--no-summary", "--step", "cudaStreamSynchronize", "--window", WINDOW, "--layers", f"--kernels={WITH_KERNELS}",
                           "--trace", trace, "--", self.program, str(STEPS), change], child.variables(TLLMPROF_LIB=self.lib), RUN_SECONDS, self.folder)
        if ended.status != 0 or not os.path.exists(trace):
            raise RuntimeError(f"{change}: {ended.why()}")
        return trace

    def compare(self, base, other):
        ended = child.run([self.command, "compare", "--json", *base, "--", *other], child.variables(), RUN_SECONDS, self.folder)
        if ended.status != 0:
            raise RuntimeError(f"compare: {ended.why()}")
        return json.loads(ended.out)


def verdict(compared):
    """Returns the first word of a comparison's text, such as "faster", "slower" or "equal"."""
    return compared["text"].split()[0]


def check(runner, report, budget=BUDGET, equal=EQUAL, comparisons=1):
    """Records runs in the order of `schedule` for at most `budget` seconds, and then compares them."""
    began, records, order = time.monotonic(), [], schedule(equal, comparisons=comparisons)
    for number, change in enumerate(order):
        if time.monotonic() - began > budget:
            break
        records.append(runner.record(number, change))
    took, done = time.monotonic() - began, order[:len(records)]
    report.check("runs", f"{len(records)} of {len(order)} in {took:.0f} s, {took / max(1, len(records)):.2f} s each", len(records) == len(order) or None)
    same = [record for record, change in zip(records, done) if change == "none"]
    pairs = equal_pairs(len(same))
    found = compare_all(runner, same, pairs)
    alarms = [f"pair {number}: {one['text']}" for number, one in enumerate(found) if verdict(one) in ALARMS]
    share = f"each shares {2 * A_SIDE - APART} of its {2 * A_SIDE} runs with the next; {len(same) // (2 * A_SIDE)} of them share none"
    words = sorted({verdict(one) for one in found})
    report.check("equal runs", f"{len(alarms)} alarms in {len(pairs)} pairs of {len(same)} runs ({share}); verdicts: "
                 f"{ {word: sum(verdict(one) == word for one in found) for word in words} } {alarms or ''}", bool(pairs) and not alarms)
    for change in CHANGES:
        report.guarded(check_change, runner, change, records, done)


def compare_all(runner, records, pairs):
    """Returns the comparison of each pair of sides, several made at a time. A side is a list of numbers in
    `records`."""
    def compare(pair):
        return runner.compare(*([records[at] for at in side] for side in pair))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compare, pairs))


def check_change(runner, report, change, records, done):
    """Makes all comparisons with `change`. Each has to find the change and to name its cause."""
    sides = sides_of(done, change)
    if not sides:
        return report.check(change, f"{done.count(change)} of {CHANGED_SIDE} runs: no time was left", None)

    found = [judge(change, compared) for compared in compare_all(runner, records, sides)]
    words, right = found[0][1], sum(is_right for is_right, _ in found)
    if len(found) > 1:
        wrong = [f"comparison {number}: {text}" for number, (is_right, text) in enumerate(found) if not is_right]
        words = (f"found and named in {right} of {len(found)} comparisons of {done.count(change)} runs (each shares {CHANGED_SIDE - 1} of its "
                 f"{CHANGED_SIDE} changed runs with the next) {wrong[:5] or ''}")
    return report.check(change, words, right >= MIN_FOUND * len(found))


def judge(change, compared):
    """Returns (whether a comparison has found the change and named its cause, the comparison in words)."""
    cause, row = cause_of(compared)
    wanted = WANTED[change]
    is_right = verdict(compared) == "slower" and cause == wanted.cause and wanted.name in row
    return is_right, f"{compared['text']}; cause: {cause or 'none'}: {row}"


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check("the command", "skipped: target/release/tllmprof is not there", None)
        return report.page(*TITLE)
    folder = os.path.join(bench.folder, NAME)
    shutil.rmtree(folder, ignore_errors=True)
    report.guarded(check, Runner(bench.command, bench.shim, folder))
    return report.page(*TITLE)


def main():
    parser = child.options(__doc__, "the records", BUDGET, "no run is started")
    parser.add_argument("--equal", type=int, default=EQUAL, help="runs of the unchanged program (default: %(default)s)")
    parser.add_argument("--comparisons", type=int, default=1, help="comparisons for each change (default: %(default)s)")
    given = parser.parse_args()
    child.end_with_us()
    report = Report(NAME, lambda line: print(line, flush=True))
    report.guarded(check, Runner(given.command, given.lib, given.out), given.budget, given.equal, given.comparisons)
    print("\n".join(report.page(*TITLE)[0]))
    return 1 if report.wrong or not report.right else 0


if __name__ == "__main__":
    sys.exit(main())
