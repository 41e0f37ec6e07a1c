#!/usr/bin/env python3
"""The first answer: ordinary programs (programs/first/programs.txt) are started by `tllmprof run -- PROGRAM` and nothing else.

The window has to hold the program's own steady steps, the first finding has to name the cause, a healthy program has none,
and no figure may contradict another. Without the rest of gpu-check, where time on a GPU is short:

    python3 scripts/gpu_check/first.py --command target/release/tllmprof --out DIR [--seconds 8] [--budget 500] [NAME...]
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

# Replaces the script's own folder in Python's search path by its parent, because some modules in the script's
# folder have names of standard modules.
if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from gpu_check import child, host, reader  # noqa: E402

NAME = "first"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "first")
TABLE = os.path.join(FOLDER, "programs.txt")
HEALTHY, IDLE = "healthy", "idle"
WORDS = ("evidence", "advice", "cause", "where")  # parts of a finding that may name a function
# Findings on host activities. Such an activity costs nothing while the GPU works, so the time that a finding costs cannot
# be longer than the time in which the GPU is idle.
OF_IDLE_GPU = ("host-bound", "host-blocked", "input-bound", "launch-bound", "host-waits", "small-copies", "allocations",
               "page-faults", "preempted", "gpu-idle")
# Findings on copies for which the host waits. While the GPU only copies, no kernel runs, so the time that such a finding
# costs cannot be longer than the time in which the GPU runs no kernel.
OF_COPIES = ("long-copies", "blocking-copies")
RATIO, TYPICAL, SLACK = 0.1, 2, 0.05
# SECONDS: duration of a program's loop in seconds. STARTS: seconds that the program may need in addition, to start and
# to end. REPORTS: time limit of a report in seconds.
SECONDS, STARTS, REPORTS = 8, 90, 60
SHOWN = 160
TITLE = ("## The first answer", "", "Each program once by `tllmprof run -- PROGRAM`, with no option.")


@dataclass(frozen=True)
class Planted:
    name: str
    file: str
    finds: tuple
    names: tuple
    multiples: tuple  # the numbers of own steps that an iteration may contain
    modules: tuple
    gpus: int
    seconds: float  # minimum duration of the program's loop

    @property
    def wanted(self):
        return f"{' or '.join(self.finds)}{': ' * bool(self.names)}{' or '.join(self.names)}"


def planted_in(text):
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, file, finds, names, multiples, needs = (field.strip() for field in line.split("|"))
        limits = dict(word.split("=") for word in needs.split() if "=" in word)
        found.append(Planted(name, file, tuple(finds.split()), tuple(filter(None, map(str.strip, names.split(";")))),
                             tuple(map(int, multiples.split())), tuple(word for word in needs.split() if "=" not in word),
                             int(limits.pop("gpus", 1)), float(limits.pop("seconds", 0))))
        if limits:
            raise ValueError(f"{name} needs {limits}, which is not known")
    return found


def table_of_programs(names=()):
    """Returns the programs of the table that `names` select. A name is a program's whole name, or else a part of
    it. Without names, returns all programs."""
    with open(TABLE) as text:
        table = planted_in(text.read())
    whole = {one.name for one in table}
    return [one for one in table if not names or any(name == one.name or name not in whole and name in one.name for name in names)]


# ---- reading the result of a run


def own_steps(out):
    """Returns the program's own data from the last line of its output: its process ID, and the time when each step
    began. Returns None if the line is missing."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "began" in said:
                return said
    return None


def windows_of(process):
    """Returns the iterations of each window that has any."""
    return [window["iterations"] for window in process["windows"] if window["iterations"]]


def iterations_of(process):
    return [one for window in windows_of(process) for one in window]


def process_of(report, pid):
    """Returns the process with this PID from the report. If it is missing, returns the process with the most
    iterations. Returns None if the report has no process."""
    processes = report["processes"]
    own = [one for one in processes if one["pid"] == pid]
    return max(own or processes, key=lambda one: len(iterations_of(one)), default=None)


def first_finding(findings):
    return next((one for one in findings if one["verdict"] == "yes"), None)


def shown(finding):
    return f"{finding['rule']}: {finding['evidence'][:SHOWN]}" if finding else "none"


def duration(ns):
    return f"{ns / 1e6:.3f} ms"


def lengths(began):
    return [after - before for before, after in zip(began, began[1:])]


# ---- judging the result of a run


def window_faults(planted, began, process):
    """Compares a window's iterations with the steps that the program itself lists. Returns (a description of the
    window, its errors)."""
    iterations = iterations_of(process)
    if not iterations:
        return "none", [f"no window: {process['rule']}: {process['rule_why']}"]
    spans = [(window[0]["start_ns"], window[-1]["start_ns"] + window[-1]["dur_ns"]) for window in windows_of(process)]
    within = [one for one in began if any(start <= one < end for start, end in spans)]
    ratio = len(within) / len(iterations)
    text = f"{len(iterations)} iterations of {duration(statistics.median(one['dur_ns'] for one in iterations))}, {len(within)} steps"
    faults = []
    # In a short window, one iteration more or less at the ends changes the mean number of steps per iteration, so
    # the tolerance is larger.
    if not within or all(abs(ratio - multiple) > max(RATIO, multiple / len(iterations)) for multiple in planted.multiples):
        faults.append(f"{ratio:.2f} of its steps an iteration, not {' or '.join(map(str, planted.multiples))}")
    if len(within) > 2:
        here, all_over = statistics.median(lengths(within)), statistics.median(lengths(began))
        if not all_over / TYPICAL <= here <= all_over * TYPICAL:
            faults.append(f"its steps take {duration(here)} in the window and {duration(all_over)} in all")
    return text, faults


def finding_faults(planted, findings):
    yes = [one for one in findings if one["verdict"] == "yes"]
    if planted.finds in ((HEALTHY,), (IDLE,)):
        wrong = ("cause", "symptom") if planted.finds == (IDLE,) else ("cause",)
        return [f"{one['rule']}, although {planted.finds[0]}" for one in yes if one["kind"] in wrong]
    if not yes:
        return ["nothing found"]
    said = " ".join(str(yes[0].get(word) or "") for word in WORDS)
    if yes[0]["rule"] not in planted.finds:
        return [f"found {yes[0]['rule']} first"]
    if planted.names and not any(name in said for name in planted.names):
        return [f"does not name {' or '.join(planted.names)}"]
    return []


def values_of(key, value):
    """Returns all values of this key in a part of a report, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from [inner] if name == key else values_of(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from values_of(key, inner)


def span_share(process):
    """Returns the share of the iterations' time between the first and the last work on the GPU. Returns None if it
    was not measured."""
    return process.get("gpu_span_share")


def kernel_share(process):
    """Returns the share of the GPU's busy time in which kernels run, for the GPU that is busy longest. Returns 1 if it
    was not measured."""
    known = [(gpu["busy_ns"], gpu["kernel_ns"]) for gpu in process.get("gpus", ()) if gpu["busy_ns"] and gpu["kernel_ns"] is not None]
    busy, kernels = max(known, default=(1, 1))
    return kernels / busy


def contradictions(process, findings):
    found = []
    starts = [one["start_ns"] for one in iterations_of(process)]
    if starts != sorted(starts):
        found.append("iterations are out of order")
    losses = {one["rule"]: one["loss"] or 0 for one in findings if one["verdict"] == "yes" and one["kind"] == "cause"}
    if any(not 0 <= loss <= 1 for loss in losses.values()) or sum(losses.values()) > 1 + SLACK:
        found.append(f"losses of {losses}")
    span = span_share(process)
    for busy in values_of("gpu_busy_share", process):
        if busy is None:
            continue
        if not 0 <= busy <= 1:
            found.append(f"the GPU is busy {busy:.3f} of the time")
        if span is not None and busy > span + SLACK:
            found.append(f"the GPU is busy {busy:.3f} of the time, but has work in {span:.3f} of it")
        for rules, work in (OF_IDLE_GPU, busy), (OF_COPIES, busy * kernel_share(process)):
            found += [f"the GPU is busy {busy:.3f} of the time, and {losses[rule]:.3f} is lost to {rule}"
                      for rule in rules if rule in losses and losses[rule] > 1 - work + SLACK]
    return found


def reader_faults(planted, said):
    """Checks that the scripted reader (reader.py) finds the planted cause. Returns the errors."""
    found = reader.faults(said)
    if planted.finds in ((HEALTHY,), (IDLE,)):
        return found
    if said["cause"] not in planted.finds or planted.names and not any(name in said["where"] for name in planted.names):
        found.append(f"a reader of the brief names {said['cause'] or 'nothing'}")
    return found


@dataclass
class Row:
    name: str
    faults: list
    steps: object = "?"
    window: str = "?"
    found: str = "?"
    wanted: str = ""

    @property
    def got(self):
        return f"{self.steps} steps; window: {self.window}; first: {self.found}; wanted: {self.wanted}"

    def line(self):
        return f"{self.name} | {'WRONG: ' + '; '.join(self.faults) if self.faults else 'ok'} | {self.got}"


def judge(planted, ended, report):
    """Judges a run of a program. Returns its row of the table. `report`: the output of `tllmprof report --json`, or
    None."""
    row = Row(planted.name, [], wanted=planted.wanted)
    said = own_steps(ended.out)
    if ended.status != 0 or not said:
        row.faults.append(ended.why())
    if said:
        row.steps = len(said["began"])
    process = process_of(report, said and said["pid"]) if report else None
    if not process:
        row.faults.append("no process in the report")
        return row
    findings = report["findings"]
    row.found = shown(first_finding(findings))
    if said:
        row.window, faults = window_faults(planted, said["began"], process)
        row.faults += faults
    row.faults += finding_faults(planted, findings) + contradictions(process, findings)
    return row


# ---- running the programs


def build(folder):
    """Builds the native programs. Returns (their file or None, the compiler's error)."""
    cuda, built = host.find_cuda(), os.path.join(folder, "native")
    if not cuda:
        return None, "no nvcc"
    libraries = next((p for p in (f"{cuda}/lib64", f"{cuda}/targets/x86_64-linux/lib", f"{cuda}/lib") if os.path.isdir(p)), "")
    # The library path is an RPATH instead of a RUNPATH. Only an RPATH also applies to libraries that NVRTC itself
    # opens.
    command = [os.path.join(cuda, "bin", "nvcc"), "-O2", "-std=c++17", "-arch=native", "-o", built, os.path.join(FOLDER, "native.cu"),
               f"-L{libraries}", "-lnvrtc", "-Xlinker", "--disable-new-dtags", "-Xlinker", f"-rpath={libraries}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return (built, "") if done.returncode == 0 else (None, (done.stderr or done.stdout).strip()[-600:])


@dataclass
class Runner:
    command: str  # path of the tllmprof command
    lib: object  # path of the library, or None to use the one that the command finds
    folder: str
    seconds: float = SECONDS
    gpus: int = 1
    native: object = None
    not_built: str = ""

    def missing(self, planted):
        """Returns the reason why the program cannot run here, or None."""
        modules = [f"no {name}" for name in planted.modules if not host.has_module(name)]
        if planted.gpus > self.gpus:
            modules.append(f"{planted.gpus} GPUs wanted, {self.gpus} there")
        return ", ".join(modules) or None

    def words(self, planted):
        if not planted.file.endswith(".py"):
            if not self.native:
                self.native, self.not_built = (None, self.not_built) if self.not_built else build(self.folder)
            return [self.native, planted.name] if self.native else None
        return [sys.executable, os.path.join(FOLDER, planted.file), planted.name]

    def run(self, planted):
        words = self.words(planted)
        if not words:
            return Row(planted.name, [f"not built: {self.not_built}"], wanted=planted.wanted)
        folder = os.path.join(self.folder, planted.name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        seconds = max(self.seconds, planted.seconds)
        given = child.variables(TLLMPROF_LIB=self.lib, SECONDS_EACH=seconds, PYTHONDONTWRITEBYTECODE=1, TOKENIZERS_PARALLELISM="false")
        ended = child.run([self.command, "run", "--", *words], given, seconds + STARTS, folder)
        # Without an argument, `tllmprof report` reads the newest run in this folder.
        reported = child.run([self.command, "report", "--json"], child.variables(), REPORTS, folder)
        for name, text in (("stdout", ended.out), ("stderr", ended.err), ("report.json", reported.out), ("report.err", reported.err)):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        row = judge(planted, ended, parsed(reported.out))
        said = reader.read(self.command, folder)
        with open(os.path.join(folder, "reader.json"), "w") as file:
            json.dump(said, file)
        row.faults += reader_faults(planted, said)
        return row

    def guarded(self, planted):
        try:
            return self.run(planted)
        except Exception as error:  # an error of one program must not lose the results of the others
            return Row(planted.name, [f"{type(error).__name__}: {error}"], wanted=planted.wanted)


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def run_all(runner, planted, budget, log):
    """Runs the programs one after the other. Returns (rows, {name: the reason why the program did not run}). After
    `budget` seconds, no program is started. Passes each row's text to `log`."""
    began, rows, left_out = time.monotonic(), [], {}
    for one in planted:
        why = runner.missing(one)
        if not why and time.monotonic() - began >= budget:
            why = "no time left"
        if why:
            left_out[one.name] = why
            continue
        rows.append(runner.guarded(one))
        log(f"[{time.monotonic() - began:4.0f} s] {rows[-1].line()}")
    return rows, left_out


class Part:
    """The check of this module, in the form in which gpu-check calls it."""

    NAME = NAME

    def __init__(self, names):
        self.names = names

    def table(self, bench, _cuda, log):
        """Returns (lines of the page, number of passed checks, number of failed checks)."""
        from gpu_check.kernels import Report
        report = Report(NAME, log)
        if not bench.command:
            report.check("the command", "target/release/tllmprof is not there", False)
            return report.page(*TITLE)
        folder = os.path.join(bench.folder, NAME)
        os.makedirs(folder, exist_ok=True)
        runner = Runner(bench.command, bench.shim, folder, gpus=bench.gpus)
        rows, left_out = run_all(runner, table_of_programs(self.names), float("inf"), lambda line: None)
        for row in rows:
            report.check(row.name, "; ".join([*row.faults, row.got]), not row.faults)
        for name, why in left_out.items():
            report.check(name, f"skipped: {why}", None)
        return report.page(*TITLE)


def parts(only):
    """Returns the checks that gpu-check's option --only selects: `first` selects all programs, and `first: NAME` the
    programs with this name. Without the option, the check does not run, because it takes too long."""
    asked = [words for words in only if re.match(rf"{NAME}(:|$)", words)]
    names = [words.partition(":")[2].strip() for words in asked]
    return [Part([] if "" in names else names)] if asked else []


def main():
    parser = child.options(__doc__, "each program's record, output and report, and table.txt", 500, "no program is started",
                           "a program, or a part of the names of several")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each program loops (default: %(default)s)")
    given = parser.parse_args()
    child.end_with_us()
    chosen = table_of_programs(given.names)
    if not chosen:
        parser.error(f"no program has {' or '.join(given.names)} in its name")
    os.makedirs(given.out, exist_ok=True)
    runner = Runner(given.command, given.lib, given.out, given.seconds, len(host.gpus()))
    with open(os.path.join(given.out, "table.txt"), "w") as file:
        def log(line):
            print(line, flush=True)
            print(line, file=file, flush=True)

        rows, left_out = run_all(runner, chosen, given.budget, log)
        for name, why in left_out.items():
            log(f"{name} | left out: {why}")
        right = sum(not row.faults for row in rows)
        log(f"{right} of {len(rows)} as wanted, {len(left_out)} left out")
    return 0 if right == len(rows) and rows else 1


if __name__ == "__main__":
    sys.exit(main())
