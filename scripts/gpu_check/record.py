"""Compares the GPU times in tllmprof's records with nsys's, and measures the cost of recording.

Each program runs twice: under nsys, and without nsys, both with a record. The record of the run without nsys is
judged, because nsys changes the times that it measures. A step is a graph launch, an eager kernel and a wait for the
stream."""
import itertools
import json
import os
import sqlite3
import statistics
import sys
from dataclasses import dataclass

from . import child, nsys, throughput
from .checks import FIRST, LAST, STEPS, Check
from .record_file import events, process_of, spans

NAME = "record"
WINDOW = f"{FIRST}-{LAST}"
NEAR = 0.01  # maximum relative difference from nsys's time
# maximum cost of recording inside and outside the window, as a share of the steps per second
INSIDE, OUTSIDE = 0.02, 0.001
SHOWN = 10  # number of iterations that are printed if something is wrong
GPU_TABLES = ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY",
              "CUPTI_ACTIVITY_KIND_MEMSET")


@dataclass(frozen=True)
class Truth:
    """nsys's times of an iteration, in ns. extent: from the start of the first work on the GPU to the end of the
    last. busy: without the gaps in between."""

    extent: int
    busy: int
    after_launch: int  # ns from the begin of the graph launch to the first work on the GPU
    pieces: tuple  # (start, duration) of each kernel, copy or memset in ns, counted from the begin of the graph launch


def covered(pieces):
    """Returns the total time covered by spans (start, end). Time in which several spans overlap counts once."""
    total, until = 0, 0
    for start, end in sorted(pieces):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def truth(database):
    """Reads an nsys export. Returns {iteration: Truth}, by the ranges `iteration N` that the shim makes."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        db.text_factory = lambda text: text.decode(errors="replace")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        strings = dict(db.execute("SELECT id, value FROM StringIds"))
        ranges = []
        for start, end, text, text_id in db.execute("SELECT start, end, text, textId FROM NVTX_EVENTS"):
            text = text or strings.get(text_id) or ""
            if text.startswith("iteration ") and text.split()[1].isdigit():
                ranges.append((start, end, int(text.split()[1])))
        work = []
        for table in GPU_TABLES:
            if table in tables:
                work += db.execute(f"SELECT start, end FROM {table} WHERE end > start").fetchall()
    db.close()
    result = {}
    for start, end, number in ranges:
        inside = sorted(piece for piece in work if start <= piece[0] and (end is None or piece[0] < end))
        if inside:
            result[number] = Truth(max(until for _, until in inside) - inside[0][0], covered(inside), inside[0][0] - start,
                                   tuple((at - start, until - at) for at, until in inside))
    return result


@dataclass
class Recorded:
    """The data of a record that is compared with nsys's. gpu: {iteration: GPU time in ns} by `tllmprof report`. The
    other fields come from the report or from the events of the time line."""

    gpu: dict
    lost: int
    dropped: int
    gpus: list
    inside: dict
    spans: dict  # {iteration: [(duration in ns, True if the window's end cut it)]} of the GPU's work
    launch_us: float  # mean duration of graph launches on the host


def reported(command, path):
    process = process_of(command, path)
    gpu = {one["n"]: one["gpu_ns"] for window in process["windows"] for one in window["iterations"]}
    launches = [call["total_ns"] / call["count"] for call in process["calls"] if call["name"] == "cuGraphLaunch"]
    return Recorded(gpu, process["gpu_times_lost"], process["dropped"], [gpu["name"] for gpu in process["gpus"]], process["inside"] or {},
                    spans(events(command, path)), (launches or [0])[0] / 1000)


class GpuTime(Check):
    """Checks the GPU time per step by the record against nsys's.

    starts: the number of runs under nsys and of runs without it. One process can be a tenth faster than an equal one
    for its whole life, so the two runs whose times are most similar are compared."""

    def __init__(self, program, label, words, starts=1):
        super().__init__(program, f"{NAME} {label}", f"cudaGraphLaunch, {WINDOW}",
                         f"GPU time of each of {LAST + 1 - FIRST} steps; median within {NEAR:.0%} of nsys's, or over it by the launch", apart=True)
        self.words, self.starts = words, starts

    def skip(self, bench):
        return super().skip(bench) or (None if bench.command else "no tllmprof command built")

    def recorded(self, bench, ended, path):
        if not os.path.exists(path):
            raise nsys.Failed(f"no record: {ended.why()}; the shim said: {ended.said_by_shim()}")
        return reported(bench.command, path)

    def under_nsys(self, bench, start):
        """Runs the program under nsys with a record. Returns (nsys's times, the record)."""
        base = nsys.report_base(bench.folder, f"{self.name} {start}")
        trace = base + ".tllmprof"
        under = child.run([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", bench.graph_trace),
                           *self.program.words(STEPS, *self.words)],
                          bench.shimmed(WINDOW, "cudaGraphLaunch", TLLMPROF_TRACE=trace))
        nsys.read(bench.nsys, base, under)
        return truth(base + ".sqlite"), self.recorded(bench, under, trace)

    def alone(self, bench, start):
        """Runs the program with a record and without nsys. Returns (how the program ended, the record)."""
        trace = nsys.report_base(bench.folder, f"{self.name} alone {start}") + ".tllmprof"
        ended = child.run(self.program.words(STEPS, *self.words),
                          bench.shimmed(WINDOW, "cudaGraphLaunch", TLLMPROF_TRACE=trace))
        return ended, self.recorded(bench, ended, trace)

    def measure(self, bench):
        under = [self.under_nsys(bench, start) for start in range(self.starts)]
        alone = [self.alone(bench, start) for start in range(self.starts)]
        (by_nsys, beside), (ended, record) = min(itertools.product(under, alone), key=unlike_medians)
        wrong = unlike(by_nsys, record, range(FIRST, LAST + 1))
        got = compared(by_nsys, beside, record)
        if wrong:
            print_all(self.name, by_nsys, beside, record, ended)
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


class Steps(Check):
    """Checks the iterations in the record against the times when the program itself began its steps."""

    def __init__(self, program, rule, **variables):
        super().__init__(program, f"{NAME} steps, {rule}", f"{rule}, {WINDOW}",
                         f"iterations {FIRST} to {LAST}, one step of the program in each; as long in all within {NEAR:.0%}")
        self.rule, self.more = rule, variables

    def skip(self, bench):
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def measure(self, bench):
        base = nsys.report_base(bench.folder, self.name)
        path, times = base + ".tllmprof", base + ".json"
        ended = child.run(self.program.words(STEPS * 2), bench.shimmed(WINDOW, self.rule, TLLMPROF_TRACE=path,
                                                                       TRUTH_TIMES=times, **self.more))
        if not os.path.exists(path) or not os.path.exists(times):
            raise nsys.Failed(f"no record or no times: {ended.why()}; the shim said: {ended.said_by_shim()}")
        process = process_of(bench.command, path)
        recorded = [(one["n"], one["start_ns"], one["start_ns"] + one["dur_ns"])
                    for window in process["windows"] for one in window["iterations"]]
        with open(times) as file:
            began = json.load(file)
        wrong, got = unlike_steps(recorded, began, range(FIRST, LAST + 1))
        got += f"; GPU time {(process['inside'] or {}).get('gpu_share') or 0:.0%}; by {process['rule']}"
        if wrong:
            got += f" ({'; '.join(wrong[:4])}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


def unlike_steps(recorded, began, wanted):
    """Compares a record's iterations (n, start, end) with the times when the program's steps began. Returns (errors
    in words, description)."""
    if [n for n, _, _ in recorded] != list(wanted):
        return [f"other iterations: {[n for n, _, _ in recorded][:3]}… {len(recorded)}"], f"{len(recorded)} iterations"
    marks = [[step for step, at in enumerate(began) if start <= at < end] for _, start, end in recorded]
    wrong = [f"iteration {n} has steps {steps}" for (n, _, _), steps in zip(recorded, marks) if len(steps) != 1]
    if wrong:
        return wrong, f"{len(recorded)} iterations"
    steps = [step for step, in marks]
    if steps != list(range(steps[0], steps[0] + len(steps))):
        wrong.append(f"steps not in a row: {steps[:5]}…")
    ours = recorded[-1][1] - recorded[0][1]
    theirs = began[steps[-1]] - began[steps[0]]
    if abs(ours / theirs - 1) > NEAR:
        wrong.append("they took otherwise")
    return wrong, (f"{len(recorded)} iterations, steps {steps[0]} to {steps[-1]}, one in each; {ours / 1e6:.2f} ms from the "
                   f"first to the last, by the program {theirs / 1e6:.2f} ms")


def unlike_medians(pair):
    """Returns the difference in ns between the median GPU time by nsys (in the run under nsys) and by the record
    (in the run without nsys). `pair`: the two runs."""
    (by_nsys, _), (_, record) = pair
    extent, _, median = medians(by_nsys, record)
    return abs(median - extent)


def medians(by_nsys, record):
    steps = sorted(by_nsys)
    times = [ns for ns in record.gpu.values() if ns is not None]
    return (statistics.median(by_nsys[n].extent for n in steps) if steps else 0,
            statistics.median(by_nsys[n].busy for n in steps) if steps else 0,
            statistics.median(times) if times else 0)


def unlike(by_nsys, record, steps):
    """Compares a record with nsys's times of these steps. Returns the errors in words."""
    wrong = [f"nsys has no work in {n}" for n in [n for n in steps if n not in by_nsys][:3]]
    without = [n for n in steps if not record.gpu.get(n)]
    if without:
        wrong.append(f"no GPU time for {len(without)} steps, {without[:5]}")
    if record.lost:
        wrong.append(f"{record.lost} GPU times lost")
    if not record.gpus:
        wrong.append("the record names no GPU")
    extent, _, median = medians(by_nsys, record)
    if not is_near(median, extent, record.launch_us * 1000):
        wrong.append("the medians differ")
    return wrong


def is_near(median, extent, launch):
    """Returns True if a record's median GPU time agrees with nsys's, all in ns. If the stream is idle, the record's
    time begins before the graph launch, and nsys's at the first kernel, so the record's may be longer by the launch
    (docs/gpu-times.md)."""
    return extent > 0 and extent * (1 - NEAR) <= median <= (extent + launch) * (1 + NEAR)


def compared(by_nsys, beside, record):
    extent, busy, alone = medians(by_nsys, record)
    together = [beside.gpu[n] - by_nsys[n].extent for n in by_nsys if beside.gpu.get(n)]
    more = statistics.median(together) if together else 0
    after = statistics.median(one.after_launch for one in by_nsys.values()) if by_nsys else 0
    return (f"nsys {extent / 1000:.2f} us first to last, {busy / 1000:.2f} us without gaps; record {alone / 1000:.2f} us "
            f"({alone - extent:+.0f} ns, {(alone / extent - 1) if extent else 0:+.2%}), beside nsys {more:+.0f} ns a step; "
            f"the graph's launch takes {record.launch_us:.2f} us, work begins {after / 1000:.2f} us after its entry; "
            f"GPU share {record.inside.get('gpu_share') or 0:.1%}; {record.gpus[:1]}")


def print_all(name, by_nsys, beside, record, ended):
    """Prints on standard error everything that was measured, because the run may not be repeatable."""
    lines = [f"{name}: status {ended.status}, lost {record.lost}, dropped {record.dropped}, inside {record.inside}"]
    for n in range(FIRST, FIRST + SHOWN):
        one = by_nsys.get(n)
        lines.append(f"  {n}: nsys {one and (one.extent, one.busy, one.after_launch, one.pieces)}; beside it "
                     f"{beside.gpu.get(n)} {beside.spans.get(n)}; alone {record.gpu.get(n)} {record.spans.get(n)}")
    lines += ["  " + line for line in ended.err.strip().split("\n")[-6:]]
    print("\n".join(lines), file=sys.stderr, flush=True)


def checks(programs):
    static, torch = programs["loop-static"], programs["torch_graph"]
    return [GpuTime(static, "GPU time, decode", ("--decode",)), GpuTime(static, "GPU time, 300 kernels", ("--kernels", "300"), 4),
            GpuTime(programs["loop-per-thread"], "GPU time, decode", ("--decode",)),
            GpuTime(torch, "GPU time, decode", ("--decode",)),
            Steps(programs["hf_generate"], "auto", TLLMPROF_WARMUP="capture"),
            Steps(programs["serving"], "auto", TLLMPROF_WARMUP="capture"),
            Steps(programs["serving"], "cudaStreamSynchronize", TLLMPROF_WARMUP="capture")]


# ---- measuring the cost of recording

def loops(programs):
    static, torch = programs["loop-static"], programs["torch_graph"]
    return [
        throughput.Loop(static, "decode", "graph of 20 kernels of arithmetic, 1 kernel, wait", ("--decode",), 3),
        # Eight starts, because with this loop one process can be a tenth faster, during its whole life, than another
        # process that runs the same program.
        throughput.Loop(static, "300 kernels", "graph of 300 tiny kernels, 1 kernel, wait", ("--kernels", "300"), 8),
        throughput.Loop(torch, "decode", "graph of 17 kernels of 36 000 cycles and 3 tiny ones, 1 kernel, wait",
                        ("--decode",), 2),
    ]


def ways(folder):
    """Returns the ways to run a program: [(name, the shim's variables; None: without the shim)], like
    throughput.WAYS."""
    trace = os.path.join(folder, "cost-%p.tllmprof")

    def recorded(window):
        return {"TLLM_PROFILE_START_STOP": window, "TLLMPROF_STEP": "cudaGraphLaunch", "TLLMPROF_TRACE": trace}

    return (("without", None), ("without, again", None), ("record, outside its window", recorded(throughput.FAR)),
            ("record, inside its window", recorded("0-")))


def cost(chosen, bench, rounds, seconds):
    """Yields lines of Markdown with the cost of recording: a table like throughput's, for the ways of this
    module."""
    yield f"Aims: at most {INSIDE:.1%} fewer steps a second inside the window, {OUTSIDE:.2%} outside."
    yield ""
    yield from throughput.table(chosen, bench, rounds, seconds, ways(bench.folder))
