"""Checks how the library replaces the routers of a real engine (`--engine vllm --only "vllm, router"`), for a model
with experts. A router chooses the experts for each token: the model's own (learned) router, or the library's, which
loads all experts equally (balanced).

The engine runs four times under the same load: without the library; with the library and learned routers; with
balanced routers; and with balanced routers in one window. An operator in the engine counts the experts that each
layer uses, also in captured graphs (scripts/engines/drivers/truth)."""
import glob
import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from . import child
from .engines import DRIVERS, MODEL_OF_EXPERTS, counted, largest, unlike_facts
from .record_file import Record
from .router import INNER, judge_kernels, judge_proof, judge_routing

# First and last iteration of the window, which lies in the first round of the load. In the run `window` of KINDS,
# routers are balanced only in this window. So in later rounds, the model's own (learned) routers choose the experts.
FIRST, LAST = 30, 70
KINDS = {"learned": {"TLLMPROF_KERNELS": INNER}, "perfect": {"TLLMPROF_KERNELS": INNER, "ENABLE_PERFECT_ROUTER": 1},
         "window": {"TLLMPROF_PERFECT_ROUTER": "window"}}
BATCH = 16


def loads(rows, apart=0):
    """Returns {iteration: difference in tokens between the busiest and the idlest expert}. Leaves out steps with a
    single token, whose experts cannot be loaded equally. `apart`: the number of the iteration that belongs to the
    first row."""
    return {at + apart: row[5] for at, row in enumerate(rows) if row[3] > 1 and row[5] >= 0}


def judge_loads(perfect, window):
    """Judges the differences between the experts' loads. Returns (description, errors). `perfect`: the result of
    `loads` for the run with balanced routers. `window`: the same for the run with one window."""
    inside = [one for n, one in window.items() if FIRST <= n <= LAST]
    outside = [one for n, one in window.items() if not FIRST <= n <= LAST]
    if not perfect or not outside or len(inside) != LAST - FIRST + 1:
        return "", [f"loads of {len(perfect)} balanced steps, {len(inside)} inside the window and {len(outside)} outside"]
    wrong = [f"{what}: loads {max(all)} apart" for what, all in (("balanced", perfect.values()), ("window", inside)) if max(all) > 1]
    if min(outside) <= 1:
        wrong.append(f"balanced outside the window in {sum(one <= 1 for one in outside)} steps")
    return (f"at most {max(perfect.values())} apart in {len(perfect)} steps, {max(inside)} in the window's {len(inside)}; outside "
            f"{statistics.median(outside):.0f} in {len(outside)} ({min(outside)} to {max(outside)})"), wrong


def judge_outputs(plain, learned, window):
    """Compares the requests' outputs after the window's round with those of the run without the library. Returns
    (description, verdict): True or False, or None if the engine's outputs differ between equal runs."""
    after = [(one, other) for mine, theirs in zip(plain[1:], window[1:]) for one, other in zip(mine, theirs)]
    same = sum(one == other for one, other in after)
    inside = sum(one != other for one, other in zip((plain or [[]])[0], (window or [[]])[0]))
    repeats = plain == learned
    said = (f"{same} of {len(after)} after the window's round with the plain run's tokens and log probabilities, {inside} changed in it; "
            f"{'the same' if repeats else 'others'} with the library alone")
    # The number of outputs that changed in the window's round is shown but not judged. The random weights that engines
    # make by themselves are so small that the choice of experts may not change the output. Only the experts' loads can
    # then show that other experts were chosen (judge_loads).
    if not after:
        return said, False
    return said, same == len(after) if repeats else None


def gate_of(own, config):
    """Returns the names of the kernels that one gate of the model launches (gate_alone.py)."""
    # Releases of transformers use different names for the number of experts.
    words = [config["hidden_size"], config.get("num_experts") or config["num_local_experts"], BATCH]
    ended = child.run([sys.executable, os.path.join(DRIVERS, "gate_alone.py"), *map(str, words)], own.variables())
    return json.loads(ended.out) if ended.status == 0 else []


def check(bench, report, own, run):
    what = f"{own.name}, {run.label}"
    plain = own.made(run, "plain")

    def made(kind):
        folder = own.records(run, f"-{kind}")
        settings = own.settings((FIRST, LAST), TLLMPROF_TRACE=f"{folder}/%p.tllmprof", **KINDS[kind])
        one = own.made(run, kind, settings)
        return one, *largest(bench.command, glob.glob(f"{folder}/*.tllmprof"))

    # Runs of a server are made at the same time. Runs of vLLM without a server are made one after the other, because
    # vLLM would count GPU memory that other processes take meanwhile as its own.
    with ThreadPoolExecutor(len(KINDS) if run.is_server else 1) as pool:
        found = dict(zip(KINDS, pool.map(made, KINDS)))
    everything = {"plain": plain, **{kind: one for kind, (one, _, _) in found.items()}}
    for kind, one in everything.items():
        if one.ended.status != 0 or not one.outputs:
            report.raw(f"{what}, {kind}", one.ended)
    lacking = [kind for kind, (_, process, _) in found.items() if process is None]
    report.check(f"{what}: ends", f"{[(one.ended.status, len(one.outputs)) for one in everything.values()]} (status, rounds); "
                 f"no record: {lacking or 'none'}", not lacking and all(
                     one.ended.status == 0 and len(one.outputs) == len(plain.outputs) > 0 for one in everything.values()))
    if lacking:
        return
    with open(os.path.join(own.own, MODEL_OF_EXPERTS, "config.json")) as file:
        config = json.load(file)
    layers = config["num_hidden_layers"]
    (learned, _, learned_path), (perfect, balanced, balanced_path), (window, windowed, window_path) = found.values()
    report.check(f"{what}: steps", [(counted(process, one.log), len(one.rows)) for one, process, _ in found.values()], None)
    got, wrong = judge_loads(*(loads(one.rows, unlike_facts(process, one.rows)[2])
                               for one, process in ((perfect, balanced), (window, windowed))))
    report.check(f"{what}: loads", "; ".join(filter(None, [got, *wrong])), not wrong)
    report.check(f"{what}: outputs", *judge_outputs(plain.outputs, learned.outputs, window.outputs))
    got, wrong = judge_kernels(Record(bench.command, learned_path), Record(bench.command, balanced_path), gate_of(own, config), layers,
                               True, FIRST)
    report.check(f"{what}: gates", "; ".join([got, *wrong]), not wrong)
    for kind, one in (("perfect", perfect), ("window", window)):
        got, wrong = judge_proof(one.log, layers)
        if run.is_server:  # a server is killed before the library can write its last message
            got, wrong = "killed at its end", [line for line in one.log.split("\n") if "router stays" in line or "keeps its" in line
                                               or "routers stay" in line]
        if "output is intentionally wrong" not in one.log:
            wrong.append("it did not say that the output is wrong")
        report.check(f"{what}: {kind}, proof", "; ".join([got, *wrong]), not wrong)
    got, wrong = judge_routing(bench.command, [window_path], layers)
    report.check(f"{what}: routing", "; ".join([got, *wrong]), not wrong)
