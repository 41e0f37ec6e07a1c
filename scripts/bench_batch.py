#!/usr/bin/env python3
"""Measures the cost of reading a step's batch, and of checking in every step if the batch meets the condition for a
window. This is the part of scripts/bench that runs bench/batch.py in one CPython of each version.

    scripts/bench_batch.py [LIBRARY] [ROUNDS]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import bench_python

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAR = "1000000000-1000000009"
FUNCTION = "__main__:Runner.step"
FACTS = "requests:len(batch.requests),tokens:batch.total,prefill_tokens:"
FEW, SUM = FACTS + "0", FACTS + "sum(r.prompt for r in batch.requests)"
VLLM = FACTS + "sum(batch.tokens[id] for id, given in zip(batch.ids, batch.given) if given == 0)"
COUNTED = {"TLLMPROF_STEP": "py:" + FUNCTION, "TLLMPROF_START_STOP": FAR}
RECORDED = {"TLLMPROF_STEP": "py:" + FUNCTION, "TLLMPROF_START_STOP": "all", "TLLMPROF_TRACE": "steps.tllmprof"}
ASKED = {"TLLMPROF_WHERE": "phase=decode and requests>=64"}


def named(formulas):
    return {"TLLMPROF_BATCH": FUNCTION + "=" + formulas}


# The cases that are measured. Each has the library's environment variables (`None`: without the library), the number
# of requests in a batch, and the name of the case with which it is compared.
KINDS = {
    "without the library": (None, 16, None),
    "counted": (COUNTED, 16, "without the library"),
    "asked: attributes": (COUNTED | ASKED | named(FEW), 16, "counted"),
    "and a sum": (COUNTED | ASKED | named(SUM), 16, "counted"),
    "or a sum as vLLM's": (COUNTED | ASKED | named(VLLM), 16, "counted"),
    "of 64 requests": (COUNTED | ASKED | named(VLLM), 64, "counted"),
    "of 256": (COUNTED | ASKED | named(VLLM), 256, "counted"),
    "of 1000": (COUNTED | ASKED | named(VLLM), 1000, "counted"),
    "recorded": (RECORDED, 16, "without the library"),
    "its batch: attributes": (RECORDED | named(FEW), 16, "recorded"),
    "and a sum, too": (RECORDED | named(SUM), 16, "recorded"),
}


def run(python, shim, driver, kind):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_", "NVTX"))}
    given, requests, _ = KINDS[kind]
    if given:
        variables |= given | {"LD_PRELOAD": shim, "TLLMPROF_LOG": "warn"}
    with tempfile.TemporaryDirectory(prefix="tllmprof-bench-") as folder:
        script = os.path.join(ROOT, "bench", "batch.py")
        done = subprocess.run([python.path, script, driver, "5", str(requests)], env=variables, cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode or done.stderr:
        python.failed = f"status {done.returncode}: {done.stderr.strip()[-200:]}"
        return None
    return json.loads(done.stdout)


def measure(shim, driver, rounds):
    """Returns the nanoseconds of each case of KINDS in one Python of each version. All cases run in
    turn."""
    versions = {}
    for python in bench_python.listed():
        versions.setdefault((python.version.rsplit(".", 1)[0], python.gil), python)
    for _ in range(rounds):
        for python in versions.values():
            python.steps = getattr(python, "steps", {})
            for kind in KINDS:
                if not python.failed:
                    python.steps.setdefault(kind, []).append(run(python, shim, driver, kind))
    return list(versions.values())


def table(pythons):
    """Yields a row for each Python: the duration of a call without the library, and the time that each
    case of KINDS adds to the case it is compared with."""
    yield "| Python | " + " | ".join(KINDS) + " |"
    yield "|---|" + "---|" * len(KINDS)
    for python in pythons:
        median = {} if python.failed else {kind: statistics.median(all) for kind, all in python.steps.items()}
        cells = ["failed" if python.failed else f"{median[kind] - median.get(base, 0):+.0f}".replace("-", "−")
                 for kind, (_, _, base) in KINDS.items()]
        gil = "" if python.gil == "gil" else ", no GIL"
        yield f"| {python.version}{gil} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    library = os.path.abspath(given.get(1, os.path.join(ROOT, "target", "release", "libtllmprof.so")))
    done = measure(library, os.path.join(ROOT, "target", "bench", "libcuda.so.1"), int(given.get(2, 5)))
    print("\n".join(table(done)))
    for python in done:
        if python.failed:
            print(f"{python.path}: {python.failed}", file=sys.stderr)
