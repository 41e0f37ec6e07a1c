"""Models with experts whose routers are replaced: on a GPU, balanced inside the window and learned outside."""
import glob
import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from . import child
from .checks import Check

FIRST, LAST, STEPS = 10, 19, 30


class PerfectRouter(Check):
    """`TLLMPROF_PERFECT_ROUTER=window`: learned and balanced in turn in one program, and in one captured graph."""

    def __init__(self, program, model, how):
        self.words = (model, how, str(STEPS))
        super().__init__(program, f"router {model} {how}", f"cudaGraphLaunch, {FIRST}-{LAST}",
                         f"loads of the experts at most 1 apart in steps {FIRST} to {LAST}, the learned router's outside")

    def skip(self, bench):
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def truth(self, bench, name, **more):
        log = os.path.join(bench.folder, f"{'-'.join(self.words)}-{name}.json")
        said = []
        # Not every version of PyTorch captures the first.
        for experts in ("grouped_mm", "batched_mm"):
            ended = child.run([*self.program.command, *self.words],
                              bench.shimmed(f"{FIRST}-{LAST}", "cudaGraphLaunch", TRUTH_LOG=log, MOE_EXPERTS=experts,
                                            TORCHINDUCTOR_CACHE_DIR=log + ".inductor", **more))
            if ended.status == 0:
                with open(log) as file:
                    return ended, json.load(file)
            said.append(f"{name}, {experts}: {ended.err[-1500:]}")
        print("\n".join(said), file=sys.stderr, flush=True)
        raise RuntimeError(f"{name}: {ended.why()}; the shim said: {ended.said_by_shim()}")

    def measure(self, bench):
        base = os.path.join(bench.folder, "-".join(self.words))
        # Side by side: their speeds are told, and not judged.
        with ThreadPoolExecutor() as pool:
            windowed = pool.submit(self.truth, bench, "window", TLLMPROF_PERFECT_ROUTER="window",
                                   TLLMPROF_TRACE=base + "-window-%p.tllmprof")
            learned = pool.submit(self.truth, bench, "learned", TLLMPROF_TRACE=base + "-learned-%p.tllmprof")
            perfect = pool.submit(self.truth, bench, "perfect", ENABLE_PERFECT_ROUTER=1,
                                  TLLMPROF_TRACE=base + "-perfect-%p.tllmprof")
            (ended, windowed), (_, learned), (_, perfect) = windowed.result(), learned.result(), perfect.result()
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
        # What Inductor makes of the model around an operator that it does not know is rounded otherwise.
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
        gemms = [found["gemms"] for found in (learned, perfect)]
        if not 0 < gemms[0] <= gemms[1]:
            wrong.append(f"kernels of products: {gemms[0]} learned, {gemms[1]} balanced")
        pace = [1 / statistics.median(step["seconds"] for step in found["steps"][2:]) for found in (learned, perfect)]
        got = (f"loads {max(step['spread'] for step in inside)} apart inside, "
               f"{statistics.median(step['spread'] for step in outside):.0f} outside; {gemms[0]} kernels of "
               f"products a step learned, {gemms[1]} balanced ({learned['experts']}); "
               f"{pace[0]:.1f} steps/s learned, {pace[1]:.1f} balanced; {self.report(bench, base)}")
        if wrong:
            got += f" ({'; '.join(wrong)}; the shim said: {ended.said_by_shim()})"
        return self.row(got, not wrong)

    def report(self, bench, base):
        """What the learned router's record and `tllmprof compare` say, in short."""
        said = []
        found = {name: sorted(glob.glob(glob.escape(f"{base}-{name}-") + "*.tllmprof"))[:1]
                 for name in ("window", "learned", "perfect")}
        shown = child.run([bench.command, "report", "--json", *found["window"]], child.variables())
        if shown.status == 0:
            routing = json.loads(shown.out)["processes"][0].get("routing")
            said.append("routing: " + (f"{len(routing['layers'])} layers, max/mean {routing['mean']:.2f}" if routing else
                                       "not reported"))
        else:
            said.append(f"report: {shown.why()}")
        compared = child.run([bench.command, "compare", *found["learned"], *found["perfect"]], child.variables())
        if compared.status == 0:
            lines = [line for line in compared.out.splitlines() if line.strip()]
            said.append("compare: " + (lines[-1].strip() if lines else "nothing"))
            print("\n".join(lines), file=sys.stderr, flush=True)
        else:
            said.append(f"compare: {compared.why()}"[:100])
        return "; ".join(said)


def checks(programs):
    program = programs["moe_router"]
    return [PerfectRouter(program, model, how) for model in ("gpt_oss", "deepseek_v3")
            for how in ("eager", "compiled", "graph")]
