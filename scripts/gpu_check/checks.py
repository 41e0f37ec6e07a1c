"""Defines the checks that the plan (plan.py) consists of. Each check gives a row of the page's table: what was
expected, what was captured, and if both agree."""
import csv
import io
import os
import re
from dataclasses import dataclass

from . import child, nsys
from .expect import Expected, described, differences, found, from_whole_run, not_in_a_row, runs, steady_rule

FIRST, LAST, STEPS = 100, 150, 160


@dataclass
class Row:
    program: str
    linkage: str
    rule: str
    wanted: str
    got: str
    ok: object  # True, False, or None if the check was skipped


@dataclass
class Bench:
    """Paths and settings that all checks share."""

    nsys: str
    ncu: str
    shim: str
    command: str  # path of the tllmprof command, or None
    folder: str
    programs: dict
    gpus: int
    graph_trace: str

    def variables(self, **more):
        return child.variables(TRUTH_LIBRARY=os.path.join(self.folder, "bin", "libtruth.so"),
                               # without this, JAX takes most of the GPU's memory, and other programs have too
                               # little
                               XLA_PYTHON_CLIENT_PREALLOCATE="false", TOKENIZERS_PARALLELISM="false",
                               HF_HUB_OFFLINE="1", CUBLAS_WORKSPACE_CONFIG=":4096:8", **more)

    def preloaded(self, **more):
        return self.variables(LD_PRELOAD=self.shim, **more)

    def shimmed(self, window, rule, **more):
        return self.preloaded(TLLM_PROFILE_START_STOP=window, TLLMPROF_STEP=rule, **more)


class Check:
    """The base class of all checks: `name` for --only, and `run` for the row."""

    def __init__(self, program, label, rule_text, wanted, apart=False):
        self.program, self.label, self.rule_text, self.wanted = program, label, rule_text, wanted
        self.apart = apart  # True if it must not run at the same time as other checks

    @property
    def name(self):
        return f"{self.program.name} {self.label}".strip()

    def skip(self, bench):
        return self.program.missing or (None if bench.nsys else "no nsys")

    def row(self, got, ok, wanted=None, rule=None):
        return Row(self.name, self.program.linkage, rule or self.rule_text, wanted or self.wanted, got, ok)

    def run(self, bench):
        why = self.skip(bench)
        if why:
            return self.row(f"skipped: {why}", None)
        try:
            return self.measure(bench)
        except nsys.Failed as failed:
            return self.row(str(failed), False)


class Windows(Check):
    """Checks windows under nsys whose expected contents are known from the program's source."""

    def __init__(self, program, label, rule, expected, window=None, words=(), variables=None, steps=STEPS, needs_gpus=1):
        self.window = window or f"{FIRST}-{LAST}"
        super().__init__(program, label, f"{rule.text}, {self.window}", "; ".join(described(e) for e in expected))
        self.rule, self.expected, self.words, self.steps = rule, expected, words, steps
        self.more, self.needs_gpus = variables or {}, needs_gpus

    def skip(self, bench):
        if bench.gpus < self.needs_gpus:
            return f"{bench.gpus} GPU"
        return super().skip(bench)

    def traces(self, bench):
        end = "stop" if len(self.expected) == 1 else f"repeat:{len(self.expected)}"
        return nsys.traces(bench.nsys, self.program.words(self.steps, *self.words),
                           bench.shimmed(self.window, self.rule.text, **self.more), bench.folder, self.name, end,
                           bench.graph_trace)

    def measure(self, bench):
        ended, traces = self.traces(bench)
        return self.judge(ended, traces)

    def judge(self, ended, traces):
        wrong = []
        if len(traces) != len(self.expected):
            wrong.append(f"{len(traces)} captures, not {len(self.expected)}")
        late = (self.rule.kind,) if self.program.inlined_runtime else ()
        for trace, expected in zip(traces, self.expected):
            wrong += differences(trace, expected, late)
        got = "; ".join(found(trace, expected.calls) for trace, expected in zip(traces, self.expected))
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


class ByCommand(Windows):
    """Checks the same windows as its base class, with the program started by `tllmprof run --nsys`."""

    def skip(self, bench):
        return super().skip(bench) or (None if bench.command else "no tllmprof command built")

    def traces(self, bench):
        base = nsys.report_base(bench.folder, self.name)
        arguments = " ".join(nsys.profile_arguments(base, None, bench.graph_trace))
        ended = child.run([bench.command, "run", "--window", self.window, "--step", self.rule.text,
                           f"--nsys={arguments}", "--", *self.program.words(self.steps, *self.words)],
                          bench.variables(TLLMPROF_NSYS=bench.nsys, TLLMPROF_LIB=bench.shim))
        return ended, nsys.read(bench.nsys, base, ended)


class Learnt(Check):
    """Checks windows that are counted by the rule `auto`. A window must have the right number of iterations, each
    with exactly one step of the program. The window may begin at any step, because `auto` decides where the count
    begins."""

    def __init__(self, program, steps=STEPS * 2):
        self.steps = steps
        self.expected = Expected(FIRST, LAST, None)
        super().__init__(program, "auto", f"auto, {FIRST}-{LAST}",
                         f"iterations {FIRST}–{LAST}, marks of {LAST + 1 - FIRST} steps in a row")

    def measure(self, bench):
        ended, traces = nsys.traces(bench.nsys, self.program.words(self.steps),
                                    bench.shimmed(f"{FIRST}-{LAST}", "auto"), bench.folder, self.name, "stop",
                                    bench.graph_trace)
        wrong = [f"{len(traces)} captures, not 1"] if len(traces) != 1 else []
        wrong += differences(traces[0], self.expected) + not_in_a_row(traces[0], None, LAST + 1 - FIRST)
        got = found(traces[0], []) + "; " + "".join(re.findall("auto: (.*iteration = .*)", ended.err))
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


class Closed(Check):
    """Checks a program whose library opens no window. nsys must write no report."""

    def __init__(self, program, label, words, variables):
        super().__init__(program, label, f"cudaGraphLaunch, {FIRST}-{LAST}", "nothing captured")
        self.words, self.more = words, variables

    def measure(self, bench):
        ended, traces = nsys.traces(bench.nsys, self.program.words(STEPS, *self.words),
                                    bench.shimmed(f"{FIRST}-{LAST}", "cudaGraphLaunch", **self.more), bench.folder,
                                    self.name, "stop", bench.graph_trace, expect=False)
        opened = " opened at " in ended.err
        finished = "loop: " in ended.out
        got = "nothing captured" if not traces and not opened else f"{len(traces)} captures"
        if not finished:
            got += f"; the program did not end well: {ended.why()}"
        return self.row(got, not traces and not opened and finished)


class AgainstWholeRun(Check):
    """Checks windows of a program whose expected contents are computed from a whole run under nsys without the
    shim."""

    def __init__(self, program, candidates, label="", words=(), steps=STEPS + 20, warmup=None):
        super().__init__(program, label, f"{FIRST}-{LAST}", "as in a whole run without the shim")
        self.candidates, self.words, self.steps, self.warmup = candidates, words, steps, warmup

    def measure(self, bench):
        words = self.program.words(self.steps, *self.words)
        _, (whole,) = nsys.traces(bench.nsys, words, bench.variables(), bench.folder, self.name + " whole", None,
                                  bench.graph_trace)
        # The rule is chosen by steps around the window only, because a program may make other calls in its first
        # steps.
        rule = (steady_rule(whole, self.candidates, FIRST - 10, LAST + 10) if whole.marks else self.candidates[0])
        if not rule:
            return self.row("no call that every step makes equally often: "
                            + found(whole, [c.kind for c in self.candidates]), False)
        expected = from_whole_run(whole, rule, FIRST, LAST)
        if not expected:
            return self.row(f"the whole run is too short for {rule.text}: " + found(whole, [rule.kind]), False)
        more = {"TLLMPROF_WARMUP": self.warmup} if self.warmup else {}
        ended, traces = nsys.traces(bench.nsys, words, bench.shimmed(f"{FIRST}-{LAST}", rule.text, **more), bench.folder,
                                    self.name, "stop", bench.graph_trace)
        wrong = [f"{len(traces)} captures, not 1"] if len(traces) != 1 else []
        wrong += differences(traces[0], expected, (rule.kind,) if self.program.inlined_runtime else ())
        got = found(traces[0], [kind for kind, n in expected.calls.items() if n])
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong, described(expected), f"{rule.text}, {FIRST}-{LAST}")


class StepsInARow(Check):
    """Checks a window that may begin at any step of the program. It must have consecutive steps, one for each of its
    iterations.

    This is for a program that makes the counted call an unknown number of times before its loop. JAX does so about 250
    times while XLA tries out its kernels."""

    def __init__(self, program, rule, first, last, steps):
        self.rule, self.steps, self.window = rule, steps, f"{first}-{last}"
        self.length = last + 1 - first
        self.expected = Expected(first, last, None, {rule.kind: self.length})
        super().__init__(program, "", f"{rule.text}, {self.window}",
                         described(self.expected) + f", marks of {self.length} steps in a row")

    def measure(self, bench):
        ended, traces = nsys.traces(bench.nsys, self.program.words(self.steps), bench.shimmed(self.window, self.rule.text),
                                    bench.folder, self.name, "stop", bench.graph_trace)
        wrong = [f"{len(traces)} captures, not 1"] if len(traces) != 1 else []
        wrong += differences(traces[0], self.expected) + not_in_a_row(traces[0], self.rule.kind, self.length)
        got = found(traces[0], [self.rule.kind])
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


class KernelsUnderNcu(Check):
    """Checks that ncu profiles exactly the kernels of the window. The step that launched a kernel is known from the
    kernel's grid size."""

    WINDOW = (10, 13)

    def __init__(self, program):
        first, last = self.WINDOW
        super().__init__(program, "under ncu", f"cudaStreamSynchronize, {first}-{last}",
                         f"kernels of steps {first}–{last}", apart=True)

    def skip(self, bench):
        return self.program.missing or (None if bench.ncu else "no ncu")

    def measure(self, bench):
        first, last = self.WINDOW
        log = os.path.join(bench.folder, re.sub(r"[^\w.-]+", "-", self.name) + ".csv")
        ended = child.run([bench.ncu, "--profile-from-start", "off", "--csv", "--page", "raw", "--metrics",
                           "launch__grid_size", "--clock-control", "none", "--log-file", log,
                           *self.program.words(20, "--graphs", "0")],
                          bench.shimmed(f"{first}-{last}", "cudaStreamSynchronize"))
        try:
            with open(log) as file:
                grids = grid_sizes(file.read())
        except OSError as error:
            return self.row(f"{error}; {ended.why()}", False)
        got = f"kernels of steps {runs(g - 1 for g in grids)}"
        ok = grids == [i + 1 for i in range(first, last + 1)]
        return self.row(got if ok else f"{got} (ncu: {ended.why()}; the shim said: {ended.said_by_shim()})", ok)


def grid_sizes(text):
    """Returns the launch__grid_size column of ncu's CSV, in the order of the launches."""
    start = text.find('"ID"')
    if start < 0:
        return []
    rows = csv.DictReader(io.StringIO(text[start:]))
    return [int(row["launch__grid_size"].replace(",", "")) for row in rows if (row["ID"] or "").isdigit()]


class Unharmed(Check):
    """Checks that the shim does not disturb a program without a profiler: standard output and exit status must be the
    same as without the shim, and the window must open and close."""

    def __init__(self, program, rule, words=(), steps=STEPS, warmup=None, label="without nsys"):
        super().__init__(program, label, f"{rule}, {FIRST}-{LAST}", "output and status as without the shim")
        self.rule, self.words, self.steps = rule, words, steps
        self.more = {"TLLMPROF_WARMUP": warmup} if warmup else {}

    def skip(self, bench):
        return self.program.missing

    def measure(self, bench):
        words = self.program.words(self.steps, *self.words)
        without = child.run(words, bench.variables())
        with_shim = child.run(words, bench.shimmed(f"{FIRST}-{LAST}", self.rule, **self.more))
        wrong = []
        if without.status != with_shim.status:
            wrong.append(f"status {with_shim.status}, not {without.status}")
        if timeless(without.out) != timeless(with_shim.out):
            wrong.append(f"it printed {with_shim.out.strip()[-200:]!r}, not {without.out.strip()[-200:]!r}")
        if not timeless(without.out).strip():
            wrong.append(f"it printed nothing either way: {without.why()}")
        lines = with_shim.said_by_shim()
        if not (" opened" in lines and " closed" in lines):
            wrong.append(f"no window opened and closed; the shim said: {lines}")
        got = f"status {with_shim.status}, {timeless(with_shim.out).strip()!r}"
        return self.row("; ".join(wrong) if wrong else got, not wrong)


def timeless(text):
    """Returns the output without lines that report a speed, which differs between runs."""
    return "\n".join(line for line in text.split("\n") if "steps/s" not in line)


class RankWindows(Windows):
    """Checks a program in which only one rank opens windows. It uses the second GPU if there is one."""

    def skip(self, bench):
        self.words = ("--device", str(min(1, bench.gpus - 1)))
        return super().skip(bench)
