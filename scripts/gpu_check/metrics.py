"""Checks the GPU metrics of a program that keeps the GPU busy, and of one that leaves it idle."""
import glob
import json
import os
import shutil

from . import child
from .checks import Check

SECONDS = 3
# The window begins only at iteration 5, because the CUDA context is still being created during the first
# iterations.
WINDOW = "5-"
SM_BUSY = "SM busy"


class GpuMetrics(Check):
    """Checks `tllmprof run --gpu-metrics`: the share of the window's time in which SMs are busy, by the report,
    must be between `low` and `high`."""

    def __init__(self, program, load, low, high):
        self.load, self.low, self.high = load, low, high
        super().__init__(program, f"GPU metrics, {load}", f"cudaStreamSynchronize, {WINDOW}",
                         f"SMs busy {low} to {high} % of the time, a sample at least every 200 ms", apart=True)

    def skip(self, bench):
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def measure(self, bench):
        folder = os.path.join(bench.folder, "metrics", self.load)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        ended = child.run([bench.command, "run", "--gpu-metrics", "--window", WINDOW, "--step", "cudaStreamSynchronize",
                           "--trace", os.path.join(folder, "program.tllmprof"), "--", *self.program.command, self.load,
                           str(SECONDS)],
                          bench.variables(TLLMPROF_LIB=bench.shim, CUDA_VISIBLE_DEVICES=first_visible()))
        if "it has no GPM" in ended.err:
            return self.row("skipped: the GPU has no GPM", None)
        report = child.run([bench.command, "report", "--json", *sorted(glob.glob(glob.escape(folder) + "/*"))],
                           child.variables())
        if ended.status != 0 or report.status != 0:
            return self.row(f"{ended.why()}; report: {report.why()}", False)
        got, wrong = self.judge(json.loads(report.out))
        return self.row(got + (f" ({'; '.join(wrong)}; it said: {ended.said_by_shim()})" if wrong else ""), not wrong)

    def judge(self, report):
        """Judges a report's metrics of GPU 0. Returns (description, errors)."""
        processes = report["processes"]
        if len(processes) != 1:
            return f"{len(processes)} processes", ["one was wanted"]
        of_gpu = {one["metric"]: one for one in processes[0]["gpu_metrics"] if one["device"] == 0}
        got = ", ".join(f"{one['metric']} {one['mean']:.1f} {one['unit']}" for one in of_gpu.values()) or "nothing"
        if SM_BUSY not in of_gpu:
            return got, [f"no {SM_BUSY}"]
        wrong = []
        busy = of_gpu[SM_BUSY]
        if not self.low <= busy["mean"] <= self.high:
            wrong.append(f"{SM_BUSY} is not from {self.low} to {self.high} %")
        span = sum(one["dur_ns"] for window in processes[0]["windows"] for one in window["iterations"]) / 1e9
        if busy["samples"] < span / 0.2:
            wrong.append(f"{busy['samples']} samples in {span:.1f} s")
        return got, wrong


def first_visible():
    """Returns the first GPU in CUDA_VISIBLE_DEVICES, or "0". Only this GPU is sampled."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]


def checks(programs):
    return [GpuMetrics(programs["load"], "busy", 50, 100.5), GpuMetrics(programs["load"], "idle", 0, 5)]
