"""Measures the shim's cost per call on this machine's processor. Uses those rows of scripts/bench that affect the
throughput of programs."""
import os
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

from . import programs, throughput

NAME = "throughput a call"
ROUNDS = 5


def load_bench():
    """Loads scripts/bench as a module, with a special loader because the file has no .py suffix."""
    loader = SourceFileLoader("bench", os.path.join(programs.ROOT, "scripts", "bench"))
    module = module_from_spec(spec_from_loader("bench", loader))
    loader.exec_module(module)
    return module


def cases(bench, shim):
    """Returns cases in which a program calls through pointers from cuGetProcAddress, as the CUDA runtime does
    however it is linked."""

    def far(rule):
        return {"TLLMPROF_START_STOP": throughput.FAR, "TLLMPROF_STEP": rule}

    rows = []
    for call, ways in (("launch", [("counted", "cudaGraphLaunch", 1)]), ("wait", [("uncounted", "cudaGraphLaunch", 0)]),
                       ("step", [("one counted, one not", "cudaGraphLaunch", 1), ("auto", "auto", None)])):
        rows.append(bench.Case("none", "getproc", call))
        rows += [bench.Case(f"shim, window closed, {text}", "getproc", call, shim, far(rule), base=rows[-1], sees=sees)
                 for text, rule, sees in ways]
    return rows


def table(shim, folder):
    """Returns lines of Markdown with the costs. The calls go to scripts/bench's own driver, whose functions do
    nothing, so that only the call and the shim are measured."""
    bench = load_bench()
    bench.BUILT = os.path.join(folder, "bench")
    try:
        bench.build()
    except (OSError, subprocess.CalledProcessError) as error:
        yield f"Not measured: {error}"
        return
    rows = cases(bench, shim)
    for _ in range(ROUNDS):
        for row in rows:
            if not row.failed:
                row.run(5)
    yield f"{bench.machine()}; CPU time against a driver that does nothing, the median of {ROUNDS} rounds in turn."
    yield ""
    yield from bench.calls_table(rows)
    for row in rows:
        if row.failed:
            yield f"\n{row.tool}, {row.call}: {row.failed}"
