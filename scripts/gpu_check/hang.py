"""Checks `tllmprof hang` on several ranks of which one hangs. The command must name this rank and the reason within
seconds."""
import collections
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from . import child
from .arrivals import OfRanks
from .programs import HERE
from .router_ranks import NO_MULTICAST, free_port

RANKS = 2
# FAULTS: the faults that the program can plant in rank 1 (`none`: no fault). For each: the kinds of verdict that are
# right, and a text that the verdict must contain. LATE: the kind for a rank that did not enter a collective.
LATE = ("not-entered",)
FAULTS = {"none": (("moves",), "slow, not stuck"), "sleep": (LATE, "hold_up"), "lock": (LATE, "wait_for_lock"), "mutex": (("lock",), "hold_mutex"),
          "deadlock": (("deadlock",), "threads wait for each other"), "gil": (("gil",), "hold_gil"), "queue": (("queue",), "fill_queue"),
          "read": (LATE, "read_config"), "tool": (LATE, "run_tool"), "socket": (LATE, "ask_peer"), "keeps": (LATE, "rank 1 did not enter"),
          "host": (("gpu",), "wait_for_copy"), "graph": (("gpu",), "wait_for_copy"), "kernel": (("gpu",), "waits for the GPU"),
          "assert": (("dead", "device-fault"), "rank 1"), "killed": (("dead",), "rank 1"), "stopped": (("stopped",), "rank 1"),
          "ends": (("dead",), "rank 1"), "size": (("mismatch",), "all_reduce"), "kind": (("mismatch",), "reduce"),
          "order": (("order", "mismatch"), "broadcast"), "groups": (("order",), "wait for each other in different calls")}
# Time limit in seconds. Within it, NCCL and the ranks must start, the hang must begin, and `tllmprof hang` must give a
# final verdict.
LONGEST_S = 120
# Number of words that are kept of the stack of each thread if a verdict is wrong.
STACK_WORDS = 128
RULE = "py:__main__:step"
# SERVED_S: seconds for which `tllmprof hang` judges a healthy server again and again. PAUSE_S: pause between two
# verdicts in seconds. START_S: seconds that the server may need in addition, to start and to end.
SERVED_S, PAUSE_S, START_S = int(os.environ.get("HANG_SECONDS", 480)), 1, 300


def judge(fault, answer, took_s):
    """Judges the verdict of `tllmprof hang --json`, which took `took_s` seconds. Returns (description, errors).
    `answer`: the command's output, or None."""
    if answer is None:
        return "no verdict", ["no verdict"]
    verdict = answer["verdict"]
    kinds, part = FAULTS[fault]
    wrong = []
    if verdict["kind"] not in kinds:
        wrong.append(f"{verdict['kind']}, not {' or '.join(kinds)}")
    if part not in verdict["text"]:
        wrong.append(f"{part!r} is not in the text")
    if took_s > 5:
        wrong.append(f"it took {took_s:.1f} s")
    return f"{verdict['kind']} after {took_s:.1f} s: {verdict['text']}", wrong


def asked(command, folder):
    """Runs `tllmprof hang`. Returns (its output or None, the duration in seconds)."""
    since = time.monotonic()
    ended = child.run([command, "hang", "--json", folder], child.variables(), 60)
    took_s = time.monotonic() - since
    try:
        return json.loads(ended.out), took_s
    except ValueError:
        return None, took_s


def is_final(fault, answer, ranks):
    """Returns True if the verdict can be judged: it includes all ranks, and says that they are stuck, or, without a
    fault, that they make progress."""
    if answer is None or len(answer["ranks"]) < ranks:
        return False
    kind = answer["verdict"]["kind"]
    return kind == "moves" if fault == "none" else answer["verdict"]["answer"] == "stuck"


def stack(pid, call):
    """Returns the innermost words of a sleeping thread's stack. `call`: its system call, as `/proc` shows it."""
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            memory.seek(int(call.split()[-2], 16))
            words = memory.read(8 * STACK_WORDS)
    except (OSError, IndexError, ValueError, OverflowError):
        return []
    return [f"{int.from_bytes(words[at:at + 8], 'little'):#x}" for at in range(0, len(words), 8)]


def text_of(path):
    with open(path) as file:
        return file.read().strip()


def threads(pid):
    """Returns the name, state, system call and stack of each thread of a process."""
    found = []
    for folder in sorted(glob.glob(f"/proc/{pid}/task/*")):
        try:
            name, call, status = (text_of(f"{folder}/{file}") for file in ("comm", "syscall", "stat"))
        except OSError:
            continue
        found.append({"id": int(os.path.basename(folder)), "name": name, "state": status.rpartition(")")[2].split()[0], "call": call, "stack": stack(pid, call)})
    return found


def keep(base, answer, took_s, pids):
    """Leaves the evidence for a wrong verdict in files that begin with `base`: the output of `tllmprof hang --json`, the
    threads of each rank, and the mappings of each rank, which show to which module an address belongs."""
    with open(base + ".json", "w") as file:
        json.dump({"took_s": took_s, "answer": answer, "threads": [threads(pid) for pid in pids]}, file, indent=1)
    for rank, pid in enumerate(pids):
        try:
            maps = text_of(f"/proc/{pid}/maps")
        except OSError:
            continue
        with open(f"{base}-rank-{rank}.maps", "w") as file:
            file.write(maps)


def measured(bench, words, fault, ranks, shimmed):
    """Runs the program `words` in several ranks, with the fault in rank 1, and judges the verdict. Returns
    (description, True if the verdict is right). `shimmed`: the function that returns a rank's environment. If the verdict
    is wrong, the evidence stays in the folder of gpu-check, which --keep keeps."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        running = []
        try:
            for rank in range(ranks):
                given = shimmed("none", RULE, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                TLLMPROF_RUN="hang", TLLMPROF_RING=os.path.join(folder, "%p.ring"),
                                TLLMPROF_TRACE=os.path.join(folder, "%p.tllmprof"), **NO_MULTICAST)
                running.append(subprocess.Popen([*words, fault], env=given, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL, start_new_session=True))
            until = time.monotonic() + LONGEST_S
            answer, took_s = None, 0
            while time.monotonic() < until and not is_final(fault, answer, ranks):
                answer, took_s = asked(bench.command, folder)
                time.sleep(0.2)
            got, wrong = judge(fault, answer, took_s)
            if wrong:
                keep(os.path.join(bench.folder, f"hang-{ranks}-ranks-{fault}"), answer, took_s, [one.pid for one in running])
        finally:
            for one in running:
                one.kill()
                one.wait()
    return got + (f" ({'; '.join(wrong)})" if wrong else ""), not wrong


class Stuck(OfRanks):
    """A check with ranks of which the second hangs for a given reason."""

    def __init__(self, program, fault, ranks=RANKS):
        self.fault = fault
        super().__init__(program, ranks, f", {fault}", RULE, f"the verdict is {' or '.join(FAULTS[fault][0])}")

    def measure(self, bench):
        return self.row(*measured(bench, self.program.command, self.fault, self.ranks, bench.shimmed))


def checks(programs):
    return [Stuck(programs["hang"], fault) for fault in FAULTS]


class Asker(threading.Thread):
    """Asks for the verdict on the run `name` again and again, until `stop` is called."""

    def __init__(self, bench, name, folder):
        super().__init__(daemon=True)
        self.bench, self.name_of_run, self.folder = bench, name, folder
        self.kinds, self.stuck, self.ended = collections.Counter(), [], threading.Event()

    def run(self):
        while not self.ended.wait(PAUSE_S):
            ended = child.run([self.bench.command, "hang", "--json", "--run", self.name_of_run], child.variables(), 60, self.folder)
            try:
                verdict = json.loads(ended.out)["verdict"]
            except ValueError:
                self.kinds["no ring yet"] += 1
                continue
            self.kinds[f"{verdict['answer']}: {verdict['kind']}"] += 1
            if verdict["answer"] == "stuck":
                self.stuck.append(ended.out)

    def stop(self):
        self.ended.set()
        self.join()


def check_engine(bench, report, own, run):
    """Asks for verdicts on a healthy server from its start to its end, under a mixed load. None may call it stuck."""
    what, folder, name = f"{own.name}, {run.label}", own.records(run), f"hang-{os.getpid()}"
    asker = Asker(bench, name, folder)
    asker.start()
    wrap = f"env TLLMPROF_LIB={bench.shim} TLLMPROF_RUN={name} {bench.command} run --"
    made = own.made(run, "hang", folder=folder, seconds=SERVED_S + START_S, WRAP=wrap,
                    CLIENT=f"{os.path.join(HERE, 'mixed_load.py')} {{url}} {SERVED_S}")
    asker.stop()
    if made.ended.status != 0:
        report.raw(what, made.ended)
    for text in asker.stuck[:3]:
        print(text, file=sys.stderr)
    kinds = ", ".join(f"{kind} {count}" for kind, count in asker.kinds.most_common())
    answered = re.findall(r"ANSWERED (\d+)", made.ended.out)
    moved = asker.kinds["not-stuck: moves"]
    report.check(f"{what}: verdicts", f"{sum(asker.kinds.values())} in {SERVED_S} s of load: {kinds}; {' '.join(answered)} requests",
                 made.ended.status == 0 and not asker.stuck and moved > 0)
