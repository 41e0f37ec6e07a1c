"""Measures the cost of the library's features inside Python. This is the part of scripts/bench that runs every CPython
of the machine."""
import json
import os
import statistics
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHILD_SECONDS = 120

# The library's variables in the measured processes. They turn on the recording of the GIL and of garbage collections. A
# Python function is the step, so its calls are counted. The window's first iteration is never reached, so no window
# opens.
EVERYTHING = {"TLLMPROF_GIL": "1", "TLLM_PROFILE_RECORD_GC": "1", "TLLMPROF_STEP": "py:__main__:step",
              "TLLMPROF_START_STOP": "1000000000000"}
# The measurements that bench/python.py prints, and the title of the table's column for each.
MEASURED = {
    "handoff": "the GIL dropped and taken",
    "collection": "a collection of generation 0",
    "marked": "a call of a marked function",
    "loop": "a turn of a loop that calls another",
}


class Python:
    """A Python interpreter, from a line of the output of scripts/list-pythons."""

    def __init__(self, line):
        self.path, self.version, self.linkage, self.gil, _ = line.split()
        self.without, self.asked, self.failed = [], [], None

    def run(self, library, preload, turns):
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_", "NVTX"))}
        if preload:
            variables |= EVERYTHING | {"LD_PRELOAD": preload}
        script = os.path.join(ROOT, "bench", "python.py")
        try:
            done = subprocess.run([self.path, script, library, str(turns)], env=variables, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            self.failed = f"no end after {CHILD_SECONDS} s"
            return
        if done.returncode:
            self.failed = f"status {done.returncode}: {done.stderr.strip()[-200:]}"
            return
        (self.asked if preload else self.without).append(json.loads(done.stdout))


def listed():
    """Returns every CPython from version 3.8 on that scripts/list-pythons finds."""
    lines = subprocess.run([os.path.join(ROOT, "scripts", "list-pythons")], capture_output=True, text=True,
                           check=True, timeout=300).stdout
    return [Python(line) for line in lines.splitlines()]


def measure(shim, library, rounds, turns=5):
    """Measures each Python, with and without the shim in turn."""
    pythons = listed()
    for turn in range(rounds):
        for python in pythons:
            for preload in (None, shim) if turn % 2 else (shim, None):
                if not python.failed:
                    python.run(library, preload, turns)
    return pythons


def table(pythons):
    """Yields a row for each Python: for each measurement, the time that the library's features add to
    the time without the library."""
    yield "| Python | in | " + " | ".join(f"{what}, ns" for what in MEASURED.values()) + " |"
    yield "|---|---|" + "---|" * len(MEASURED)
    for python in pythons:
        where = "libpython" if python.linkage == "shared" else "the executable"
        if python.gil != "gil":
            where += ", no GIL"
        cells = ["failed" if python.failed else cell(python, key) for key in MEASURED]
        yield f"| {python.version} | {where} | " + " | ".join(cells) + " |"


def cell(python, key):
    without = statistics.median(result[key] for result in python.without)
    ratio = statistics.median(a[key] / w[key] for a, w in zip(python.asked, python.without))
    over = statistics.median(a[key] - w[key] for a, w in zip(python.asked, python.without))
    sign = "−" if over < 0 else "+"
    return f"{without:.1f} {sign} {abs(over):.1f} (× {ratio:.3f})"
