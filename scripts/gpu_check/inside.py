"""What recording costs inside windows, in one warm process: windows in turn with spans without, by the program's own clock.

Two processes differ by more than this; two spans of one, side by side, do not.
"""
import array
import math
import os
import statistics

from . import child
from .kernels import Report

NAME = "inside windows"
FIRST, SPAN, TURNS = 200, 50, 60
# Steps at the ends of a span that are left out: a window opens and closes in them.
EDGE = 4
AIM = 0.98
SECONDS = 120
ENDS = 3  # loop.cu's own status
TITLE = (f"## {NAME.capitalize()}", "", f"{TURNS} windows of {SPAN} steps in turn with as many steps without, in one process: medians of the "
         "program's own steps. *Outside of inside*: the median of the windows' ratios, each to the spans before and behind it, and its "
         f"95 % interval; the aim is {AIM}.")


def loops(programs):
    """(name, program, words) of each loop."""
    static = programs["loop-static"]
    return [("graph of 20 kernels, 1 more, 1 wait", static, ("--decode",)),
            ("150 kernels, 1 wait", static, ("--waits", "1", "--launches", "150")),
            ("200 kernels, 14 waits", static, ("--waits", "14", "--launches", "200")),
            ("30 kernels, 14 waits", static, ("--waits", "14", "--launches", "30"))]


def windows(turns=TURNS):
    return [(first, first + SPAN - 1) for first in range(FIRST, FIRST + 2 * SPAN * turns, 2 * SPAN)]


def durations(began, turns=TURNS):
    """Medians of the steps inside each window, and of those between two, from when each step began: ([ns], [ns]), the second with
    one more: before the first window and behind each."""
    def median(first):
        at = range(first + EDGE, first + SPAN - EDGE)
        return statistics.median(began[n + 1] - began[n] for n in at)

    return [median(first) for first, _ in windows(turns)], [median(first) for first in range(FIRST - SPAN, FIRST + 2 * SPAN * turns, 2 * SPAN)]


def interval(ratios):
    """(median, least, most) of its 95 % interval, by the order of the values."""
    found, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
    middle = (len(found) - 1) / 2
    return statistics.median(found), found[max(0, math.floor(middle - half))], found[min(len(found) - 1, math.ceil(middle + half))]


def judge(inside, outside):
    """(in words, whether the aim is met or None where the interval does not say)."""
    ratios = [(before + behind) / 2 / one for one, before, behind in zip(inside, outside, outside[1:])]
    ratio, least, most = interval(ratios)
    ok = True if least >= AIM else False if most < AIM else None
    return (f"{statistics.median(inside) / 1000:.1f} us inside, {statistics.median(outside) / 1000:.1f} us outside: {ratio:.4f} "
            f"({least:.4f}–{most:.4f})"), ok


def measured(bench, report, label, program, words):
    path = os.path.join(bench.folder, f"inside-{label}".replace(" ", "-").replace(",", ""))
    steps = FIRST + 2 * SPAN * TURNS + SPAN
    given = ",".join(f"{first}-{last}" for first, last in windows())
    ended = child.run([*program.command, "--steps", str(steps), "--times", path + ".times", *words],
                      bench.shimmed(given, "cudaGraphLaunch", TLLMPROF_TRACE=path + ".tllmprof"), SECONDS)
    if ended.status != ENDS:
        return report.check(label, ended.why(), False)
    began = array.array("q")
    with open(path + ".times", "rb") as file:
        began.frombytes(file.read())
    return report.check(label, *judge(*durations(began)))


def table(bench, cuda, log):
    """(lines of the page, how many were as wanted, how many were not)."""
    report = Report(NAME, log)
    for label, program, words in loops(bench.programs):
        if program.missing:
            report.check(label, f"skipped: {program.missing}", None)
        else:
            report.guarded(measured, bench, label, program, words)
    return report.page(*TITLE)
