"""Compares the events that the library records inside Python with events that the program itself wrote down."""
import glob
import gzip
import json
import os
import re
from collections import Counter, defaultdict

from . import child, nsys
from .checks import FIRST, LAST, STEPS, Check
from .expect import Expected, differences, found, runs

COLLECTION = re.compile(r"Python GC gen(\d)")


class InsidePython(Check):
    """Checks events inside Python under nsys: the iterations, and in each iteration the garbage collections and
    calls of torch modules."""

    def __init__(self, program):
        super().__init__(program, "inside Python", f"auto, {FIRST}-{LAST}",
                         f"iterations {FIRST}–{LAST}, each with its token's collections and module calls; GIL ranges")

    def measure(self, bench):
        log = os.path.join(bench.folder, "hf_inside.json")
        ended, traces = nsys.traces(
            bench.nsys, self.program.words(STEPS),
            bench.shimmed(f"{FIRST}-{LAST}", "auto", TLLMPROF_WARMUP="capture", TLLM_PROFILE_RECORD_GC=1, TLLMPROF_GIL=1,
                          TLLM_NVTX_DEBUG=1, TRUTH_LOG=log),
            bench.folder, self.name, "stop", bench.graph_trace)
        with open(log) as file:
            truth = json.load(file)
        wrong = [f"{len(traces)} captures, not 1"] if len(traces) != 1 else []
        wrong += differences(traces[0], Expected(FIRST, LAST, list(range(FIRST, LAST + 1))))
        unlike, counts = unlike_truth(traces[0], truth, FIRST, LAST)
        got = found(traces[0], []) + "; " + ", ".join(f"{n} {what}" for what, n in counts.items())
        wrong += unlike + [f"no {what}" for what, n in counts.items() if not n]
        if wrong:
            got += f" ({'; '.join(wrong[:6])}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


def unlike_truth(trace, truth, first, last):
    """Compares the trace of a window with the program's own data. Returns (differences in words, the number of
    events of each kind)."""
    marks = {n: at for at, n in trace.marks}
    counts = Counter({"collections": 0, "module ranges": 0, "GIL ranges": 0})
    collected, called = defaultdict(list), defaultdict(Counter)
    names = {name for of_token in truth["called"].values() for name in of_token}
    starts = sorted((at, n) for n, at in marks.items())

    def token_of(at):
        return max((n for start, n in starts if start <= at), default=None)

    for one in trace.ranges:
        token = token_of(one.start)
        if match := COLLECTION.fullmatch(one.text):
            counts["collections"] += 1
            collected[token].append(int(match.group(1)))
        elif one.text in names:
            counts["module ranges"] += 1
            called[token][one.text] += 1
        elif one.text in ("GIL wait", "GIL hold"):
            counts["GIL ranges"] += 1
    wrong = []
    for token in range(first, last + 1):
        if collected[token] != (wanted := truth["collected"].get(str(token), [])):
            wrong.append(f"token {token}: collections of generations {collected[token]}, not {wanted}")
        if called[token] != (wanted := Counter(truth["called"].get(str(token), {}))):
            unlike = sorted(name for name in names if called[token][name] != wanted[name])
            wrong.append(f"token {token}: {len(unlike)} modules called otherwise, {unlike[:2]} among them")
    return wrong, counts


class TorchTraces(Check):
    """Checks traces that the PyTorch profiler writes, started by the library for its windows, without nsys. A trace
    must have exactly the window's steps, with their kernels."""

    WINDOWS = [(10, 12), (20, 20)]

    def __init__(self, program):
        text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.WINDOWS)
        self.window = text
        super().__init__(program, "torch traces", f"auto, {text}",
                         "; ".join(f"steps {runs(range(a, b + 1))} with kernels" for a, b in self.WINDOWS))

    def skip(self, bench):
        return self.program.missing

    def measure(self, bench):
        base = os.path.join(bench.folder, "torch-trace", "trace.json")
        ended = child.run(self.program.words(40),
                          bench.shimmed(self.window, "auto", TLLMPROF_WARMUP="capture", TLLM_TORCH_PROFILE_TRACE=base,
                                        TRUTH_LOG=os.path.join(bench.folder, "hf_inside-torch.json")))
        files = sorted(glob.glob(os.path.join(os.path.dirname(base), "*")), key=lambda name: (len(name), name))
        wanted = [list(range(a, b + 1)) for a, b in self.WINDOWS]
        got, ok = [], len(files) == len(wanted)
        for index, name in enumerate(files):
            steps, kernels = read_torch_trace(name)
            got.append(f"{os.path.basename(name)}: steps {runs(steps)} with {kernels} kernels")
            ok = ok and index < len(wanted) and steps == wanted[index] and kernels > 0
        ok = ok and ended.status == 0
        text = "; ".join(got) or "no trace"
        return self.row(text if ok else f"{text} ({ended.why()}; the shim said: {ended.said_by_shim()})", ok)


def read_torch_trace(path):
    """Reads a trace of the PyTorch profiler. Returns (the numbers N of the ranges `step N` in order, the number of
    kernels that ran)."""
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with opened as file:
        events = json.load(file)["traceEvents"]
    steps = sorted({int(event["name"].split()[1]) for event in events
                    if event.get("cat") == "user_annotation" and re.fullmatch(r"step \d+", event.get("name", ""))})
    return steps, sum(event.get("cat") == "kernel" for event in events)


def checks(programs):
    inside = programs["hf_inside"]
    return [InsidePython(inside), TorchTraces(inside)]
