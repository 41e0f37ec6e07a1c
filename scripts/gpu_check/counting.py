#!/usr/bin/env python3
"""What `auto` counts, with default options: programs that list when their own steps began (programs/counting) are run by
`tllmprof run`, and each iteration of their windows has to hold exactly one step.

Without the rest of gpu-check, where time on a GPU is short:

    python3 scripts/gpu_check/counting.py --command target/release/tllmprof --out DIR [--budget 110] [NAME...]
"""
import bisect
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# Replaces the script's own folder in Python's search path by its parent, because some modules in the script's
# folder have names of standard modules.
if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from gpu_check import child, host  # noqa: E402
from gpu_check.first import own_steps, parsed, process_of, windows_of  # noqa: E402

NAME = "counting"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "counting")
PYTHON, NATIVE, BUILT = "python_loops.py", "recapture.cu", "native"
# For JAX's loop. STARTS: number of times that the program is started. WINDOWS: number of windows in each run. LENGTH:
# number of iterations in a window. FIRST: first iteration of the first window. APART: number of iterations from the
# start of one window to the start of the next.
STARTS, WINDOWS, LENGTH, FIRST, APART = 5, 20, 50, 400, 80
# Minimum share of iterations that must contain the start of exactly one step.
SHARE = 0.98
BUDGET, REPORTS, LEAST = 110, 30, 5
TITLE = ("## What auto counts", "", "Each once by `tllmprof run`, with no option but the window. *One step each*: the part of the iterations of "
         "its windows in which exactly one step of the program began.")


@dataclass(frozen=True)
class Counted:
    name: str
    file: str
    words: tuple
    windows: tuple = ()  # (first, last) of each window; empty: the default window of `tllmprof run`
    module: object = None

    @property
    def options(self):
        return ("--window", ",".join(f"{first}-{last}" for first, last in self.windows)) if self.windows else ()


def every_window():
    return tuple((first, first + LENGTH - 1) for first in range(FIRST, FIRST + WINDOWS * APART, APART))


def queues():
    """Returns the programs in several queues. The queues run at the same time, and the programs of one queue one
    after the other."""
    jax = [Counted(f"jax_decode {start}", PYTHON, ("jax_decode", str(FIRST + (WINDOWS + 5) * APART)), every_window(), "jax")
           for start in range(1, STARTS + 1)]
    return jax, [Counted("recapture", NATIVE, ("600",), ((200, 399),)),
                 Counted("generate", PYTHON, ("generate", "900"), module="transformers"),
                 Counted("assisted", PYTHON, ("assisted", "160"), module="transformers")]


def chosen(names):
    return [[one for one in queue if not names or any(name in one.name for name in names)] for queue in queues()]


# ---- judging the result of a run


def steps_in(began, start, end):
    """Returns the number of steps that began at or after `start` and before `end`. `began`: the times when steps
    began, in order."""
    return bisect.bisect_left(began, end) - bisect.bisect_left(began, start)


def judge(counted, ended, report):
    """Compares the library's iterations with the program's own steps. Returns (a description, the errors)."""
    said = own_steps(ended.out)
    if ended.status != 0 or not said:
        return ended.why(), ["the program failed"]
    process = process_of(report, said["pid"]) if report else None
    if not process:
        return ended.said_by_shim(), ["no process in the report"]
    windows = windows_of(process)
    iterations = [one for window in windows for one in window]
    within = [steps_in(said["began"], one["start_ns"], one["start_ns"] + one["dur_ns"]) for one in iterations]
    if not iterations:
        return ended.said_by_shim(), ["no window opened"]
    share = within.count(1) / len(within)
    outside = process["outside"]["iterations"]
    text = (f"{len(iterations)} iterations in {len(windows)} windows, {sum(within)} steps, one step each in {share:.3f}; in all "
            f"{len(iterations) + outside} iterations recorded, {len(said['began'])} steps; {process['rule_why']}")
    faults = [] if share >= SHARE else [f"one step each in {share:.3f}, {SHARE} wanted"]
    lengths = [len(window) for window in windows]
    if counted.windows:
        wanted = [last - first + 1 for first, last in counted.windows]
        if lengths != wanted:
            faults.append(f"windows of {sorted(set(lengths))} iterations: {len(lengths)}; {len(wanted)} of {wanted[0]} wanted")
    faults += [f"window {window[0]['n']}-{window[-1]['n']} has {len(window)} iterations" for window in windows
               if window[-1]["n"] - window[0]["n"] + 1 != len(window)]
    return text, faults


# ---- running the programs


def build(folder):
    """Builds the native program, unless it exists. Returns the compiler's error, or None."""
    cuda = host.find_cuda()
    if not cuda:
        return "no nvcc"
    command = [os.path.join(cuda, "bin", "nvcc"), "-O2", "-arch=native", "-o", os.path.join(folder, BUILT), os.path.join(FOLDER, NATIVE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()[-300:]


@dataclass
class Runner:
    command: str  # path of the tllmprof command
    lib: object  # path of the library, or None to use the one that the command finds
    folder: str
    until: float  # time by which all programs must have ended, by time.monotonic

    def left(self):
        return self.until - time.monotonic()

    def run(self, counted):
        """Runs a program. Returns (description, errors), or (the reason why it did not run, None)."""
        if counted.module and not host.has_module(counted.module):
            return f"no {counted.module}", None
        error = build(self.folder) if counted.file == NATIVE else None
        if error:
            return f"not built: {error}", ["not built"]
        if self.left() < LEAST:
            return "no time left", None
        program = [os.path.join(self.folder, BUILT)] if counted.file == NATIVE else [sys.executable, os.path.join(FOLDER, counted.file)]
        folder = os.path.join(self.folder, counted.name.replace(" ", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        given = child.variables(TLLMPROF_LIB=self.lib, PYTHONDONTWRITEBYTECODE=1)
        ended = child.run([self.command, "run", *counted.options, "--", *program, *counted.words], given, self.left(), folder)
        reported = child.run([self.command, "report", "--json"], child.variables(), REPORTS, folder)
        for name, text in (("stdout", ended.out), ("stderr", ended.err), ("report.json", reported.out), ("report.err", reported.err)):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        return judge(counted, ended, parsed(reported.out))

    def guarded(self, counted):
        try:
            return self.run(counted)
        except Exception as error:  # an error of one program must not lose the results of the others
            return f"{type(error).__name__}: {error}", ["failed"]


def run_all(runner, names, log):
    """Runs the programs that `names` select, all queues at the same time. Returns [(name, description, errors;
    None: it did not run)]."""
    def run_queue(queue):
        rows = []
        for one in queue:
            rows.append((one.name, *runner.guarded(one)))
            log(line(*rows[-1]))
        return rows

    with ThreadPoolExecutor(2) as pool:
        return [row for rows in pool.map(run_queue, chosen(names)) for row in rows]


def line(name, text, faults):
    return f"{name} | {'left out' if faults is None else 'WRONG: ' + '; '.join(faults) if faults else 'ok'} | {text}"


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    from gpu_check.kernels import Report
    report = Report(NAME, log)
    if not bench.command:
        report.check("the command", "target/release/tllmprof is not there", False)
        return report.page(*TITLE)
    folder = os.path.join(bench.folder, NAME)
    os.makedirs(folder, exist_ok=True)
    runner = Runner(bench.command, bench.shim, folder, time.monotonic() + BUDGET)
    for name, text, faults in run_all(runner, (), lambda line: None):
        report.check(name, "; ".join([*(faults or ()), text]), None if faults is None else not faults)
    return report.page(*TITLE)


def main():
    parser = child.options(__doc__, "each program's record, output and report, and table.txt", BUDGET, "all programs are ended", "a part of the names of programs")
    given = parser.parse_args()
    child.end_with_us()
    if not any(chosen(given.names)):
        parser.error(f"no program has {' or '.join(given.names)} in its name")
    os.makedirs(given.out, exist_ok=True)
    runner = Runner(given.command, given.lib, given.out, time.monotonic() + given.budget)
    rows = run_all(runner, given.names, lambda line: print(line, flush=True))
    right = sum(faults == [] for _, _, faults in rows)
    left_out = sum(faults is None for _, _, faults in rows)
    summary = f"{right} of {len(rows) - left_out} as wanted, {left_out} left out"
    print(summary)
    with open(os.path.join(given.out, "table.txt"), "w") as file:
        file.write("\n".join([*(line(*row) for row in rows), summary, ""]))
    return 0 if right and right + left_out == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
