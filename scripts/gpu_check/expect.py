"""Computes the contents that a window must have: from the program's source, or from a whole run without the
shim."""
from dataclasses import dataclass, field
from math import inf

RESET = -1  # number of the mark at which the program's count of iterations starts again


@dataclass(frozen=True)
class Rule:
    name: str  # name of the counted call, like in TLLMPROF_STEP, without /N
    kind: str  # kind of the counted calls in a trace (trace.KINDS)
    opens: bool  # True: an iteration begins when a call is entered. False: an iteration begins when a call returns
    every: int = 1

    @property
    def text(self):
        return self.name if self.every == 1 else f"{self.name}/{self.every}"


GRAPH_LAUNCH = Rule("cudaGraphLaunch", "graph launch", True)
STREAM_WAIT = Rule("cudaStreamSynchronize", "stream wait", False)
READ = Rule("cudaMemcpyAsync", "read", True)
OWN_FUNCTION = Rule("sym:^Lane::step\\(", "graph launch", True)
OWN_RANGE = Rule("nvtx:^step [0-9]+$", "graph launch", True)
LLAMA_DECODE = Rule("sym:^llama_decode$", "graph launch", True)


@dataclass
class Expected:
    """The expected contents of a window. Fields with the value None are not compared."""

    first: int
    last: int
    marks: list
    calls: dict = field(default_factory=dict)  # number of calls in the window by kind
    graphs: int = None  # number of graphs that the GPU ran
    grids: list = None  # grid sizes of the kernels that ran outside graphs
    steps: list = None  # numbers N of the ranges `step N` that the program itself opens


def known(first, last, graphs=1, kernels=1, grids=False, waits_after=0):
    """Returns the expected contents of a window, for a program with known steps. Step i launches these numbers of
    graphs and kernels (kernels=None: not known, because a framework decides), makes the mark i, and waits once. grids:
    True if the grid size of a kernel identifies its step. waits_after: the number of waits after the last step, for a
    window that lasts until the program's end."""
    steps = range(first, last + 1)
    calls = {"graph launch": graphs * len(steps), "stream wait": len(steps) + waits_after}
    if kernels is not None:
        calls["kernel launch"] = kernels * len(steps)
    return Expected(first, last, list(steps), calls, graphs * len(steps), [i + 1 for i in steps] if grids else None)


def after_reset(trace):
    """Returns the calls and the marks after the last mark RESET, or all if there is none."""
    since = max((ns for ns, n in trace.marks if n == RESET), default=-inf)
    return ([call for call in trace.calls if call.start >= since],
            [(ns, n) for ns, n in trace.marks if ns > since])


def steady_rule(trace, candidates, first, last):
    """Returns the first candidate rule whose calls occur equally often in each step between marks `first` and
    `last`, or None."""
    calls, marks = after_reset(trace)
    at = {n: ns for ns, n in marks}
    for rule in candidates:
        counts = set()
        for n in range(first, last + 1):
            if n not in at or n + 1 not in at:
                return None
            counts.add(sum(call.kind == rule.kind and at[n] <= call.start < at[n + 1] for call in calls))
        if len(counts) == 1 and (every := counts.pop()) > 0:
            return Rule(rule.name, rule.kind, rule.opens, every)
    return None


def from_whole_run(trace, rule, first, last):
    """Returns the expected contents of iterations `first` to `last`, counted by `rule`, from the trace of a whole
    run. Returns None if the run has too few iterations."""
    calls, marks = after_reset(trace)
    counted = [call for call in calls if call.kind == rule.kind]

    def begin(iteration):
        at = iteration * rule.every
        if rule.opens:
            return counted[at].start if at < len(counted) else None
        if at == 0:
            return -inf
        return counted[at - 1].end if at <= len(counted) else None

    start, end = begin(first), begin(last + 1)
    if start is None or end is None:
        return None
    inside = [call for call in calls if start <= call.start < end]
    kinds = ("graph launch", "kernel launch", rule.kind)
    counts = {kind: sum(call.kind == kind for call in inside) for kind in kinds}
    return Expected(first, last, [n for ns, n in marks if start <= ns < end], counts, counts["graph launch"])


def not_in_a_row(trace, kind, count):
    """Checks that a trace has `count` consecutive steps, and that each step has one call of this kind before its mark
    (kind None: any calls). Returns the errors."""
    numbers = [n for _, n in trace.marks]
    if not numbers or numbers != list(range(numbers[0], numbers[0] + count)):
        return [f"marks {runs(numbers)}, not {count} in a row"]
    wrong, since = [], -inf
    for ns, n in trace.marks if kind else ():
        if (made := sum(call.kind == kind and since < call.start < ns for call in trace.calls)) != 1:
            wrong.append(f"{made} {plural(kind, made)} before mark {n}, not 1")
        since = ns
    return wrong[:3]


def runs(numbers):
    """Writes numbers in words, with ranges: [1, 2, 3, 7] -> "1–3, 7"."""
    parts, numbers = [], list(numbers)
    while numbers:
        end = 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        parts.append(str(numbers[0]) if end == 1 else f"{numbers[0]}–{numbers[end - 1]}")
        numbers = numbers[end:]
    return ", ".join(parts) or "none"


def described(expected):
    words = [f"iterations {runs(range(expected.first, expected.last + 1))}"]
    words += [f"{n} {plural(kind, n)}" for kind, n in expected.calls.items() if n]
    if expected.marks:
        words.append(f"marks {runs(expected.marks)}")
    return ", ".join(words)


def plural(kind, n):
    return kind if n == 1 else kind + ("es" if kind.endswith("ch") else "s")


def number(iteration):
    """Returns N of a range with the text `iteration N`."""
    return int(iteration.text.split()[1])


def found(trace, kinds):
    """Describes the contents of a trace in the same words as `described` describes the expected contents."""
    numbers = [number(r) for r in trace.ranges if r.text.startswith("iteration ")]
    words = [f"iterations {runs(numbers)}"]
    words += [f"{trace.count(kind)} {plural(kind, trace.count(kind))}" for kind in kinds]
    if trace.marks:
        words.append(f"marks {runs(n for _, n in trace.marks)}")
    if trace.graphs:
        words.append(f"{trace.graphs} graphs run")
    return ", ".join(words)


def differences(trace, expected, late_by_one=()):
    """Returns all differences between a captured window and its expected contents, in words.

    late_by_one: kinds of calls of which the profiler may lack the first one, because it starts during this call. This
    happens if a CUDA runtime that is linked into the program makes the driver call at which the shim starts the
    profiler."""
    wrong = []
    iterations = [r for r in trace.ranges if r.text.startswith("iteration ")]
    wanted = list(range(expected.first, expected.last + 1))
    if (got := [number(r) for r in iterations]) != wanted:
        wrong.append(f"iteration ranges {runs(got)}, not {runs(wanted)}")
    if any(r.end is None for r in iterations):
        wrong.append("an iteration range without an end")
    captures = [r for r in trace.ranges if r.text == "capture"]
    if len(captures) != 1 or captures[0].end is None:
        wrong.append(f"{len(captures)} capture ranges, not one with an end")
    if expected.marks is not None and [n for _, n in trace.marks] != expected.marks:
        wrong.append(f"marks {runs(n for _, n in trace.marks)}, not {runs(expected.marks)}")
    for kind, n in expected.calls.items():
        if (got := trace.count(kind)) != n and not (kind in late_by_one and got == n - 1):
            threads = trace.by_thread(kind)
            wrong.append(f"{got} {plural(kind, got)}, not {n}" + (f": {threads}" if threads else ""))
    if expected.graphs is not None and trace.graphs != expected.graphs:
        wrong.append(f"{trace.graphs} graphs run on the GPU, not {expected.graphs}")
    if expected.steps is not None and trace.steps != expected.steps:
        wrong.append(f"the program's own ranges of steps {runs(trace.steps)}, not {runs(expected.steps)}")
    if expected.grids is not None and trace.grids != expected.grids:
        wrong.append(f"kernels of steps {runs(g - 1 for g in trace.grids)}, not {runs(g - 1 for g in expected.grids)}")
    return wrong
