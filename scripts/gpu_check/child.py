"""Runs a program with a time limit that holds for all the processes it starts."""
import os
import signal
import subprocess
from dataclasses import dataclass


@dataclass
class Ended:
    status: object  # an exit status, or "time-out"
    out: str
    err: str

    def said_by_shim(self):
        return " / ".join(line for line in self.err.split("\n") if line.startswith("tllmprof:"))[-300:] or "nothing"

    def why(self):
        """The last thing it said, for a table's cell."""
        lines = [line.strip() for line in (self.err + "\n" + self.out).split("\n") if line.strip()]
        return f"status {self.status}" + (f": {' / '.join(lines[-3:])[-300:]}" if lines else "")


def variables(**more):
    """This environment without what would steer the shim, and with `more`; None takes one away."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_PRELOAD", "ENABLE_PERFECT_ROUTER"))
            and k not in ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")}
    kept.update({k: str(v) for k, v in more.items() if v is not None})
    return kept


def run(command, environment, seconds=150, folder=None):
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace", cwd=folder, start_new_session=True)
    try:
        out, err = child.communicate(timeout=seconds)
        return Ended(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            out, err = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a process of another session holds the pipe
            out = err = ""
        return Ended("time-out", out, err)
