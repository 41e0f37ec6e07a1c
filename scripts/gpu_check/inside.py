"""Measures the cost of recording inside windows. In one warm process, windows alternate with spans of steps outside
windows. The program itself measures the steps.

Two equal processes differ by more than this cost. Two consecutive spans of one process do not."""
import array
import math
import os
import statistics

from . import child
from .kernels import Report

NAME = "inside windows"
FIRST, SPAN, TURNS = 200, 50, 60
# Number of steps that are left out at each end of a span of SPAN steps, because a window opens or closes there.
EDGE = 4
AIM = 0.98
ENGINE_TURNS = 40
SECONDS = 120
ENDS = 3  # exit status of loop.cu if it succeeds
# Number of steps per span for llama.cpp. This program generates text in rounds of 100 steps, and
# its steps get longer within a round. So a span is a whole round: one round in a window, the next
# outside.
ROUND = 100
TITLE = (f"## {NAME.capitalize()}", "", f"{TURNS} windows of {SPAN} steps (llama.cpp: {ROUND}) in turn with as many steps without, in one "
         "process: medians of the program's own steps. *Outside of inside*: the median of the windows' ratios, each to the spans before and behind it, and its "
         f"95 % interval; the aim is {AIM}.")


def loops(programs):
    """Returns the loops to measure, each as (name, program, its arguments, its rule, steps per span, its exit
    status)."""
    static, llama = programs["loop-static"], programs["llama.cpp"]
    steps = FIRST + 2 * SPAN * TURNS + SPAN

    def of_static(label, *words):
        return label, static, ["--steps", str(steps), *words, "--times"], "cudaGraphLaunch", SPAN, ENDS

    rounds = (FIRST + 2 * ROUND * TURNS + ROUND) // ROUND
    return [of_static("graph of 20 kernels, 1 more, 1 wait", "--decode"),
            of_static("150 kernels, 1 wait", "--waits", "1", "--launches", "150"),
            of_static("200 kernels, 14 waits", "--waits", "14", "--launches", "200"),
            of_static("30 kernels, 14 waits", "--waits", "14", "--launches", "30"),
            ("llama.cpp", llama, [str(rounds)], "sym:^llama_decode$", ROUND, 0)]


def windows(turns=TURNS, span=SPAN):
    return [(first, first + span - 1) for first in range(FIRST, FIRST + 2 * span * turns, 2 * span)]


def durations(began, turns=TURNS, span=SPAN, counts=lambda n: True):
    """Returns ([median duration in each window], [median duration in each span outside windows]) of the program's
    steps, in ns. `began`: the time when each step began. The second list has one span more, because the run begins
    and ends outside windows. `counts(n)` selects the steps that are used."""
    def median(first):
        at = range(first + EDGE, first + span - EDGE)
        return statistics.median(began[n + 1] - began[n] for n in at if counts(n))

    return ([median(first) for first, _ in windows(turns, span)],
            [median(first) for first in range(FIRST - span, FIRST + 2 * span * turns, 2 * span)])


def interval(ratios):
    """Returns (median, lowest, highest) of the 95 % interval of the median. The interval is given by two of the
    sorted values."""
    found, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
    middle = (len(found) - 1) / 2
    return statistics.median(found), found[max(0, math.floor(middle - half))], found[min(len(found) - 1, math.ceil(middle + half))]


def judge(inside, outside):
    """Judges the median durations inside and outside windows. Returns (description, verdict). The verdict is True
    if the whole interval of the ratio outside ÷ inside meets AIM, False if none of it does, and None otherwise."""
    ratios = [(before + behind) / 2 / one for one, before, behind in zip(inside, outside, outside[1:])]
    ratio, least, most = interval(ratios)
    ok = True if least >= AIM else False if most < AIM else None
    return (f"{statistics.median(inside) / 1000:.1f} us inside, {statistics.median(outside) / 1000:.1f} us outside: {ratio:.4f} "
            f"({least:.4f}–{most:.4f})"), ok


def began_of(path):
    """Reads the file in which loop.cu or llama_loop.cpp wrote the time when each step began. Returns the times in
    ns."""
    began = array.array("q")
    with open(path, "rb") as file:
        began.frombytes(file.read())
    return began


def measured(bench, report, label, program, words, rule, span, status):
    path = os.path.join(bench.folder, f"inside-{label}".replace(" ", "-").replace(",", ""))
    given = ",".join(f"{first}-{last}" for first, last in windows(span=span))
    ended = child.run([*program.command, *words, path + ".times"],
                      bench.shimmed(given, rule, TLLMPROF_TRACE=path + ".tllmprof"), SECONDS)
    if ended.status != status:
        return report.check(label, ended.why(), False)
    return report.check(label, *judge(*durations(began_of(path + ".times"), span=span)))


def check_engine(bench, report, own, run):
    """Makes the same check for an engine (engines.py). Uses the engine's own rows of its steps, and of these only
    the steps with the most frequent batch."""
    from .engines import counted, unlike_facts, wrong_windows

    what, turns = f"{own.name}, {run.label}", ENGINE_TURNS
    made, process, _ = own.recorded(run, "inside", *windows(turns))
    if process is None or made.ended.status != 0:
        report.raw(what, made.ended)
        return report.check(what, made.ended.why(), False)
    wrong = wrong_windows(process, windows(turns), counted(process, made.ended.err))
    _, _, apart = unlike_facts(process, made.rows)
    # The engine itself writes a row for each of its steps. Row n belongs to iteration n + apart.
    began = dict(enumerate((row[0] for row in made.rows), apart))
    batches = dict(enumerate((row[2:5] for row in made.rows), apart))
    commonest = statistics.mode(batches.values())
    if len(made.rows) <= windows(turns)[-1][1] + SPAN:
        wrong.append(f"{len(made.rows)} steps are too few")
    if wrong:
        return report.check(what, "; ".join(wrong[:4]), False)
    found = durations(began, turns, counts=lambda n: batches[n] == batches[n + 1] == commonest)
    return report.check(what, *judge(*found))


def table(bench, cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    for label, program, *words in loops(bench.programs):
        if program.missing:
            report.check(label, f"skipped: {program.missing}", None)
        else:
            report.guarded(measured, bench, label, program, *words)
    return report.page(*TITLE)
