#!/usr/bin/env python3
"""Measures the time that sampling of stacks costs the thread that makes steps. This is the part of
scripts/bench that runs bench/stacks.py in one CPython of each version.

    scripts/bench_stacks.py [LIBRARY] [ROUNDS] [SECONDS]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import bench_python

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORDED = {"TLLMPROF_STEP": "py:__main__:step", "TLLMPROF_START_STOP": "all", "TLLMPROF_TRACE": "steps.tllmprof"}
KINDS = {
    "recorded": RECORDED,
    "200 Hz": RECORDED | {"TLLMPROF_STACKS": "200"},
    "1000 Hz": RECORDED | {"TLLMPROF_STACKS": "1000"},
    "and native": RECORDED | {"TLLMPROF_STACKS": "1000", "TLLMPROF_NATIVE_STACKS": "1"},
}
# Measurements of the thread that makes steps. "ns" also includes the time for which the thread waits because the
# sampler's thread uses its processor.
MEASURED = {"cpu": "CPU time", "ns": "time"}


def run(python, shim, driver, kind, seconds):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_", "NVTX"))}
    variables |= KINDS[kind] | {"LD_PRELOAD": shim, "TLLMPROF_LOG": "warn"}
    with tempfile.TemporaryDirectory(prefix="tllmprof-bench-") as folder:
        script = os.path.join(ROOT, "bench", "stacks.py")
        done = subprocess.run([python.path, script, driver, str(seconds)], env=variables, cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode or done.stderr:
        python.failed = f"status {done.returncode}: {done.stderr.strip()[-200:]}"
        return None
    return json.loads(done.stdout)


def measure(shim, driver, rounds, seconds=2):
    """Returns the durations of steps, for each kind of sampling, in one Python of each version. All
    kinds run in turn."""
    versions = {}
    for python in bench_python.listed():
        versions.setdefault((python.version.rsplit(".", 1)[0], python.gil), python)
    for turn in range(rounds):
        for python in versions.values():
            python.stacks = getattr(python, "stacks", {})
            for kind in list(KINDS)[:: 1 if turn % 2 else -1]:
                if not python.failed:
                    python.stacks.setdefault(kind, []).append(run(python, shim, driver, kind, seconds))
    return list(versions.values())


def table(pythons):
    """Yields a row for each Python: the duration of a step that is only recorded, and the additional time of
    each kind of sampling, in percent."""
    kinds = list(KINDS)[1:]
    heads = [f"{kind}: {what}" for kind in kinds for what in MEASURED.values()]
    yield "| Python | a step, µs | " + " | ".join(heads) + " |"
    yield "|---|---|" + "---|" * len(heads)
    for python in pythons:
        gil = "" if python.gil == "gil" else ", no GIL"
        if python.failed:
            yield f"| {python.version}{gil} | failed |" + " |" * len(heads)
            continue
        base = python.stacks["recorded"]
        step = statistics.median(one["cpu"] for one in base) / 1000
        cells = []
        for kind in kinds:
            for key in MEASURED:
                over = statistics.median(a[key] / b[key] - 1 for a, b in zip(python.stacks[kind], base))
                cells.append(f"{over * 100:+.2f} %".replace("-", "−"))
        yield f"| {python.version}{gil} | {step:.0f} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    library = os.path.abspath(given.get(1, os.path.join(ROOT, "target", "release", "libtllmprof.so")))
    done = measure(library, os.path.join(ROOT, "target", "bench", "libcuda.so.1"), int(given.get(2, 5)),
                   float(given.get(3, 2)))
    print("\n".join(table(done)))
    for python in done:
        if python.failed:
            print(f"{python.path}: {python.failed}", file=sys.stderr)
