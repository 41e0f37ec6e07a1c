"""Runs programs with a time limit. When it is reached, all processes that the program started are killed."""
import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

# Process groups of running programs. When gpu-check ends, they are killed, because a remaining server would keep its
# port and GPU memory.
_running = set()


@dataclass
class Ended:
    status: object  # an exit status, or "time-out"
    out: str
    err: str

    def said_by_shim(self):
        return " / ".join(line for line in self.err.split("\n") if line.startswith("tllmprof:"))[-300:] or "nothing"

    def why(self):
        """Returns the exit status and the end of the program's output, short enough for a cell of the table."""
        lines = [line.strip() for line in (self.err + "\n" + self.out).split("\n") if line.strip()]
        return f"status {self.status}" + (f": {' / '.join(lines[-3:])[-300:]}" if lines else "")


def variables(**more):
    """Returns the environment of this process without variables that control the shim or set a rank, plus the
    variables in `more`. A value of None in `more` removes a variable."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TLLM", "LD_PRELOAD", "ENABLE_PERFECT_ROUTER"))
            and k not in ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")}
    kept.update({k: str(v) for k, v in more.items() if v is not None})
    return kept


def options(doc, out, budget, at_end, names=None):
    """Returns a command-line parser for a part of gpu-check that can also run separately. `out`: the help text of --out.
    `at_end`: what happens after `budget` seconds. `names`: what the arguments NAME select, if the part takes names."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    if names:
        parser.add_argument("names", metavar="NAME", nargs="*", help=f"{names} (default: all)")
    parser.add_argument("--command", required=True, type=os.path.abspath, help="the tllmprof command")
    parser.add_argument("--lib", type=os.path.abspath, help="the library (default: the one that the command finds)")
    parser.add_argument("--out", metavar="DIR", required=True, type=os.path.abspath, help=f"gets {out}")
    parser.add_argument("--budget", type=float, default=budget, help=f"seconds after which {at_end} (default: %(default)s)")
    return parser


def end_with_us():
    """Handles SIGTERM, for example from `timeout`, by killing the programs that this process started and then
    ending."""
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
        except subprocess.TimeoutExpired:  # a process that left the group still has the pipe open
            out = err = ""
        return Ended("time-out", out, err)
    finally:
        _running.discard(child.pid)
