"""Tests `tllmprof attach` with programs that started without the library: attaches, records a window, and detaches,
several times. Windows must be exact, and the program must be as fast afterwards as before."""
import contextlib
import glob
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from . import child
from .captures import private
from .inside import interval
from .kernels import Report
from .programs import llama_with
from .record_file import process_of
from .router_ranks import free_port
from .throughput import Block

NAME = "attach"
TIMES, STEPS = 20, 50
BLOCK_SECONDS, LONG_SECONDS = 0.06, 0.5
# Minimum and maximum number of rounds. In each round, a loop and its twin (the same program, never attached to) make
# steps for BLOCK_SECONDS each, and their speeds are compared. After the minimum number of rounds, the check stops as
# soon as the 95 % interval of the speeds' ratio extends at most NARROW to either side of the ratio.
FEWEST_ROUNDS, MOST_ROUNDS, NARROW = 40, 400, 0.0015
# Share of the GPU's memory that each of two JAX programs may take. By default, a JAX program takes three quarters.
SHARE = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
# Minimum number of steps per second after the last detach, as a share of the number before the first attach.
AFTERWARDS = 0.995
TITLE = (f"## {NAME.capitalize()}", "", f"Programs that were started without the library: `tllmprof attach --steps {STEPS}` and `tllmprof detach`, "
         f"{TIMES} times each. *Afterwards*: steps a second after the last detach of those before the first attach, and the 95 % interval of the "
         "median; of a loop, as parts of a twin's that is never attached to, whose blocks come in turn with its own (by the median step where it "
         "is in Python); of an engine, by the medians of spans of steps, its process on cores of its own. "
         f"{AFTERWARDS} is wanted. What changes by itself meanwhile is shown beside it.")
ENGINE_ROUNDS = 300
# Seconds for which an engine's steps are measured before the first attach and after each detach,
# including the last one.
ENGINE_SECONDS = 8
# An engine's steps are measured in groups of SPAN consecutive steps. The median of a group counts as one value, and
# FEWEST_SPANS is the minimum number of values.
SPAN, FEWEST_SPANS = 40, 5
LLAMA_RULE = "sym:^llama_decode$"
# Number of layers and width of llama.cpp's model (2.5 GB). With a model of this size, the GPU determines how long a
# step takes. With a small model, the processor would determine it, and the processor's speed varies by more than this
# check tolerates.
LLAMA = (8, 4096)
# Options of the first `tllmprof attach`, with which the library also records inside Python.
PYTHON = ("--gc", "--gil", "--stacks")
# The command that starts a program as the first process of new namespaces, like in a container.
CONTAINER = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--mount-proc")


def loops(programs, folder):
    """Returns the loops to test, each as (name, program, its arguments, its rule, further options of the first
    attach, words in front of the program)."""
    llama = llama_with(programs["llama.cpp"], os.path.join(folder, "wide.gguf"), *LLAMA)
    plain = [(f"{name}, {rule}", programs[name], ["--decode"], rule, (), ())
             for name, rule in (("loop-static", "cudaGraphLaunch"), ("loop-shared", "cudaGraphLaunch"), ("loop-per-thread", "cudaGraphLaunch"),
                                ("torch_graph", "cudaGraphLaunch"), ("torch_graph", "auto"), ("jax_jit", "auto"))]
    torch = programs["torch_graph"]
    return [*plain, (f"llama.cpp, {LLAMA_RULE}", llama, [], LLAMA_RULE, (), ()),
            ("torch_graph, Python", torch, ["--decode"], "auto", PYTHON, ()),
            ("torch_graph, a container", torch, ["--decode"], "auto", PYTHON, CONTAINER)]


class Command:
    """Runs `tllmprof attach` and `tllmprof detach` for one process. With `--engine` in `more`, `pid` is the parent
    of an engine's processes, and the command chooses the one that makes the steps."""

    def __init__(self, bench, pid, folder, *more):
        self.bench, self.target, self.folder = bench, [*more, str(pid)], folder

    def run(self, verb, *words):
        ended = child.run([self.bench.command, "-v", verb, *self.target, *words],
                          self.bench.variables(TLLMPROF_CONTROL=self.folder, TLLMPROF_LIB=self.bench.shim), 60)
        if ended.status != 0:
            raise RuntimeError(f"tllmprof {verb}: {ended.why()}")
        return ended

    def attach_and_detach(self, number, rule, more):
        first = ("--step", rule, "--trace", f"{self.folder}/record.tllmprof", *more) if number == 0 else ()
        began = time.monotonic()
        said = self.run("attach", "--steps", str(STEPS), *first).err
        took = time.monotonic() - began
        self.run("detach")
        return said, took


def about_driver(said):
    """Returns the sentence in the command's output with the number of the driver's functions that were hooked."""
    found = re.findall(r"\d+: (\d+ of \d+ functions of the driver.*)", said)
    return found[0] if found else "no word of the driver's functions"


def judge(process):
    """Checks a record's windows: each must have STEPS iterations, complete and in order. Returns the errors, or
    None."""
    wrong = []
    held = [[one["n"] for one in window["iterations"]] for window in process["windows"]]
    for numbers in held:
        if numbers != list(range(numbers[0], numbers[0] + STEPS) if numbers else ()):
            wrong.append(f"a window holds {numbers[:3]}… ({len(numbers)}), not {STEPS} in a row")
    if len(held) != TIMES:
        wrong.append(f"{len(held)} windows, not {TIMES}")
    if process["dropped"]:
        wrong.append(f"{process['dropped']} dropped")
    return "; ".join(wrong[:3]) or None


def judge_speed(before, after):
    """Judges steps per second after all detaches relative to those before. Returns (description, verdict): True or
    False, or None if the interval does not decide."""
    return judge_ratio(*interval([later / one for one, later in zip(before, after)]), before)


def judge_ratio(ratio, least, most, before):
    ok = True if least >= AFTERWARDS else False if most < AFTERWARDS else None
    return f"afterwards {ratio:.4f} ({least:.4f}–{most:.4f}) of {statistics.median(before):.0f} steps/s", ok


def attached(command, rule, more=(), numbers=range(TIMES)):
    """Attaches and detaches once for each number in `numbers`. Returns (the output of the first attach, the longest
    duration of an attach). `more`: options of the attach with number 0."""
    found = [command.attach_and_detach(number, rule, more) for number in numbers]
    return found[0][0], max(took for _, took in found)


def outcome(process, first, longest):
    """Judges the windows in a record. Returns (description, True if all are right). `first`, `longest`: the results
    of `attached`."""
    wrong = judge(process)
    return f"{wrong or f'{TIMES} windows of {STEPS}'}; {about_driver(first)}; an attach took at most {longest:.2f} s", wrong is None


@contextlib.contextmanager
def going_on(block):
    """Makes the program run steps in another thread, while the body of the `with` statement runs."""
    ends = threading.Event()

    def run():
        while not ends.is_set():
            block.run(LONG_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            ends.set()
            running.result()


def first_child(pid):
    """Returns the PID, outside the namespaces, of the process that `unshare` started inside them."""
    return children(pid)[0]


def children(pid):
    """Returns the PIDs of the children of a process."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found


def unlike_python(process):
    """Returns the kinds of Python's data that a record lacks, or None if it has all."""
    seen = {"stacks": process["stacks"] and process["stacks"]["counts"]["samples"],
            "the GIL": process["gil_handoffs"] or process["gil_hold"]["count"]}
    missing = [what for what, there in seen.items() if not there]
    return f"not in the record: {', '.join(missing)}" if missing else None


def check_loop(bench, report, name, program, words, rule, more, before_it):
    if program.missing:
        return report.check(name, program.missing, None)
    if before_it and subprocess.run([*before_it, "true"], stderr=subprocess.DEVNULL).returncode:
        return report.check(name, f"{' '.join(before_it)} is not permitted here", None)
    folder = private()
    words = [*before_it, *program.command, "--blocks", *words]
    with open(f"{folder}/said", "wb") as said:
        block, twin = (Block(words, bench.variables(**SHARE), said) for _ in range(2))
        try:
            for one in (block, twin):
                one.wait_until_ready()
                one.run(1)
            before = speeds_of(block, twin)
            pid = first_child(block.process.pid) if before_it else block.process.pid
            with going_on(block):
                first, longest = attached(Command(bench, pid, folder), rule, more)
            after = speeds_of(block, twin)
        finally:
            block.end()
            twin.end()
    with open(f"{folder}/said", errors="replace") as said:
        report.after += ["", f"{name}: the first attach, and the library", "```", first[-3000:], said.read()[-3000:], "```"]
    process = process_of(bench.command, f"{folder}/record.tllmprof")
    report.check(name, *outcome(process, first, longest))
    if more:
        wrong = unlike_python(process)
        report.check(f"{name}: seen in it", wrong or f"{process['stacks']['counts']['samples']} samples of stacks, {process['gil_handoffs']} handoffs of "
                     f"the GIL, {sum(one['count'] for one in process['gc'])} collections", wrong is None)
    own, others = zip(before, after)
    report.check(f"{name}: steps of its twin", judge_speed(*others)[0], None)
    report.check(f"{name}: steps", *judge_twins(own, others))
    return shutil.rmtree(folder)


def speeds_of(block, twin):
    """Runs blocks of a loop and of its twin in turn. Returns the steps per second of each block: (those of the
    loop, those of the twin)."""
    own, others = [], []
    while len(own) < FEWEST_ROUNDS or len(own) < MOST_ROUNDS and not is_narrow(own, others):
        own.append(block.median_rate(BLOCK_SECONDS))
        others.append(twin.median_rate(BLOCK_SECONDS))
    return own, others


def is_narrow(own, others):
    return of_twins(own, others)[1] <= NARROW


def of_twins(own, others):
    """Returns (the median ratio of a loop's steps per second to its twin's, half of the ratio's interval relative
    to the median). If the interval is not symmetric, its larger half counts."""
    middle, least, most = interval([one / other for one, other in zip(own, others)])
    return middle, max(middle - least, most - middle) / middle


def judge_twins(own, others):
    """Judges the speed of a loop relative to its twin, before all attaches and after all detaches. `own`, `others`:
    (before, after) of the loop and of the twin. Returns the same as judge_speed."""
    (before, before_half), (after, after_half) = map(of_twins, own, others)
    ratio, half = after / before, math.hypot(before_half, after_half)
    return judge_ratio(ratio, ratio * (1 - half), ratio * (1 + half), own[0])


def check_whole(bench, report, name, program, steps, rule):
    """Attaches to a program that makes this number of steps and prints a result. The result must be the same as
    without an attach."""
    if program.missing:
        return report.check(name, program.missing, None)
    folder = private()
    words = program.words(steps)
    plain = child.run(words, bench.variables(), 120)
    out, err = f"{folder}/out", f"{folder}/err"
    with open(out, "w") as said, open(err, "w") as wrote:
        running = subprocess.Popen(words, env=bench.variables(), stdin=subprocess.DEVNULL, stdout=said, stderr=wrote, start_new_session=True)
        try:
            await_driver(running.pid)
            time.sleep(2)
            command = Command(bench, running.pid, folder)
            first, longest = attached(command, rule)
            status = running.wait(120)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    got, ok = outcome(process_of(bench.command, f"{folder}/record.tllmprof"), first, longest)
    with open(out, errors="replace") as said, open(err, errors="replace") as wrote:
        same = said.read() == plain.out
        report.after += ["", f"{name}: the first attach, and the program", "```", first[-3000:], wrote.read()[-3000:], "```"]
    report.check(name, f"{got}; status {status}, {plain.status} without; {'the same output' if same else 'ANOTHER OUTPUT'}",
                 ok and same and status == plain.status == 0)
    return shutil.rmtree(folder)


def await_driver(pid, seconds=60):
    """Waits until the process has loaded the driver."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if drives_gpu(pid):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{pid} has not loaded the driver in {seconds} s")


def drives_gpu(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return "/libcuda.so" in maps.read()
    except OSError:
        return False


def check_engine(bench, report, own, run):
    """Makes the same check with an engine's server (engines.py) under load. Attaches to the server's process that
    makes the steps."""
    what, folder = f"{own.name}, {run.label}", private()
    truth = os.path.join(folder, "truth")
    more = dict(run.variables, ROUNDS=ENGINE_ROUNDS, TRUTH_FILE=truth, LOG=f"{folder}/log", PORT=free_port())
    with open(f"{folder}/out", "w") as out:
        driver = subprocess.Popen(own.words(run), env=own.variables(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=own.own,
                                  start_new_session=True)
    try:
        until = time.monotonic() + 240
        while time.monotonic() < until and "ROUND" not in open(f"{folder}/out").read():
            time.sleep(0.5)
        pid = steps_by(truth)
        on_cores_of_its_own(pid, driver.pid)
        time.sleep(1)
        command, quiet = Command(bench, driver.pid, folder, "--engine"), [quiet_span()]
        first, longest = attached(command, "auto", numbers=range(1))
        quiet.append(quiet_span())
        longest = max(longest, attached(command, "auto", numbers=range(1, TIMES))[1])
        quiet.append(quiet_span())
        alive = driver.poll() is None and os.path.exists(f"/proc/{pid}")
    except Exception:
        report.after += ["", what, "```", open(f"{folder}/out").read()[-2000:], open(f"{folder}/log").read()[-3000:] if os.path.exists(f"{folder}/log") else "", "```"]
        raise
    finally:
        # After SIGINT, the driver program stops its server and then ends by itself.
        driver.send_signal(signal.SIGINT)
        try:
            driver.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    from .engines import rows_of, said_in

    rows, rounds = rows_of(truth), said_in(open(f"{folder}/out").read()).get("ROUND", [])
    process = process_of(bench.command, f"{folder}/record.tllmprof")
    got, ok = outcome(process, first, longest)
    outputs = [one["outputs"] for one in rounds]
    steady = sum(len({one[at] for one in outputs}) == 1 for at in range(len(outputs[0])))
    with open(f"{folder}/log", errors="replace") as log:
        library = [line for line in log if "tllmprof" in line][:20]
    report.after += ["", f"{what}: the first attach, and the library", "```", first[-3000:], *(line.rstrip() for line in library), "```"]
    report.check(what, f"{got}; by {process['rule']} ({process['rule_why']}); {'the server goes on' if alive else 'THE SERVER HAS ENDED'}", ok and alive and f"{pid}: attached" in first)
    report.check(f"{what}: outputs", f"{steady} of {len(outputs[0])} requests have the same output in all {len(outputs)} rounds, before, meanwhile and after", None)
    before, *after = (of_spans(rates_in(rows, *span)) for span in quiet)
    half = len(before) // 2
    for when, one, later in (("first half, second half of those before", before[:half], before[half:]),
                             ("behind the first detach", before, after[0]), ("behind the last", before, after[1])):
        if min(len(one), len(later)) < FEWEST_SPANS:
            report.check(f"{what}: steps, {when}", f"{len(one)} and {len(later)} spans of {SPAN} steps are too few", None)
        else:
            said, good = judge_speed(one, later)
            report.check(f"{what}: steps, {when}", said, good if one is before else None)
    return shutil.rmtree(folder)


def steps_by(truth):
    """Returns the PID of the process that makes an engine's steps: of all processes that wrote rows to `truth`, the
    one that wrote most."""
    return int(max(glob.glob(glob.escape(truth) + ".*"), key=os.path.getsize).rpartition(".")[2])


def on_cores_of_its_own(pid, parent):
    """Reserves half of the processor cores for the threads of process `pid`. All other processes that `parent`
    started get the remaining cores."""
    cores = sorted(os.sched_getaffinity(0))
    for process in with_children(parent):
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), cores[:len(cores) // 2] if process == pid else cores[len(cores) // 2:])


def with_children(pid):
    """Returns a process and all its descendants."""
    return [pid, *(one for child_pid in children(pid) for one in with_children(child_pid))]


def quiet_span():
    """Sleeps for ENGINE_SECONDS, in which no command attaches or detaches. Returns (begin, end) of this time in
    ns."""
    began = time.monotonic_ns()
    time.sleep(ENGINE_SECONDS)
    return began, time.monotonic_ns()


def rates_in(rows, began, ended):
    """Returns steps per second in an engine's rows between two times. Only steps with the most frequent batch whose
    next step has the same batch are used."""
    commonest = statistics.mode(row[2:5] for row in rows)
    return [1e9 / (later[0] - row[0]) for row, later in zip(rows, rows[1:])
            if began < row[0] and later[0] < ended and row[2:5] == later[2:5] == commonest]


def of_spans(values):
    """Returns the median of each group of SPAN consecutive values."""
    return [statistics.median(values[at:at + SPAN]) for at in range(0, len(values) - SPAN + 1, SPAN)]


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check(NAME, "skipped: no tllmprof command built", None)
        return report.page(*TITLE)
    for loop in loops(bench.programs, bench.folder):
        report.guarded(check_loop, bench, *loop)
    for name, steps, rule in (("llama.cpp", 1500, LLAMA_RULE), ("torch_graph", 500_000, "auto"), ("jax_jit", 100_000, "auto")):
        report.guarded(check_whole, bench, f"{name}: the whole program", bench.programs[name], steps, rule)
    return report.page(*TITLE)
