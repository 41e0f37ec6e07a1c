"""Checks balanced routers in models whose experts are spread over two GPUs: if all ranks have the same tokens, and
if each rank has its own."""
import json
import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from . import child
from .checks import Check

FIRST, LAST, STEPS = 10, 19, 30
RANKS = 2
# Variables that turn off NVLink multicast, which not every machine supports.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def together(lists):
    """Adds up lists of loads (tokens per expert), element by element."""
    return [sum(of) for of in zip(*lists)]


def of_mean(loads):
    return max(loads) * len(loads) / max(1, sum(loads))


def on_gpus(loads):
    """Returns the load of each GPU from the loads of the experts. Each GPU has the same number of consecutive
    experts."""
    each = len(loads) // RANKS
    return [sum(loads[i * each:(i + 1) * each]) for i in range(RANKS)]


def judge_step(how, steps, is_balanced):
    """Checks the loads of one step in all ranks. They must be even if `is_balanced`, and uneven otherwise. Returns
    the errors."""
    wrong = []
    for layer, loads in enumerate(zip(*(step["loads"] for step in steps))):
        total = together(loads)
        here = [step["here"][layer] for step in steps]
        apart = max(total) - min(total)
        if sum(total) != sum(here) or on_gpus(total) != here:
            wrong.append(f"layer {layer}: {here} tokens on the GPUs, {on_gpus(total)} chosen")
        if is_balanced and (apart > 1 or of_mean(here) != 1):
            wrong.append(f"layer {layer}: loads {apart} apart, {here} on the GPUs")
        if not is_balanced and apart <= 1:
            wrong.append(f"layer {layer}: balanced outside the window")
    if how == "same" and len({step["logits"] for step in steps}) != 1:
        wrong.append(f"the ranks' results differ: {[step['logits'] for step in steps]}")
    return wrong


def judge_window(how, truths):
    """Checks all steps of a run with a window: balanced in the window, learned outside. Returns the errors."""
    wrong = []
    for n, steps in enumerate(zip(*(truth["steps"] for truth in truths))):
        wrong += [f"step {n}: {one}" for one in judge_step(how, steps, FIRST <= n <= LAST)]
    for rank, truth in enumerate(truths):
        logits = [step["logits"] for step in truth["steps"]]
        if len(set(logits[:FIRST] + logits[LAST + 1:])) != 1 or logits[0] in logits[FIRST:LAST + 1]:
            wrong.append(f"rank {rank}: the results outside are {sorted(set(logits[:FIRST] + logits[LAST + 1:]))}, "
                         f"inside {sorted(set(logits[FIRST:LAST + 1]))}")
    return wrong


def learned(how, truths):
    """Returns for each rank the loads of the experts, by layer, summed over the time in which the learned router was
    used. If all ranks have the same tokens, a rank knows only the loads of its own experts."""
    parts = [[truth["warm"], *truth["steps"][:FIRST], *truth["steps"][LAST + 1:]] for truth in truths]
    loads = [[together(of_layer) for of_layer in zip(*(part["loads"] for part in of_rank))] for of_rank in parts]
    if how == "same":
        loads = [[together(of_layer) for of_layer in zip(*loads)]] * len(loads)
    return loads


def judge_report(how, truths, report, text):
    """Judges what `tllmprof report` shows of the learned routers, as JSON and as text. Returns (description,
    errors)."""
    wrong, wanted = [], learned(how, truths)
    by_rank = {process["rank"]: process.get("routing") or {"layers": []} for process in report["processes"]}
    for rank, loads in enumerate(wanted):
        layers = by_rank.get(rank, {"layers": []})["layers"]
        if [layer["experts"] for layer in layers] != loads:
            wrong.append(f"rank {rank}: the report has other loads than the program")
        for layer, own in zip(layers, loads):
            gpus = next(one["max_of_mean"] for one in layer["gpus"] if one["gpus"] == RANKS)
            if abs(gpus - of_mean(on_gpus(own))) > 1e-9:
                wrong.append(f"rank {rank}: {gpus} of the mean on the busiest GPU, {of_mean(on_gpus(own))} counted")
    imbalances = [of_mean(on_gpus(together(loads))) for loads in zip(*wanted)]
    mean = sum(imbalances) / len(imbalances)
    shown = re.search(r"mean of \d+ layers +\S+ +(\S+)", text)
    if f"{RANKS} GPUs" not in text or not shown or abs(float(shown.group(1)) - mean) > 0.006:
        wrong.append(f"the report says {shown.group(0) if shown else 'nothing'}, not {mean:.2f}")
    return f"busiest GPU {mean:.2f} of the mean learned, as in the report", wrong


class ExpertRanks(Check):
    """Checks balanced routers with two ranks. Each rank has its own GPU and half of the experts."""

    WANTED = "loads of the experts over both ranks at most 1 apart inside the window, as many tokens on each GPU"

    def __init__(self, program, model, how):
        self.how, self.words = how, (model, how, str(STEPS))
        super().__init__(program, f"{how} tokens {model}", f"cudaGraphLaunch, {FIRST}-{LAST}", self.WANTED)

    def skip(self, bench):
        if bench.gpus < RANKS:
            return f"{bench.gpus} GPU"
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def ranks(self, bench, name, **more):
        """Runs the ranks. Returns (how each rank's program ended, the data that each program wrote itself, the
        records)."""
        base = os.path.join(bench.folder, "-".join(("ranks", *self.words[:2], name)))
        port = free_port()

        def one(rank):
            log = f"{base}-{rank}.json"
            ended = child.run([*self.program.command, *self.words],
                              bench.shimmed(f"{FIRST}-{LAST}", "cudaGraphLaunch", TRUTH_LOG=log, RANK=rank, LOCAL_RANK=rank,
                                            WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                            TLLMPROF_TRACE=f"{base}-%r.tllmprof", **NO_MULTICAST, **more), 100)
            return ended, log

        with ThreadPoolExecutor(RANKS) as pool:
            ran = list(pool.map(one, range(RANKS)))
        if any(ended.status != 0 for ended, _ in ran):
            for rank, (ended, _) in enumerate(ran):
                print(f"{self.name}, {name}, rank {rank}: {ended.err[-2500:]}", file=sys.stderr, flush=True)
            raise RuntimeError("; ".join(f"{name}, rank {rank}: {ended.why()}" for rank, (ended, _) in enumerate(ran)))
        truths = []
        for _, log in ran:
            with open(log) as file:
                truths.append(json.load(file))
        return [ended for ended, _ in ran], truths, [f"{base}-{rank}.tllmprof" for rank in range(RANKS)]

    def measure(self, bench):
        with ThreadPoolExecutor(2) as pool:
            windowed = pool.submit(self.ranks, bench, "window", TLLMPROF_PERFECT_ROUTER="window")
            perfect = pool.submit(self.ranks, bench, "perfect", ENABLE_PERFECT_ROUTER=1)
            (ended, truths, records), (_, balanced, _) = windowed.result(), perfect.result()
        wrong = judge_window(self.how, truths)
        for n, steps in enumerate(zip(*(truth["steps"] for truth in balanced))):
            wrong += [f"perfect, step {n}: {one}" for one in judge_step(self.how, steps, True)]
        reported, unlike = self.report(bench, truths, records)
        wrong += unlike
        inside = truths[0]["steps"][FIRST]["here"], truths[1]["steps"][FIRST]["here"]
        outside = truths[0]["steps"][0]["here"], truths[1]["steps"][0]["here"]
        got = f"tokens of a step by layer: inside {inside[0]} and {inside[1]}, outside {outside[0]} and {outside[1]}; {reported}"
        if wrong:
            got += f" ({len(wrong)} differences: {'; '.join(wrong[:4])}; the shim said: {ended[0].said_by_shim()})"
        return self.row(got, not wrong)

    def report(self, bench, truths, records):
        shown = [child.run([bench.command, "report", *more, *records], child.variables()) for more in (("--json",), ())]
        if any(ended.status != 0 for ended in shown):
            return "no report", [ended.why() for ended in shown if ended.status != 0]
        return judge_report(self.how, truths, json.loads(shown[0].out), shown[1].out)


def checks(programs):
    program = programs["moe_ranks"]
    return [ExpertRanks(program, model, how) for model in ("gpt_oss", "deepseek_v3") for how in ("same", "own")]
