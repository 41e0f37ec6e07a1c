"""Requests captures one after the other in a running program. Each window must have exactly the iterations that the
library announced for it.

The script uses the control socket (docs/live.md) instead of the command: the socket's answers name the iterations, and
no command has to be started, which would add to the times."""
import glob
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import child, nsys
from .inside import interval
from .kernels import Report
from .record_file import process_of

NAME = "captures"
MANY, STEPS = 100, 5
# Number of windows for an engine. The durations of an engine's steps vary more than the slowdown that the check looks
# for, so the check needs more windows than for a loop.
ENGINE_MANY = 400
PROFILED = 20
# Maximum difference between the number of a window's first iteration and the number of iterations that were
# counted when the library confirmed the request.
SOON = 2
# Maximum delay of a step at the beginning or end of a capture, in ns.
DELAY_NS = 50_000_000
PATIENCE = 120
# Pause between two captures of an engine, in seconds. It separates the steps after one window from those before the
# next.
PAUSE = 0.05
AROUND = 8
# LEFT: maximum slowdown of the steps after a window, as a share of the duration of the steps before it. LEAST_WINDOWS:
# minimum number of windows for a verdict.
LEFT, LEAST_WINDOWS = 0.005, 10
TITLE = ("## Captures on demand", "", f"{MANY} in a row of {STEPS} iterations of one process: windows that hold exactly the iterations that "
         f"were named, and how far behind the count the first one was, at most {SOON} is wanted.")
LOOPS = (("torch_graph", "cudaGraphLaunch", 50_000_000), ("llama.cpp", "sym:^llama_decode$", ("single", "100000")))


class Client:
    """A connection to a process's control socket. Requests and answers are lines of JSON."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")

    def ask(self, **what):
        self.socket.sendall((json.dumps(what) + "\n").encode())

    def answer(self, *events):
        """Returns the next answer that is one of these events, and skips all others."""
        while True:
            line = self.lines.readline()
            if not line:
                raise RuntimeError("the process closed its socket")
            found = json.loads(line)
            if found["event"] in events:
                return found

    def status(self):
        self.ask(do="status")
        return self.answer("status")


@dataclass
class Captured:
    before: int  # number of iterations that were counted when the window was requested
    after: int  # number of iterations that were counted just after the library confirmed the request
    first: int
    last: int
    why: str = ""


def capture(client):
    before = client.status()["iterations"]
    client.ask(do="capture", steps=STEPS)
    accepted = client.answer("accepted", "refused")
    if accepted["event"] == "refused":
        return Captured(before, before, 0, 0, accepted["why"])
    after = client.status()["iterations"]
    client.answer("closed")
    return Captured(before, after, accepted["first"], accepted["last"])


def busiest(folder):
    """Waits until a process with a control socket in `folder` has counted more than 100 iterations. Returns a
    connection to it."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for path in glob.glob(f"{folder}/*.sock"):
            try:
                client = Client(path)
                if client.status()["iterations"] > 100:
                    return client
            except (OSError, RuntimeError):
                pass
        time.sleep(0.2)
    raise RuntimeError(f"no process that makes steps listens in {folder}: {os.listdir(folder)}")


def in_a_row(folder, many=MANY, pause=0.0):
    client, found = busiest(folder), []
    began = time.monotonic()
    for _ in range(many):
        found.append(capture(client))
        time.sleep(pause)
    return found, time.monotonic() - began


def judge(found, process, seconds, many=MANY):
    """Judges the captures by the record of the process. Returns (description, True if all are right)."""
    held = {window["first"]: [one["n"] for one in window["iterations"]] for window in process["windows"]}
    refused = [one.why for one in found if one.why]
    right = [one for one in found if not one.why and held.get(one.first) == list(range(one.first, one.last + 1))
             and one.last - one.first + 1 == STEPS]
    # `after` was queried after the library had confirmed the request, so it may be higher than the count of iterations
    # at the confirmation, but not lower.
    late = [one.first - one.after for one in found if not one.why]
    ok = len(right) == len(found) == many == len(process["windows"]) and max(late, default=0) <= SOON and not process["dropped"]
    return (f"{len(right)} of {len(found)} in {seconds:.1f} s, {len(process['windows'])} windows; first at most {max(late, default=0)} "
            f"behind the count; {process['dropped']} dropped" + (f"; refused: {refused[0]}" if refused else "")), ok


def steps_around(rows, found, apart):
    """Returns, from an engine's own rows, the longest delay of a step at the start or end of a window in ns, and for
    each window the ratio: median step after it ÷ median step before it. Windows that are too close to another one give
    no ratio."""
    ns = [later[0] - row[0] for row, later in zip(rows, rows[1:])]
    median = statistics.median(ns)
    at_ends = {n for one in found for n in (one.first - 1, one.first, one.last, one.last + 1)}
    inside = {n for one in found for n in range(one.first, one.last + 1)} | at_ends

    def of(numbers):
        return [ns[n - apart] for n in numbers if 0 <= n - apart < len(ns)]

    def outside(numbers):
        return [] if inside & set(numbers) else of(numbers)

    sides = [(outside(range(window.first - 1 - AROUND, window.first - 1)), outside(range(window.last + 2, window.last + 2 + AROUND)))
             for window in found]
    return max(of(at_ends)) - median, [statistics.median(behind) / statistics.median(before) for before, behind in sides if before and behind]


def judge_behind(ratios):
    """Judges if steps after a window are slower than steps before it. Returns (description, verdict): True if not,
    False if so, None if the interval does not decide."""
    if len(ratios) < LEAST_WINDOWS:
        return f"{len(ratios)} windows that are far enough apart", None
    ratio, least, most = interval(ratios)
    ok = True if most <= 1 + LEFT else False if least > 1 + LEFT else None
    return f"steps behind a window take {ratio:.4f} ({least:.4f}–{most:.4f}) of those before, in {len(ratios)} windows", ok


def settings(bench, folder):
    return {"LD_PRELOAD": bench.shim, "TLLMPROF_CONTROL": folder, "TLLM_PROFILE_START_STOP": "none",
            "TLLMPROF_TRACE": f"{folder}/%p.tllmprof"}


def private():
    """Returns a new folder for control sockets. Its path is short, because a socket's path has a maximum length."""
    return tempfile.mkdtemp(prefix="tllmprof-")


def check_loop(bench, report, name, rule, steps):
    program = bench.programs[name]
    if program.missing:
        return report.check(name, program.missing, None)
    words = [*program.command[:-1], *steps] if isinstance(steps, tuple) else program.words(steps)
    folder = private()
    with open(f"{folder}/said", "w") as said:
        running = subprocess.Popen(words, env=bench.variables(**settings(bench, folder), TLLMPROF_STEP=rule), stdin=subprocess.DEVNULL,
                                   stdout=said, stderr=said, start_new_session=True)
        try:
            found, seconds = in_a_row(folder)
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait()
    process = process_of(bench.command, glob.glob(f"{folder}/*.tllmprof")[0])
    report.check(name, *judge(found, process, seconds))
    return shutil.rmtree(folder)


def check_profiler(bench, report, name, rule, steps):
    """Checks `tllmprof capture --profiler`, which starts and stops an nsys that waits in the background."""
    program = bench.programs[name]
    what = f"{name}, nsys waits"
    if program.missing:
        return report.check(what, program.missing, None)
    folder, base = private(), nsys.report_base(bench.folder, f"captures-profiler-{name}")
    variables = bench.variables(**{**settings(bench, folder), "TLLMPROF_STEP": rule})
    with open(f"{folder}/said", "w+") as said:
        running = subprocess.Popen([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", bench.graph_trace), *program.words(steps)],
                                   env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            pid = busiest(folder).status()["pid"]
            asked = child.run([bench.command, "capture", str(pid), "--steps", str(PROFILED), "--profiler"],
                              bench.variables(TLLMPROF_CONTROL=folder), PATIENCE)
            time.sleep(5)
        finally:
            os.kill(pid, signal.SIGKILL)
            try:
                status = running.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                status = "time-out"
        said.seek(0)
        found = nsys.read(bench.nsys, base, child.Ended(status, said.read(), ""))
    held = [[one.text for one in trace.ranges if one.text.startswith("iteration ")] for trace in found]
    numbers = [int(text.split()[1]) for text in held[0]] if held else []
    in_a_row = numbers == list(range(numbers[0], numbers[0] + PROFILED)) if numbers else False
    report.check(what, f"status {asked.status}; {[len(one) for one in held]} ranges of iterations in nsys's reports, {PROFILED} wanted"
                 f"{', in a row' if in_a_row else f': {numbers[:4]}'}", asked.status == 0 and len(held) == 1 and in_a_row)
    return shutil.rmtree(folder)


def check_engine(bench, report, own, run):
    """Makes the same check for an engine (engines.py) under load."""
    from .engines import largest, unlike_facts

    what, folder = f"{own.name}, {run.label}", private()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(own.made, run, "captures", dict(settings(bench, folder), TLLMPROF_STEP="auto"))
        try:
            found, seconds = in_a_row(folder, ENGINE_MANY, PAUSE)
        except Exception:
            report.raw(what, running.result().ended)
            raise
        made = running.result()
    process, _ = largest(bench.command, glob.glob(f"{folder}/*.tllmprof"))
    report.check(what, *judge(found, process, seconds, ENGINE_MANY))
    _, _, apart = unlike_facts(process, made.rows)
    delay, ratios = steps_around(made.rows, found, apart)
    report.check(f"{what}: steps", f"none delayed by more than {delay / 1e6:.1f} ms at a window's ends", delay <= DELAY_NS)
    report.check(f"{what}: behind", *judge_behind(ratios))
    return shutil.rmtree(folder)


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    for loop in LOOPS:
        report.guarded(check_loop, bench, *loop)
    report.guarded(check_profiler, bench, *LOOPS[0])
    return report.page(*TITLE)
