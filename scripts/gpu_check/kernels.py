"""Checks kernels that the library records with CUPTI (`TLLMPROF_KERNELS`). Compares counts and names with those of
the PyTorch profiler and nsys, and measures the cost."""
import glob
import itertools
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
from collections import Counter

from . import child, nsys
from .programs import HERE
from .record_file import Record

NAME = "kernels"
ROUNDS, BEFORE, WINDOW, INNER, AFTER = 3, 400, 60, 40, 400
KINDS = ("graph", "eager", "long")
OF_STEP = {"graph": 300, "eager": 300, "long": 60}
# Expected slowdown of a step while its kernels are recorded, as a share of the step. The page shows it together
# with the measured slowdown. No check uses it, because machines differ.
COST = {"graph": 0.68, "eager": 0.16, "long": 0.08}
AFTERWARDS = 0.005
# Maximum number of pairs of runs, one with recorded kernels and one without. The check reports a lasting cost of
# recording only if every pair shows it, so it stops at the first pair that shows none.
PAIRS = 3
GPU_TIME = 0.02
# Resolution of the GPU's clock in ns. Two tools may read the start of a kernel one tick apart, and also its end. So
# their durations of a kernel may differ by two ticks.
TICK = 32
THREADS, WINDOWS, GAP, STEPS = 8, 50, 12, 4
RULE = "cudaEventSynchronize"
OUT, ERR = 2500, 4000  # number of characters of a program's standard output and standard error that are shown


class Report:
    """The lines of one part of gpu-check's page, and the numbers of passed and failed checks."""

    def __init__(self, name, log):
        self.name, self.lines, self.after, self.wrong, self.right, self.log = name, [], [], 0, 0, log

    def check(self, what, got, ok):
        self.right += ok is True
        self.wrong += ok is False
        shown = {True: "yes", False: "**NO**", None: "for comparison"}[ok]
        self.lines.append(f"| {what} | {str(got).replace('|', '/')} | {shown} |")
        self.log(f"{self.name}: {what}: {got}: {shown}")

    def raw(self, what, ended):
        """Adds the output of a run to the page. GPU time is scarce, so a failed run may not be repeated to see its
        output."""
        self.after += ["", f"{what}: status {ended.status}", "```", ended.out[-OUT:], ended.err[-ERR:], "```"]

    def guarded(self, act, bench, *arguments):
        """Returns the result of `act(…)`. An error of `act` becomes a failed check, so that the results of other
        checks are not lost."""
        try:
            return act(bench, self, *arguments)
        except Exception as error:
            self.check(act.__name__, f"{type(error).__name__}: {error}", False)
            return None

    def page(self, *title):
        """Returns (lines of the page, number of passed checks, number of failed checks)."""
        return ["", *title, "", "| what | got | ok |", "|---|---|---|", *self.lines, *self.after], self.right, self.wrong


def is_same_time(ours, theirs, kernels):
    """Returns True if the GPU times of this number of kernels by two tools, in ns, agree within the tolerance."""
    return abs(ours - theirs) <= max(GPU_TIME * theirs, 2 * TICK * kernels)


def commonest(durations):
    """Describes durations of kernels for a table cell: the most frequent ones, and the share that is a whole number
    of clock ticks."""
    counts = Counter(durations)
    whole = sum(n for ns, n in counts.items() if ns % TICK == 0)
    return f"{dict(counts.most_common(4))}, {whole / max(1, len(durations)):.0%} whole ticks of {TICK} ns"


def demangled(names):
    """Returns {mangled name: demangled name}, if a tool for this is installed."""
    tool = shutil.which("c++filt") or shutil.which("cu++filt") or shutil.which("cu++filt", path="/usr/local/cuda/bin")
    names = sorted(names)
    if not tool:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, timeout=30)
    return dict(zip(names, done.stdout.split("\n")))


def short(name):
    """Returns only a function's name. Leaves out result, parameters and template arguments, because tools write
    them differently."""
    name = name.removeprefix("void ")
    depth, kept = 0, ""
    for c in name.replace("(anonymous namespace)", "").replace("<unnamed>", ""):
        if c == "(" and depth == 0:
            break
        depth += (c == "<") - (c == ">")
        if depth == 0 and c not in "<>":
            kept += c
    return kept.replace("::::", "::").strip()


def by_short(counts):
    names = demangled(counts)
    shorts = Counter()
    for name, count in counts.items():
        shorts[short(names[name])] += count
    return shorts


def said(ended):
    """Parses a program's output, in which lines may be JSON objects. Returns the objects."""
    found = []
    for line in ended.out.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def parts(given, kind, has):
    return [line for line in given if line.get("kind") == kind and has in line]


def part(given, kind, has):
    return next(iter(parts(given, kind, has)), {})


def environment(bench, name, windows, inner, **more):
    trace = os.path.join(bench.folder, f"{name}.tllmprof")
    if os.path.exists(trace):
        os.remove(trace)
    return trace, bench.shimmed(windows, RULE, TLLMPROF_TRACE=trace, TLLMPROF_KERNELS=inner, TLLMPROF_LOG="debug", **more)


def kind_windows(length, rounds=1):
    every = BEFORE + WINDOW + AFTER
    return ",".join(f"{i * every + BEFORE}-{i * every + BEFORE + length - 1}" for i in range(len(KINDS) * rounds))


def torch_words(*more, rounds=1):
    return [sys.executable, os.path.join(HERE, "kernels_torch.py"), *map(str, (rounds, BEFORE, WINDOW, INNER, AFTER)), *more]


def longer_after(given, kind):
    """Returns by how much longer steps take after the windows than before the first window, as a share: by the
    median step, and by the step at the tenth percentile."""
    rounds = parts(given, kind, "before")
    return (statistics.median(one["after"] for one in rounds) / rounds[0]["before"] - 1,
            min(one["quick"]["after"] for one in rounds) / rounds[0]["quick"]["before"] - 1)


def is_lasting(pairs):
    """Returns True if every pair of runs shows a lasting cost. Each pair is (run with recorded kernels, run without), and
    a run is a tuple: by how much longer steps take afterwards, by several measures. A cost is lasting if it exceeds the
    drift of the run without by AFTERWARDS."""
    return all(min(armed) > AFTERWARDS + max(map(abs, control)) for armed, control in pairs)


def drifts(run_pair):
    """Makes pairs of runs with `run_pair`, until a pair shows no lasting cost or there are PAIRS of them. Returns
    the pairs."""
    pairs = []
    while len(pairs) < PAIRS and is_lasting(pairs):
        pairs.append(run_pair())
    return pairs


def in_words(pairs):
    return "; ".join(f"{' '.join(f'{one:+.2%}' for one in armed)}, without kernels {' '.join(f'{one:+.2%}' for one in control)}"
                     for armed, control in pairs)


def torch_run(bench, name, inner, *more):
    trace, variables = environment(bench, name, kind_windows(WINDOW, ROUNDS), inner)
    return trace, child.run(torch_words(*more, rounds=ROUNDS), variables, 120)


def against_torch(bench, report):
    trace, ended = torch_run(bench, "kernels-torch", INNER, "profile")
    report.raw("torch, three kinds of steps, then the PyTorch profiler", ended)
    given = said(ended)
    # The outputs of each pair of runs: one with recorded kernels and one without. The first pair contains the run
    # above, whose recorded kernels are compared with those of the PyTorch profiler.
    printed = []

    def pair(number, kind):
        if number == len(printed):
            armed = given if number == 0 else said(torch_run(bench, "kernels-torch-again", INNER)[1])
            printed.append((armed, said(torch_run(bench, "kernels-torch-control", None)[1])))
        if any(len(parts(one, kind, "before")) != ROUNDS for one in printed[number]):
            raise nsys.Failed(f"{kind}: a run printed no times")
        return tuple(longer_after(one, kind) for one in printed[number])

    record = Record(bench.command, trace) if os.path.exists(trace) else None
    report.check("torch ends well, with a record", f"status {ended.status}", ended.status == 0 and record is not None)
    if record is None:
        return None
    report.check("nothing lost, nothing refused", f"{record.dropped} lost; {record.refused}",
                 record.dropped == 0 and not record.refused)
    for index, kind in enumerate(KINDS):
        ours = record.counts(index) if index < len(record.of) else Counter()
        times, profiler = parts(given, kind, "before"), part(given, kind, "profiler").get("profiler", {})
        wanted = OF_STEP[kind] * INNER
        report.check(f"{kind}: kernels of {INNER} steps", f"{sum(ours.values())} of {wanted}: {dict(ours)}",
                     sum(ours.values()) == wanted)
        theirs = Counter({name: n for name, n in profiler.get("names", {}).items() if not name.startswith("Mem")})
        report.check(f"{kind}: the PyTorch profiler afterwards, and its names",
                     f"{sum(theirs.values())}: {by_short(theirs)}; ours {by_short(ours)}",
                     by_short(theirs) == by_short(ours) and sum(theirs.values()) == wanted)
        ns = sum(ns for _, ns, _ in record.of[index]) if index < len(record.of) else 0
        if ns and profiler.get("ns"):
            report.check(f"{kind}: GPU time beside the profiler's", f"{ns / 1e6:.3f} ms, {profiler['ns'] / 1e6:.3f} ms",
                         is_same_time(ns, profiler["ns"], wanted))
        if len(times) == ROUNDS:
            base = statistics.median(one["before"] for one in times)
            costs = [one["inside"] / one["before"] - 1 for one in times]
            cost = statistics.median(costs)
            report.check(f"{kind}: a step while kernels are taken",
                         f"{base:.1f} us: {', '.join(f'{one:+.1%}' for one in costs)} in {ROUNDS} windows, median "
                         f"{cost:+.1%}, aim {COST[kind]:+.0%}; first {times[0]['first']}", None)
            number = itertools.count()
            pairs = drifts(lambda: pair(next(number), kind))
            report.check(f"{kind}: afterwards", f"median and quickest tenth {in_words(pairs)}; leaves {times[0]['leaves']}",
                         not is_lasting(pairs))
            if profiler:
                report.check(f"{kind}: a step under the PyTorch profiler", f"{profiler['us']:.1f} us: "
                             f"{profiler['us'] / base - 1:+.0%}", None)
    return record


def database_of(path):
    return path.removesuffix(".nsys-rep") + ".sqlite"


def nsys_kernels(bench, path):
    """Returns [(mangled name, duration in ns)] of the kernels in an nsys report, or a text with the reason why there
    are none."""
    database = database_of(path)
    exported = child.run([bench.nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", path],
                         child.variables())
    if exported.status != 0:
        raise nsys.Failed("nsys export: " + exported.why())
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        return db.execute("SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                          "JOIN StringIds s ON s.id = k.mangledName").fetchall()


# Programs in which this library and nsys both record a whole window: {name: (rule, first iteration, last iteration,
# number of steps)}.
WHOLE = {"loop-static": ("cudaGraphLaunch", 100, 150, 160), "jax_jit": ("cudaMemcpyAsync", 1000, 1050, 1200),
         "hf_generate": ("auto", 100, 150, 160)}


def whole_program(bench, report, name):
    program = bench.programs[name]
    if program.missing:
        return report.check(name, f"skipped: {program.missing}", None)
    rule, first, last, steps = WHOLE[name]
    trace = os.path.join(bench.folder, f"kernels-{name}.tllmprof")
    base = nsys.report_base(bench.folder, f"kernels-{name}")
    ways = {
        "ours": (program.words(steps), bench.shimmed(f"{first}-{last}", rule, TLLMPROF_TRACE=trace, TLLMPROF_LOG="debug",
                                                     TLLMPROF_KERNELS=last - first + 1)),
        "nsys": ([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", "node"), *program.words(steps)],
                 bench.shimmed(f"{first}-{last}", rule)),
    }
    # the programs run one after the other, because kernels take longer on a shared GPU
    for way, (command, variables) in ways.items():
        report.raw(f"{name}, {way}", child.run(command, variables, 150))
    record = Record(bench.command, trace)
    ours = Counter(kernel for _, _, kernel in record.kernels)
    rows = nsys_kernels(bench, sorted(glob.glob(glob.escape(base) + "*.nsys-rep"))[0])
    theirs = Counter(kernel for kernel, _ in rows)
    unlike = {kernel: (ours[kernel], theirs[kernel]) for kernel in ours | theirs if ours[kernel] != theirs[kernel]}
    report.check(f"{name}: kernels of iterations {first} to {last}, and nsys's",
                 f"{sum(ours.values())} of {len(ours)} names, {sum(theirs.values())} of {len(theirs)}; unlike (ours, nsys's): "
                 f"{dict(list(unlike.items())[:8])}; {record.dropped} lost; inner {record.inner}; refused {record.refused}",
                 bool(ours) and not unlike and not record.dropped)
    ns, by_nsys = sum(ns for _, ns, _ in record.kernels), sum(ns for _, ns in rows)
    report.check(f"{name}: GPU time beside nsys's", f"{ns / 1e6:.3f} ms, {by_nsys / 1e6:.3f} ms: {ns / by_nsys - 1:+.2%}",
                 is_same_time(ns, by_nsys, len(rows)))


def against_nsys(bench, report, ours):
    base = nsys.report_base(bench.folder, "kernels-nsys")
    windows = kind_windows(INNER)
    ended = child.run([bench.nsys, "profile", *nsys.profile_arguments(base, f"repeat:{len(KINDS)}", "node"), *torch_words()],
                      bench.shimmed(windows, RULE), 150)
    report.raw("torch under nsys", ended)
    reports = sorted(glob.glob(glob.escape(base) + "*.nsys-rep"))
    report.check("nsys captures", f"{len(reports)}", len(reports) == len(KINDS))
    for index, (kind, path) in enumerate(zip(KINDS, reports)):
        rows = nsys_kernels(bench, path)
        theirs, ns = Counter(name for name, _ in rows), sum(ns for _, ns in rows)
        mine = ours.counts(index) if ours and index < len(ours.of) else Counter()
        report.check(f"{kind}: nsys's counts and mangled names", f"{dict(theirs)}", theirs == mine)
        durations = [ns for _, ns, _ in ours.of[index]] if ours and index < len(ours.of) else []
        report.check(f"{kind}: GPU time beside nsys's", f"{sum(durations) / 1e6:.3f} ms ({commonest(durations)}), "
                     f"{ns / 1e6:.3f} ms ({commonest([ns for _, ns in rows])})",
                     bool(ns) and is_same_time(sum(durations), ns, len(rows)))
        of_export(bench, report, kind, database_of(path), rows)


def of_export(bench, report, kind, database, rows):
    """Checks that `tllmprof report` of nsys's export shows the same kernels as the export itself."""
    shown = child.run([bench.command, "report", "--json", database], child.variables())
    process = json.loads(shown.out)["processes"][0] if shown.status == 0 else {}
    iterations = [one for window in process.get("windows", []) for one in window["iterations"]]
    kernels = [(one["count"], one["total_ns"]) for one in process.get("kernels", [])]
    count, ns = (sum(column) for column in zip(*kernels)) if kernels else (0, 0)
    report.check(f"{kind}: tllmprof report of nsys's export",
                 f"{shown.why() if shown.status else 'read'}; {len(iterations)} iterations, {count} kernels, {ns / 1e6:.3f} ms, "
                 f"in each {sorted({one['kernels'] for one in iterations})}",
                 (len(iterations), count, ns) == (INNER, len(rows), sum(ns for _, ns in rows)))


def drift(given):
    """Returns (by how much longer steps take after the windows than before, by the mean; the same by the step at the
    tenth percentile; a description)."""
    if not given.get("before"):
        raise nsys.Failed("the program printed no times")
    before, after = given["before"], given["after"]
    quick = after["quick"] / before["quick"] - 1
    return (after["us"] / before["us"] - 1, quick), (
        f"a step {before['us']:.2f} us, {after['us']:.2f} after: {after['us'] / before['us'] - 1:+.2%}; its quickest tenth "
        f"{quick:+.2%}; others' rounds a second "
        f"{before['others']:.0f}, {after['others']:.0f}: {after['others'] / max(before['others'], 1) - 1:+.2%}; in the windows' "
        f"part {given['windows']}")


def busy(bench, report, what, words, steps, names):
    """Checks the recording of kernels in many short windows while other threads keep the GPU busy: the recorded
    kernels, and that steps are not slower afterwards. `names`: the names of the kernels of a step, and their
    numbers."""
    windows = ",".join(f"{2 * steps + i * (STEPS + GAP)}-{2 * steps + i * (STEPS + GAP) + STEPS - 1}" for i in range(WINDOWS))
    parts = [str(n) for n in (THREADS, steps, steps, WINDOWS * (STEPS + GAP), steps)]
    label, inner = f"{what}, {THREADS} busy threads, {WINDOWS} windows", STEPS - 1
    runs = []

    def pair():
        drifted = []
        for how, kernels in (("", inner), (", without kernels", None)):
            trace, variables = environment(bench, f"kernels-busy-{what}-{len(runs)}", windows, kernels)
            ended = child.run([*words, *parts], variables, 120)
            report.raw(label + how, ended)
            given = next(iter(said(ended)), {})
            runs.append((trace, ended))
            more, shown = drift(given)
            report.check(label + how, f"status {ended.status}; errors {given.get('errors')}; {shown}",
                         ended.status == 0 and not given.get("errors"))
            drifted.append(more)
        return drifted

    pairs = drifts(pair)
    report.check(f"{what}: a step afterwards", f"mean and quickest tenth {in_words(pairs)}", not is_lasting(pairs))
    trace, ended = runs[0]
    if not os.path.exists(trace):
        return report.check(f"{what}: record", "none", False)
    record = Record(bench.command, trace)
    unlike = []
    for index in range(len(record.of)):
        counts = record.counts(index)
        for name, count in names.items():
            got = sum(n for full, n in counts.items() if name in full)
            if got != count * inner:
                unlike.append(f"window {index}: {got} of {name}, not {count * inner}")
    total = Counter(name for of in record.of for _, _, name in of)
    report.check(f"{what}: {WINDOWS} kernel windows, each whole",
                 f"{len(record.of)} windows, {sum(total.values())} kernels, {record.dropped} lost, refused "
                 f"{record.refused}; {'; '.join(unlike[:5]) or 'as made'}; {dict(total)}",
                 len(record.of) == WINDOWS and not unlike and record.dropped == 0 and not record.refused)
    left = ended.err.count("CUPTI is out")
    return report.check(f"{what}: CUPTI was taken out", f"{left} times", left == WINDOWS)


def after_profiler(bench, report):
    trace, variables = environment(bench, "kernels-second", kind_windows(WINDOW), INNER)
    ended = child.run(torch_words("first"), variables, 120)
    report.raw("torch, the PyTorch profiler first", ended)
    record = Record(bench.command, trace) if os.path.exists(trace) else None
    refused = record.refused if record else []
    report.check("a profiler that ran before: refused, or all is taken", f"status {ended.status}; {refused}; "
                 f"{[sum(record.counts(i).values()) for i in range(len(record.of))] if record else 'no record'}",
                 ended.status == 0 and (any("CUPTI" in text for text in refused) or bool(record and record.of)))


def build(cuda, folder):
    """Builds the C program. Returns the compiler's error if that failed."""
    command = [os.path.join(cuda, "bin", "nvcc"), "-O2", "-arch=native", "--cudart", "static", "-o",
               os.path.join(folder, "kernels"), os.path.join(HERE, "kernels.cu"), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    return None if done.returncode == 0 else done.stderr[-1000:]


def table(bench, cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check("kernels", "skipped: no tllmprof command built", None)
        return report.page("## Kernels")
    built = os.path.join(bench.folder, "bin")
    os.makedirs(built, exist_ok=True)

    failed = build(cuda, built)
    has_torch = bench.programs["torch_graph"].missing is None
    if failed:
        report.check("kernels.cu", failed, False)
    else:
        report.guarded(busy, bench, "C", [os.path.join(built, "kernels")], 8000, {"in_graph": 20, "by_itself": 10})
    if has_torch:
        ours = report.guarded(against_torch, bench)
        report.guarded(busy, bench, "torch", [sys.executable, os.path.join(HERE, "kernels_torch.py"), "busy"], 6000, {})
        report.guarded(after_profiler, bench)
        report.guarded(against_nsys, bench, ours)
        for name in WHOLE:
            report.guarded(whole_program, bench, name)
    else:
        report.check("torch", "skipped: no torch", None)
    return report.page("## Kernels")
