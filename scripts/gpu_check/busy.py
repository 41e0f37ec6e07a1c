"""Compares the GPU's busy time per step by tllmprof (its ledger, from recorded kernels) with nsys's. The two tools run
in turn, because only one at a time can use CUPTI.

nsys's busy time is computed here from its records of kernels, copies and memsets."""
import glob
import os
import sqlite3
import statistics
from dataclasses import dataclass

from . import child, nsys
from .kernels import Report
from .record_file import process_of

NAME = "busy"
MANY = 60
# For vLLM: number of rounds, and number of iterations before the window. vLLM has fewer rounds than other programs,
# because it takes long to start.
ENGINE_ROUNDS, ENGINE_FIRST = 2, 300
WITHIN = 0.03
WORK = ("KERNEL", "MEMCPY", "MEMSET")
TITLE = ("## How busy the GPU is", "", "Medians of a step, by our kernels and by nsys, in runs that take turns; of the median step's time "
         "in brackets, which either tool makes longer.")


@dataclass(frozen=True)
class Loop:
    program: str
    rule: str
    rounds: int = 5
    first: int = 200
    steps: object = 400  # number of steps to request; None if the program always makes the same number


LOOPS = (Loop("torch_graph", "cudaGraphLaunch"), Loop("loop-shared", "cudaGraphLaunch"), Loop("hf_generate", "auto", 2),
         Loop("llama.cpp", "sym:^llama_decode$", first=120, steps=None))


def union(spans):
    """Merges overlapping spans of time (start, end). Returns the merged spans in order."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def busy_of(steps, work):
    """Returns (the GPU's busy time, the duration) of each step, in ns. `work`: ordered spans without overlap."""
    found, at = [], 0
    for start, end in steps:
        while at < len(work) and work[at][1] <= start:
            at += 1
        busy, place = 0, at
        while place < len(work) and work[place][0] < end:
            busy += min(end, work[place][1]) - max(start, work[place][0])
            place += 1
        found.append((busy, end - start))
    return found


def of_nsys(database):
    """Returns the same as busy_of for an nsys export, in which each range `iteration N` is a step."""
    trace = nsys.Trace(database)
    steps = [(one.start, one.end) for one in trace.ranges if one.text.startswith("iteration ") and one.end]
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        tables = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in WORK]
        work = [span for table in tables if table in there for span in db.execute(f"SELECT start, end FROM {table}")]
    db.close()
    return busy_of(steps, union(work))


def of_record(command, path):
    """Returns the same as busy_of for the steps of a record in which kernels were recorded."""
    steps = [one for window in process_of(command, path)["windows"] for one in window["iterations"]]
    return [(one["gpu_busy_ns"], one["dur_ns"]) for one in steps if one["gpu_busy_ns"] is not None]


def median(steps):
    """Returns the median busy time and the median duration. Leaves out the first and the last step, of which the
    tools record different parts."""
    inner = steps[1:-1]
    if not inner:
        raise RuntimeError(f"{len(steps)} steps are in it")
    return statistics.median(busy for busy, _ in inner), statistics.median(took for _, took in inner)


def by_nsys(bench, name, run):
    """Returns `median` of a run under nsys. `run(base)` must run the program under nsys and give the report the name
    `base`."""
    base = nsys.report_base(bench.folder, name)
    ended = run(base)
    traces = nsys.read(bench.nsys, base, ended)
    steps = [of_nsys(database) for database in sorted(glob.glob(f"{glob.escape(base)}*.sqlite"))]
    if not any(steps):
        held = [f"{len(trace.calls)} calls, {len(trace.ranges)} ranges" for trace in traces]
        raise RuntimeError(f"no step in nsys's captures: {held}; the library said: {ended.said_by_shim()}")
    return median(max(steps, key=len))


def under_nsys(bench, base, words, window, rule):
    """Runs a program under nsys, with the library, which opens the window for nsys."""
    return child.run([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", "node"), *words], bench.shimmed(window, rule))


def compare(report, what, ours, theirs):
    """Compares the results of several runs by tllmprof (`ours`) and by nsys (`theirs`), each a list of (busy time,
    duration)."""
    own, other = (statistics.median(busy for busy, _ in runs) for runs in (ours, theirs))
    shown = [f"{statistics.median(busy for busy, _ in runs) / 1000:.1f} us of {statistics.median(took for _, took in runs) / 1000:.1f} us"
             for runs in (ours, theirs)]
    report.check(what, f"{shown[0]} by our kernels, {shown[1]} by nsys: {own / max(1, other) - 1:+.2%}",
                 abs(own - other) <= WITHIN * other and other > 0)


def check(bench, report, loop):
    program = bench.programs[loop.program]
    if program.missing:
        return report.check(loop.program, program.missing, None)
    words, window = program.words(loop.steps), f"{loop.first}-{loop.first + MANY - 1}"
    ours, theirs = [], []
    for _ in range(loop.rounds):
        trace = os.path.join(bench.folder, f"busy-{loop.program}.tllmprof")
        if os.path.exists(trace):
            os.remove(trace)
        ended = child.run(words, bench.shimmed(window, loop.rule, TLLMPROF_TRACE=trace, TLLMPROF_KERNELS=MANY))
        if ended.status != 0:
            report.raw(loop.program, ended)
        ours.append(median(of_record(bench.command, trace)))
        theirs.append(by_nsys(bench, f"busy {loop.program}", lambda base: under_nsys(bench, base, words, window, loop.rule)))
    return compare(report, loop.program, ours, theirs)


def check_engine(bench, report, own, run):
    """Compares the busy times by tllmprof and by nsys for an engine (engines.py)."""
    what, ours, theirs = f"{own.name}, {run.label}", [], []
    window = (ENGINE_FIRST, ENGINE_FIRST + MANY - 1)
    for turn in range(ENGINE_ROUNDS):
        folder = own.records(run)
        made = own.made(run, f"kernels{turn}", own.settings(window, TLLMPROF_TRACE=f"{folder}/%p.tllmprof", TLLMPROF_KERNELS=MANY))
        if made.ended.status != 0:
            report.raw(what, made.ended)
        steps = [of_record(bench.command, path) for path in glob.glob(f"{folder}/*.tllmprof")]
        if not any(steps):
            raise RuntimeError(f"no kernels in a record; the library said: {made.ended.said_by_shim()}")
        ours.append(median(max(steps, key=len)))
        theirs.append(by_nsys(bench, what, lambda base: own.under_nsys(run, base, own.settings(window), "node").ended))
    return compare(report, what, ours, theirs)


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    for loop in LOOPS:
        try:
            check(bench, report, loop)
        except Exception as error:  # an error of one program must not lose the results of the others
            report.check(loop.program, f"{type(error).__name__}: {error}", False)
    return report.page(*TITLE)
