"""Runs a program with a time limit that applies to all processes that it starts."""
import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

# Process groups that are running. They are killed when the check ends, because a server that stays keeps its port and
# the GPU's memory.
_running = set()


@dataclass
class Ended:
    status: object  # an exit status, or "time-out"
    out: str
    err: str

    def said_by_shim(self):
        return " / ".join(line for line in self.err.split("\n") if line.startswith("tllmprof:"))[-300:] or "nothing"

    def why(self):
        """Returns the program's last line, for a cell of the table."""
        lines = [line.strip() for line in (self.err + "\n" + self.out).split("\n") if line.strip()]
        return f"status {self.status}" + (f": {' / '.join(lines[-3:])[-300:]}" if lines else "")


def variables(**more):
    """Returns this environment without variables that control the shim, and with `more`. A value of None removes a
    variable."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_PRELOAD", "ENABLE_PERFECT_ROUTER"))
            and k not in ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")}
    kept.update({k: str(v) for k, v in more.items() if v is not None})
    return kept


def options(doc, out, budget, at_end, names=None):
    """Returns a parser with the options of the parts that can run on their own. `out` says what the folder gets, `at_end`
    what happens after `budget` seconds, and `names` what the names select, if the part has programs with names."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    if names:
        parser.add_argument("names", metavar="NAME", nargs="*", help=f"{names} (default: all)")
    parser.add_argument("--command", required=True, type=os.path.abspath, help="the tllmprof command")
    parser.add_argument("--lib", type=os.path.abspath, help="the library (default: the one that the command finds)")
    parser.add_argument("--out", metavar="DIR", required=True, type=os.path.abspath, help=f"gets {out}")
    parser.add_argument("--budget", type=float, default=budget, help=f"seconds after which {at_end} (default: %(default)s)")
    return parser


def end_with_us():
    """Makes SIGTERM, for example from `timeout`, also end the processes that were started."""
    def end(number, _frame):
        for group in list(_running):
            _kill(group)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def _kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command, environment, seconds=150, folder=None):
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace", cwd=folder, start_new_session=True)
    _running.add(child.pid)
    try:
        out, err = child.communicate(timeout=seconds)
        return Ended(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        _kill(child.pid)
        try:
            out, err = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a process in another session still has the pipe open
            out = err = ""
        return Ended("time-out", out, err)
    finally:
        _running.discard(child.pid)
