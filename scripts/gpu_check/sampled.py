"""Checks samples of kernels (`--kernels=20@10s`: the kernels of 20 steps, every 10 s). Measures the cost of a sample
with the program's own clock, and the slowdown of the steps after it."""
import os
import statistics

from . import child
from .inside import ENDS, began_of
from .kernels import Report
from .record_file import process_of

NAME = "sampled"
SAMPLE, PERIOD, SECONDS = 20, 10, 50
# The check compares the median step before a sample with the median step after it. SPAN is the number of steps on each
# side.
SPAN = 1000
# MOST: maximum share of its time that a program may lose if it is sampled once a minute. LEFT: maximum slowdown of
# the steps between two samples.
MOST, LEFT = 0.003, 0.001
# A step counts as slow if it takes longer than this number of median steps.
SLOW = 1.02
TITLE = ("## Sampled kernels", "", f"Kernels of {SAMPLE} steps, once in each {PERIOD} s of {SECONDS}. *Lost*: what slow steps take more than the median "
         f"step does, a sample, less what they take in as many seconds without the library, of a minute: at most {MOST:.1%}. *Between*: steps behind a sample against those "
         f"before it, at most {LEFT:.1%} slower.")
LOOPS = (("graph of 20 kernels, 1 more, 1 wait", ("--decode",), 2000), ("150 kernels, 1 wait", ("--waits", "1", "--launches", "150"), 2500))


def times(bench, program, words, steps, path, variables):
    ended = child.run([*program.command, "--steps", str(steps), *words, "--times", path], variables, 3 * SECONDS)
    if ended.status != ENDS:
        raise RuntimeError(ended.why())
    began = began_of(path)
    return [later - one for one, later in zip(began, began[1:])]


def lost(ns):
    """Returns the time by which slow steps exceed the median, summed over all steps, in ns."""
    median = statistics.median(ns)
    return sum(one - median for one in ns if one > SLOW * median)


def between(ns, slow_ns):
    """Returns for each sample except the first: median step after it ÷ median step before it. A sample is recognized
    by a step longer than `slow_ns`, in which CUPTI attaches. It ends long before SPAN steps have passed."""
    begins, last = [], -2 * SPAN
    for at, one in enumerate(ns):
        if one > slow_ns:
            if at - last > 2 * SPAN:
                begins.append(at)
            last = at
    median = statistics.median
    return [median(ns[at + SPAN:at + 2 * SPAN]) / median(ns[at - SPAN:at]) for at in begins[1:] if at + 2 * SPAN <= len(ns)]


def measured(bench, report, label, words, a_second):
    program, base = bench.programs["loop-static"], os.path.join(bench.folder, f"sampled-{len(label)}")
    if program.missing:
        return report.check(label, program.missing, None)
    steps = SECONDS * a_second
    plain = times(bench, program, words, steps, f"{base}-plain", bench.variables())
    sampled = times(bench, program, words, steps, f"{base}-sampled", bench.preloaded(
        TLLM_PROFILE_START_STOP="none", TLLMPROF_STEP="cudaGraphLaunch" if "--decode" in words else "cudaStreamSynchronize",
        TLLMPROF_TRACE=f"{base}.tllmprof", TLLMPROF_KERNELS=f"{SAMPLE}@{PERIOD}s"))
    process = process_of(bench.command, f"{base}.tllmprof")
    samples = ((process["kernel_window"] or {}).get("samples") or {"count": 0})["count"]
    taken = process["kernel_window"]["iterations"] if samples else 0
    per_second = lost(plain) / (sum(plain) / 1e9)
    a_sample = (lost(sampled) - per_second * sum(sampled) / 1e9) / max(1, samples)
    share, ratios = a_sample / 60e9, between(sampled, 10 * statistics.median(sampled))
    report.check(f"{label}: lost", f"{a_sample / 1e6:.1f} ms a sample, {share:.3%} of a minute; {samples} samples, {taken} steps", samples >= 3 and
                 taken == samples * SAMPLE and share <= MOST)
    return report.check(f"{label}: between", f"{statistics.median(ratios):.4f} ({min(ratios):.4f}–{max(ratios):.4f}) behind {len(ratios)} samples"
                        if ratios else "no steps before a sample", statistics.median(ratios) <= 1 + LEFT if ratios else None)


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check(NAME, "skipped: no tllmprof command built", None)
        return report.page(*TITLE)
    for loop in LOOPS:
        report.guarded(measured, bench, *loop)
    return report.page(*TITLE)
