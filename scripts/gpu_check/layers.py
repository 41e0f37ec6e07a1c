"""Layers in CUDA graphs: programs whose layers have kernels of their own, so many of each, and what the report says of them."""
import json
import os
import subprocess

from . import child
from .kernels import Report
from .programs import HERE

NAME = "layers"
STEPS, WINDOW, TAKEN = 100, "20-79", 20
MODES = ("chain", "streams", "clone", "update", "copies", "child")
ENDS = 3  # layers.cu's own status
SAMPLE = {"sample": 2}
GRAPH = {f"model/layers.{layer}": layer + 1 for layer in range(5)}
TITLE = (f"## {NAME.capitalize()}", "", f"Kernels of {TAKEN} steps by layer: each layer of the graph has another number of kernels. A graph with "
         "a graph in it is not known, which is what is wanted there.")


def judge(mode, process):
    """What is wrong with the report of a process; None: nothing."""
    found = {row["name"]: row["kernels"] / TAKEN for row in process["layers"]}
    wanted = SAMPLE if mode == "child" else SAMPLE | GRAPH
    if found != wanted:
        return f"{found}, not {wanted}; not known: {process['layers_unknown']}"
    unknown = sum(row["kernels"] for row in process["layers_unknown"])
    inside = 2 * sum(GRAPH.values()) * TAKEN if mode == "child" else 0
    return None if unknown == inside else f"{process['layers_unknown']}"


def check(bench, report, mode, program):
    trace = os.path.join(bench.folder, f"layers-{mode}.tllmprof")
    plain = child.run([program, mode, str(STEPS)], bench.variables())
    ended = child.run([program, mode, str(STEPS)],
                      bench.shimmed(WINDOW, "cudaEventSynchronize", TLLMPROF_TRACE=trace, TLLMPROF_LAYERS=1, TLLMPROF_KERNELS=TAKEN))
    report.raw(mode, ended)
    if ended.status != ENDS or plain.status != ENDS:
        return report.check(mode, f"status {plain.status}, {ended.status}: {ended.why()}", False)
    read = child.run([bench.command, "report", "--json", trace], child.variables())
    if read.status != 0:
        return report.check(mode, read.why(), False)
    wrong = judge(mode, json.loads(read.out)["processes"][0])
    return report.check(mode, f"{wrong or 'as launched'}; {ended.out.strip()} captured, {plain.out.strip()} without the library",
                        wrong is None)


def table(bench, cuda, log):
    """(lines of the page, how many were as wanted, how many were not)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check(NAME, "skipped: no tllmprof command built", None)
        return report.page(*TITLE)
    program = os.path.join(bench.folder, "layers")
    built = subprocess.run([os.path.join(cuda, "bin", "nvcc"), "-O2", "-std=c++17", "-arch=native", "--cudart", "shared", "-Xlinker",
                            f"-rpath={cuda}/lib64", "-o", program, os.path.join(HERE, "layers.cu"), "-ldl"],
                           capture_output=True, text=True, timeout=180)
    if built.returncode:
        report.check(NAME, built.stderr[-500:], False)
        return report.page(*TITLE)
    for mode in MODES:
        report.guarded(check, bench, mode, program)
    return report.page(*TITLE)
