"""Checks many ranks at the size at which models are served: vLLM with a model of the shape of Llama 3 8B on four and eight GPUs.

Three parts, each for one command of ten minutes: `eight: captures` (windows in lockstep, and the page of all ranks), `eight: workers`
(a late worker of each kind, and a hang of each kind) and `eight: speed` (tokens a second plain, armed and recorded; attach to all
workers). A machine with fewer GPUs runs the sizes that fit, or tensor parallelism over all GPUs that it has."""
import glob
import json
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from . import arrivals, child, hang
from .kernels import Report
from .programs import HERE
from .record_file import output_of

NAME = "eight"
PARTS = ("captures", "workers", "speed")
# For a number of GPUs, the sizes of the served model: (tensor parallelism, data parallelism).
SIZES = {8: ((4, 1), (8, 1), (4, 2)), 4: ((4, 1), (2, 2))}
CAPTURES, STEPS = 20, 50
# CAPTURE_WAIT_S: seconds for which a capture waits for the next iteration. It is longer than the warm-up of a server.
CAPTURE_WAIT_S = 300
# HANGS_AT_ONCE: number of hangs that are checked at the same time.
HANGS_AT_ONCE = 4
# LOAD_S: seconds of load for the captures. SERVER_S: time limit of a server in seconds, including its start.
LOAD_S, SERVER_S = 90, 500
# The load with which the tokens per second are measured: REQS requests at once with TOKENS new tokens each, ROUNDS
# rounds, and WARM tokens of a request for the warm-up.
SPEED = dict(REQS=32, TOKENS=256, ROUNDS=8, WARM=8)
TITLE = ("## Four and eight GPUs", "", "vLLM with a model of 8B's shape, under a mixed load; then loops with NCCL.")


def sizes(gpus):
    """Returns the sizes that are served on this number of GPUs."""
    return list(next((served for wanted, served in SIZES.items() if gpus >= wanted), [(gpus, 1)]))


def label(size):
    return f"TP{size[0]}" + (f" x DP{size[1]}" if size[1] > 1 else "")


def served(run, size, **variables):
    """Returns the engine's run `run` with this number of ranks."""
    more = f"{run.variables['MORE']} --tensor-parallel-size {size[0]}" + (f" --data-parallel-size {size[1]}" if size[1] > 1 else "")
    return replace(run, label=f"{run.label} {label(size)}", variables=dict(run.variables, MORE=more, **arrivals.NO_MULTICAST, **variables))


def unlike_windows(processes, size, captures=CAPTURES, steps=STEPS):
    """Compares the windows of all ranks. Ranks of one replica open the same window at the same iteration. Returns (number of windows
    that all ranks of their replica have alike, errors)."""
    held = {}
    for process in processes:
        windows = tuple((one["first"], one["last"]) for one in process["windows"])
        held.setdefault(windows, []).append(process["rank"])
        wrong = [one for one in process["windows"] if [each["n"] for each in one["iterations"]] != list(range(one["first"], one["last"] + 1))
                 or one["last"] - one["first"] + 1 != steps]
        if wrong:
            return 0, [f"rank {process['rank']}: window {wrong[0]['first']}-{wrong[0]['last']} holds {len(wrong[0]['iterations'])} iterations"]
    wrong = [f"ranks {ranks} have windows of their own: {windows[:2]}…" for windows, ranks in held.items() if len(ranks) != size[0]]
    wrong += [f"ranks {ranks} have {len(windows)} windows, not {captures}" for windows, ranks in held.items() if len(windows) != captures]
    if len(processes) != size[0] * size[1]:
        wrong.append(f"{len(processes)} ranks, not {size[0] * size[1]}")
    return sum(len(windows) for windows in held), wrong


class Capturer(threading.Thread):
    """Requests captures of all ranks, one after the other, from the time when all `ranks` processes can be captured until `stop` is
    called, but at most CAPTURES. The first capture is requested in the warm-up. It has to wait for the engine's first step, so that its
    window opens at the same iteration in all ranks, like those of the later captures."""

    def __init__(self, bench, name, folder, ranks):
        super().__init__(daemon=True)
        self.bench, self.name_of_run, self.folder, self.ranks, self.said, self.done = bench, name, folder, ranks, [], 0
        self.ended = threading.Event()

    def listening(self):
        """Returns the number of processes of the run that can be captured."""
        ended = child.run([self.bench.command, "ps", "--json"], child.variables(), 30, self.folder)
        processes = json.loads(ended.out) if ended.status == 0 and ended.out.strip() else []
        return sum(process["run"] == self.name_of_run for process in processes)

    def run(self):
        while self.listening() < self.ranks and not self.ended.wait(0.5):
            pass
        while self.done < CAPTURES and not self.ended.is_set():
            command = [self.bench.command, "capture", "--run", self.name_of_run, "--steps", str(STEPS), "--wait", f"{CAPTURE_WAIT_S}s"]
            ended = child.run(command, child.variables(), CAPTURE_WAIT_S + 100, self.folder)
            self.done += ended.status == 0
            if ended.status != 0:
                self.said.append(ended.why())
                self.ended.wait(1)

    def stop(self):
        self.ended.set()
        self.join()


def check_captures(bench, report, own, run, size):
    what, folder, name = f"{own.name}, {label(size)}", own.records(run, label(size)), f"eight-{os.getpid()}-{size[0]}-{size[1]}"
    capturer = Capturer(bench, name, folder, size[0] * size[1])
    capturer.start()
    made = own.made(served(run, size), "captures", folder=folder, seconds=SERVER_S,
                    WRAP=f"env TLLMPROF_LIB={bench.shim} TLLMPROF_RUN={name} {bench.command} run --window none --",
                    CLIENT=f"{os.path.join(HERE, 'mixed_load.py')} {{url}} {LOAD_S}")
    capturer.stop()
    if made.ended.status != 0:
        report.raw(what, made.ended)
    report.check(f"{what}: ends", made.ended.why() if made.ended.status else "status 0", made.ended.status == 0)
    answer = output_of(bench.command, "report", "--json", folder=folder)
    ranks = [process for process in answer["processes"] if process["windows"]]
    alike, wrong = unlike_windows(ranks, size)
    report.check(f"{what}: captures", "; ".join(wrong[:4]) or f"{capturer.done} captures of {STEPS} steps; {alike} windows, each the same in all "
                 f"ranks of its replica; refused meanwhile: {capturer.said[:1] or 'none'}", not wrong)
    page = os.path.join(folder, "page.html")
    ended = child.run([bench.command, "report", "--html", page, *sorted(glob.glob(f"{folder}/**/*.tllmprof", recursive=True))], child.variables(), 120, folder)
    report.check(f"{what}: page", f"{os.path.getsize(page)} bytes: {page}" if ended.status == 0 else ended.why(), ended.status == 0)


def captures(bench, report, own, run):
    for size in sizes(bench.gpus):
        report.guarded(check_captures, bench, own, run, size)


def workers(bench, report, own, run):
    """Checks each late worker and each hang with as many ranks as there are GPUs. Hangs take hardly any time of the GPUs, so
    several of them run at a time."""
    programs, ranks = bench.programs, bench.gpus
    late = [arrivals.LateRank(programs["arrivals"], cause, way, ranks) for way in arrivals.WAYS for cause in arrivals.CAUSES]
    stuck = [hang.Stuck(programs["hang"], fault, ranks) for fault in hang.FAULTS]
    rows = [check.run(bench) for check in late]
    with ThreadPoolExecutor(HANGS_AT_ONCE) as pool:
        rows += pool.map(lambda check: check.run(bench), stuck)
    for check, row in zip(late + stuck, rows):
        report.check(check.name, row.got, row.ok)


def check_speed(bench, report, own, run, size):
    """Measures tokens a second of the same rounds: without the library, with it, and with all steps in a window."""
    what, speeds = f"{own.name}, {label(size)}", {}
    folder = own.records(run, "speed")
    ways = {"plain": None, "armed": own.settings(TLLM_PROFILE_START_STOP="none", TLLMPROF_TRACE=f"{folder}/armed-%p.tllmprof"),
            "recorded": own.settings((200, 100000), TLLMPROF_TRACE=f"{folder}/recorded-%p.tllmprof")}
    for way in (*ways, "plain again"):
        made = own.made(served(run, size, **SPEED), way, ways.get(way), folder=folder, seconds=SERVER_S)
        speeds[way] = made.tokens_a_second()
        if made.ended.status != 0 or not speeds[way]:
            report.raw(f"{what}, {way}", made.ended)
    got = ", ".join(f"{way} {statistics.median(rounds):.0f}" for way, rounds in speeds.items() if rounds)
    report.check(f"{what}: tokens a second", got, None if all(speeds.values()) else False)


def check_attach(bench, report, own, run, size):
    """Attaches to all workers of a server that was started without the library, records a window in each, and detaches."""
    what, folder = f"{own.name}, {label(size)}: attach", own.records(run, "attach")
    answers, is_over = [], threading.Event()

    def act():
        while not is_over.wait(1) and not answers:
            ended = child.run([bench.command, "attach", "--engine", "--steps", str(STEPS), "--trace", f"{folder}/%p.tllmprof"],
                              child.variables(TLLMPROF_LIB=bench.shim), 120, folder)
            if ended.status == 0:
                answers.append(ended)
                answers.append(child.run([bench.command, "detach", "--engine"], child.variables(), 60, folder))

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    made = own.made(served(run, size), "attach", folder=folder, seconds=SERVER_S, CLIENT=f"{os.path.join(HERE, 'mixed_load.py')} {{url}} {LOAD_S}")
    is_over.set()
    thread.join()
    answer = output_of(bench.command, "report", "--json", folder=folder) if glob.glob(f"{folder}/*.tllmprof") else {"processes": []}
    ranks = [process for process in answer["processes"] if process["windows"]]
    alike, wrong = unlike_windows(ranks, size, captures=1)
    wrong += [ended.why() for ended in answers if ended.status != 0] + ([] if made.ended.status == 0 else [made.ended.why()])
    report.check(what, "; ".join(wrong[:4]) or f"{len(ranks)} workers, {alike} windows; detached; the server ended with 0", not wrong)


def speed(bench, report, own, run):
    size = max(sizes(bench.gpus), key=lambda size: (size[0], -size[1]))
    report.guarded(check_speed, bench, own, run, size)
    report.guarded(check_attach, bench, own, run, size)


def parts(only):
    """Returns the names of the parts that `--only` asks for, as `eight` or `eight: PART`."""
    return [part for part in PARTS if any(one == NAME or one == f"{NAME}: {part}" for one in only)]


def table(bench, engines_folder, log, only):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    from . import engines

    report = Report(NAME, log)
    own = engines.Bench(bench, engines_folder, "vllm")
    run = next(run for run in own.engine.runs if run.looks_at == "hang")
    for part in parts(only):
        report.guarded({"captures": captures, "workers": workers, "speed": speed}[part], bench, own, run)
    return report.page(*TITLE)
