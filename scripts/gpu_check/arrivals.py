"""Two ranks of which one comes late to the collectives: it is named with its cause, and none is where none is late."""
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from . import child
from .checks import Check
from .router_ranks import NO_MULTICAST, free_port

FIRST, LAST, STEPS = 12, 31, 40
RANKS = 2
# By what is planted in rank 1: what it may be called.
CAUSES = {"none": (), "sleep": ("asleep or blocked", "late launch"), "gc": ("GC",), "kernels": ("GPU work",)}


def judge(cause, report):
    """(in words, what is wrong) of what `tllmprof report --json` says."""
    found = report.get("collectives")
    if not found:
        return "no collectives", ["no collectives"]
    wrong = []
    ranks = {process["rank"]: place for place, process in enumerate(report["processes"])}
    last = [one["last"] for one in found["ranks"]]
    got = f"{found['verdict']}, waits {found['wait_share']:.1%}, transfers {found['transfer_share']:.1%}, last {last}"
    for process in report["processes"]:
        ns = sum(one["total_ns"] for one in process["kernels"] if one["short_name"].startswith("nccl"))
        split = sum((one["wait_ns"] or 0) + (one["transfer_ns"] or 0) for one in process["collectives"])
        if abs(split - ns) > 0.02 * ns:
            wrong.append(f"rank {process['rank']}: {split} ns waited and transferred, {ns} ns in NCCL's kernels")
    if found["notes"]:
        wrong.append("; ".join(found["notes"]))
    finding = next(one for one in report["findings"] if one["rule"] == "arrival-skew")
    if cause == "none":
        # The ranks are as they are: neither is late by much.
        if any(rank["late_ns"] > 0.05 * rank["iteration_ns"] * len(found["iterations"]) for rank in found["ranks"]):
            wrong.append(f"a rank is late by {[rank['late_ns'] for rank in found['ranks']]} ns")
        return got, wrong
    late = found["ranks"][ranks[1]]
    called = late["causes"][0]["cause"] if late["causes"] else "nothing"
    got += f", rank 1: {called}"
    steps = [one["last"] for one in found["iterations"]]
    if steps.count(ranks[1]) < len(steps):
        wrong.append(f"rank 1 is last in {steps.count(ranks[1])} of {len(steps)}")
    if called not in CAUSES[cause]:
        wrong.append(f"{called}, not {' or '.join(CAUSES[cause])}")
    if finding["verdict"] != "yes" or "rank 1" not in finding["evidence"]:
        wrong.append(f"arrival-skew: {finding['verdict']}: {finding['evidence']}")
    return got, wrong


class LateRank(Check):
    """Two ranks, each on a GPU of its own, of which the second is late by what `cause` is."""

    def __init__(self, program, cause):
        self.cause = cause
        wanted = "no rank is named" if cause == "none" else f"rank 1 is last in all steps, by {' or '.join(CAUSES[cause])}"
        super().__init__(program, f"late by {cause}", f"cudaGraphLaunch, {FIRST}-{LAST}", wanted, apart=True)

    def skip(self, bench):
        if bench.gpus < RANKS:
            return f"{bench.gpus} GPU"
        return self.program.missing or (None if bench.command else "no tllmprof command built")

    def measure(self, bench):
        base = os.path.join(bench.folder, f"arrivals-{self.cause}")
        port = free_port()

        def one(rank):
            variables = bench.shimmed(f"{FIRST}-{LAST}", "cudaGraphLaunch", RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=RANKS,
                                      MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TLLMPROF_TRACE=f"{base}-%r.tllmprof",
                                      TLLMPROF_KERNELS=STEPS, TLLM_PROFILE_RECORD_GC=1, **NO_MULTICAST)
            return child.run([*self.program.command, str(STEPS), self.cause], variables, 100)

        with ThreadPoolExecutor(RANKS) as pool:
            ran = list(pool.map(one, range(RANKS)))
        failed = [f"rank {rank}: {ended.why()}" for rank, ended in enumerate(ran) if ended.status != 0]
        if failed:
            print(*(ended.err[-2500:] for ended in ran), sep="\n", file=sys.stderr, flush=True)
            return self.row("; ".join(failed), False)
        records = [f"{base}-{rank}.tllmprof" for rank in range(RANKS)]
        shown = child.run([bench.command, "report", "--json", *records], child.variables())
        if shown.status != 0:
            return self.row(f"no report: {shown.why()}", False)
        got, wrong = judge(self.cause, json.loads(shown.out))
        return self.row(got + (f" ({'; '.join(wrong[:4])})" if wrong else ""), not wrong)


def checks(programs):
    return [LateRank(programs["arrivals"], cause) for cause in CAUSES]
