"""Checks that the library replaces the routers of models with experts, on a GPU. A router chooses the experts for each
token. Inside the window, the library's router must load all experts equally (balanced); outside, the model's own
(learned) router must be used."""
import glob
import json
import os
import re
import statistics
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from . import child
from .checks import Check
from .kernels import demangled, short
from .record_file import Record

FIRST, LAST, STEPS = 10, 19, 30
# Number of steps in the window whose kernels are recorded.
INNER = 6
# First and last iteration of the window, and number of steps, of the runs whose speed is measured.
STEADY, STEADY_END, STEADY_STEPS = 100, 399, 420
# Maximum relative difference between the speed that the program itself measures and the speed that
# follows from the record.
CLOCK = 0.03
# Parts of the names of kernels that multiply matrices, as cuBLAS and Inductor name them.
PRODUCTS = ("gemm", "gemv", "nvjet", "cutlass", "splitk", "_mm")


def run(check, bench, words, name, window, implementations, **more):
    """Runs a program with experts. If an implementation of experts fails, tries the next one in `implementations`.
    Returns (how the program ended, the data that it wrote itself, its records)."""
    base = os.path.join(bench.folder, "-".join(words) + "-" + name)
    said = []
    for experts in implementations:
        log, records = f"{base}-{experts}.json", f"{base}-{experts}"
        ended = child.run([*check.program.command, *words],
                          bench.shimmed(window, "cudaGraphLaunch", TRUTH_LOG=log, MOE_EXPERTS=experts,
                                        TLLMPROF_TRACE=records + "-%p.tllmprof",
                                        TORCHINDUCTOR_CACHE_DIR=log + ".inductor", **more))
        if ended.status == 0:
            with open(log) as file:
                return ended, json.load(file), sorted(glob.glob(glob.escape(records) + "-*.tllmprof"))
        said.append(f"{name}, {experts}: {ended.err[-1500:]}")
    print("\n".join(said), file=sys.stderr, flush=True)
    raise RuntimeError(f"{name}: {ended.why()}; the shim said: {ended.said_by_shim()}")


def products(counts):
    return Counter({name: n for name, n in counts.items() if any(word in name.lower() for word in PRODUCTS)})


def missing(learned, perfect):
    """Describes the matrix products that a balanced run launches less often than a learned one. `learned`,
    `perfect`: number per step by the kernel's mangled name."""
    return [f"{short(demangled([name])[name])}: {n:g} a step learned, {perfect.get(name, 0):g} balanced"
            for name, n in learned.items() if perfect.get(name, 0) < n]


def named_alike(names, counts):
    """Returns the kernels in `counts` whose demangled names are among `names`. If there is none, compares only the
    names of the functions."""
    plain = demangled(counts)
    for same in (lambda name: name.replace(" ", ""), short):
        wanted = {same(name) for name in names}
        found = {name: n for name, n in counts.items() if same(plain[name]) in wanted}
        if found:
            return found
    return {}


def judge_kernels(learned, perfect, gate, layers, is_compiled=False, first=FIRST):
    """Compares the kernels of a run with learned routers and a run with balanced ones: the latter must still
    compute each gate. Returns (description, errors). `gate`: names of the kernels of one gate, which a compiler may
    have changed. `first`: the first iteration with recorded kernels."""
    if not all(len(record.of) == 1 and record.inner[0][0] == first for record in (learned, perfect)):
        return "no kernels", [f"kernels of iterations {learned.inner} and {perfect.inner}, refused {learned.refused}, "
                              f"{perfect.refused}"]
    ours, balanced = [{name: n / (last + 1 - first) for name, n in products(record.counts(0)).items()}
                      for record in (learned, perfect) for first, last in record.inner]
    wrong = missing(ours, balanced)
    if not ours:
        wrong.append("no products among the kernels")
    wrong += [f"{record.dropped} events lost" for record in (learned, perfect) if record.dropped]
    of_gate = named_alike(gate, ours)
    there = sum(balanced.get(name, 0) for name in of_gate)
    if (sum(of_gate.values()) < layers and not is_compiled) or there < sum(of_gate.values()):
        wrong.append(f"the gate's kernels by itself are {gate}")
    names = ", ".join(name.removeprefix("void ")[:100] for name in demangled(of_gate).values())
    return (f"{sum(ours.values()):g} kernels of products a step learned, {sum(balanced.values()):g} balanced; the gate's is "
            f"{names or 'not found'}: {sum(of_gate.values()):g} and {there:g} a step in {layers} layers"), wrong


def judge_proof(err, layers):
    """Judges the shim's last message about the routers. It must say that each layer used the experts that the shim's
    table gives. Returns (description, errors)."""
    found = re.search(r"^tllmprof: perfect router: (\d+) layers, \d+ calls[^,\n]*(.*)$", err, re.MULTILINE)
    if not found:
        return "no last line", ["it did not count its layers"]
    named = [line.removeprefix("tllmprof: ") for line in err.split("\n") if "keeps its learned router" in line]
    rest = found[2].removeprefix(", ")
    wrong = [] if int(found[1]) == layers and not rest else [f"{found[1]} of {layers} layers, {rest or 'nothing else'}"]
    return f"{found[1]} layers, {rest or 'all proved'}", wrong + named


def judge_routing(command, records, layers):
    """Judges the report's data about the learned routers, from records of runs. Returns (description, errors)."""
    shown = child.run([command, "report", "--json", *records], child.variables())
    if shown.status != 0:
        return "no report", [f"report: {shown.why()}"]
    routing = json.loads(shown.out)["processes"][0].get("routing")
    if not routing:
        return "no routing", ["the report has no routing"]
    found = len(routing["layers"])
    wrong = [] if found == layers and routing["mean"] > 1 else [f"{layers} layers, more than 1 wanted"]
    return f"routing: {found} layers, max/mean {routing['mean']:.2f}", wrong


class PerfectRouter(Check):
    """Checks `TLLMPROF_PERFECT_ROUTER=window`: in one program and one captured graph, routers are learned outside the
    window and balanced inside."""

    def __init__(self, program, model, how):
        self.words = (model, how, str(STEPS))
        super().__init__(program, f"router {model} {how}", f"cudaGraphLaunch, {FIRST}-{LAST}",
                         f"loads of the experts at most 1 apart in steps {FIRST} to {LAST}, the learned router's outside; "
                         "no layer not proved")

    def skip(self, bench):
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def measure(self, bench):
        # Implementations of experts. The second is used if the first fails, because some versions of PyTorch cannot
        # capture the first.
        ways, window = ("grouped_mm", "batched_mm"), f"{FIRST}-{LAST}"
        kernels = {"TLLMPROF_KERNELS": INNER}
        # These runs may overlap, because only other runs (RoutedPace) measure the speed.
        with ThreadPoolExecutor() as pool:
            windowed = pool.submit(run, self, bench, self.words, "window", window, ways, TLLMPROF_PERFECT_ROUTER="window")
            learned = pool.submit(run, self, bench, self.words, "learned", window, ways, OF_GATE=1, **kernels)
            perfect = pool.submit(run, self, bench, self.words, "perfect", window, ways, ENABLE_PERFECT_ROUTER=1, **kernels)
            (ended, windowed, records), (_, learned, plain_records), (balanced, perfect, balanced_records) = (
                windowed.result(), learned.result(), perfect.result())
        wrong = []
        inside = windowed["steps"][FIRST:LAST + 1]
        outside = windowed["steps"][:FIRST] + windowed["steps"][LAST + 1:]
        plain = learned["steps"][:FIRST] + learned["steps"][LAST + 1:]
        for what, steps in (("window", inside), ("perfect", perfect["steps"])):
            apart = max(step["spread"] for step in steps)
            if apart > 1:
                wrong.append(f"{what}: loads {apart} apart")
        if min(step["spread"] for step in outside) <= 1:
            wrong.append("balanced outside the window")
        # With the library's operator in the model, Inductor compiles the model in another way, with other rounding. So
        # steps of a compiled run are compared with that run's own first step outside the window.
        base_logits = outside[0]["logits"] if self.words[1] == "compiled" else plain[0]["logits"]
        unlike = sum(step["logits"] != base_logits for step in outside)
        if unlike:
            wrong.append(f"{unlike} steps outside the window have other logits than without: {outside[0]['logits']}, "
                         f"{outside[-1]['logits']}, not {base_logits}")
        if any(step["logits"] == base_logits for step in inside):
            wrong.append("the window changes nothing")
        if any(step["tokens"] != [learned["expected"]] for step in inside + outside):
            wrong.append(f"tokens: {inside[0]['tokens']}, not {learned['expected']}")
        if "output is intentionally wrong" not in ended.err:
            wrong.append("it did not say that the output is wrong")
        proof, unlike = judge_proof(ended.err, learned["layers"])
        wrong += [f"window: {what}" for what in unlike]
        wrong += [f"perfect: {what}" for what in judge_proof(balanced.err, learned["layers"])[1]]
        kernels, unlike = judge_kernels(*(Record(bench.command, found[0]) for found in (plain_records, balanced_records)),
                                        learned["gate"], learned["layers"], self.words[1] == "compiled")
        wrong += unlike
        routing, unlike = judge_routing(bench.command, records, learned["layers"])
        wrong += unlike
        got = (f"loads {max(step['spread'] for step in inside)} apart inside, "
               f"{statistics.median(step['spread'] for step in outside):.0f} outside ({learned['experts']}); {proof}; {kernels}; "
               f"{routing}")
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)


class RoutedPace(Check):
    """Measures how much faster balanced routers are. Two runs, with learned and with balanced routers, have the GPU
    to themselves one after the other."""

    def __init__(self, program, model):
        self.words = (model, "pace", str(STEADY_STEPS))
        super().__init__(program, f"routed pace {model}", f"cudaGraphLaunch, {STEADY}-{STEADY_END}",
                         f"compare's interval and verdict, its rates within {CLOCK:.0%} of the program's clock", apart=True)

    def skip(self, bench):
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def measure(self, bench):
        window = f"{STEADY}-{STEADY_END}"
        _, learned, base = run(self, bench, self.words, "learned", window, ("grouped_mm",))
        _, perfect, other = run(self, bench, self.words, "perfect", window, ("grouped_mm",), ENABLE_PERFECT_ROUTER=1)
        compared = child.run([bench.command, "compare", "--json", *base, *other], child.variables())
        if compared.status != 0:
            return self.row(f"compare: {compared.why()}", False)
        got, wrong = judge_pace(json.loads(compared.out), [own_rate(found["begins"]) for found in (learned, perfect)],
                                learned["expected"])
        return self.row(got + (f" ({'; '.join(wrong)})" if wrong else ""), not wrong)


def own_rate(begins):
    """Returns the iterations per second in the window, from the times when the program began its iterations. The
    window's first iteration is left out, because it waits for the window to open."""
    return (STEADY_END - STEADY - 1) / (begins[STEADY_END] - begins[STEADY + 1])


def judge_pace(comparison, own, pairs):
    """Checks the speeds by `tllmprof compare` against the program's own iterations per second. Returns
    (description, errors)."""
    rates = next(([measure["base"], measure["other"]] for measure in comparison["measures"]
                  if measure["name"] == "iterations a second"), [0, 0])
    wrong = [f"{what}: {theirs:.1f} iterations/s by compare, {ours:.1f} by the program"
             for what, theirs, ours in zip(("learned", "balanced"), rates, own) if abs(theirs / ours - 1) > CLOCK]
    routing, change = comparison.get("routing") or {}, comparison.get("change") or {}
    interval = change.get("interval")
    if not interval or not interval[0] <= change["relative"] <= interval[1]:
        wrong.append(f"no interval: {change}")
    if comparison["verdict"] not in ("faster", "slower", "equal", "cannot tell") or "significant" not in routing:
        wrong.append(f"no verdict: {comparison['verdict']}, routing {routing}")
    shown = "no interval" if not interval else f"{change['relative']:+.1%} [{interval[0]:+.1%}, {interval[1]:+.1%}]"
    verdict = "is" if routing.get("significant") else "is not"
    return (f"{rates[0]:.1f} steps/s learned, {rates[1]:.1f} balanced, {pairs} pairs of token and expert a layer and step; "
            f"{shown}; {comparison['text']}; routing imbalance {verdict} significant"), wrong


def checks(programs):
    program = programs["moe_router"]
    models = ("gpt_oss", "deepseek_v3")
    return ([PerfectRouter(program, model, how) for model in models for how in ("eager", "compiled", "graph")] +
            [RoutedPace(program, model) for model in models])
