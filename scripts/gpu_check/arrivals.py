"""Checks reports about several ranks of which one is late for the collectives. The report must name this rank and the
cause of its delay, and no rank if none is late.

For an engine with tensor parallelism, compares the times that the ranks wait and transfer in tllmprof's records with
those in nsys's."""
import glob
import json
import math
import os
import sqlite3
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from . import child, nsys
from .checks import Check
from .router_ranks import NO_MULTICAST, free_port

# FIRST and LAST: the first and the last recorded step. STEPS: the number of steps that the program makes. Step FIRST
# does not count when the check determines which rank is last: CUPTI attaches during this step, at a different time in
# each rank, so that ranks wait for each other.
FIRST, LAST, STEPS = 12, 32, 40
# The numbers of ranks with which the check runs. Each rank has its own GPU.
RANKS = (2, 4)
# The causes that the program can plant in rank 1, each with the texts by which the report may name
# the cause and its details.
CAUSES = {"none": (), "sleep": ("asleep or blocked", "late launch"), "gc": ("GC",), "kernels": ("GPU work",),
          "tokens": ("GPU work, 4.00 times the tokens of the median rank",)}
# The two ways in which the ranks launch their all-reduce, and for each the rule by which the library counts steps.
WAYS = {"graph": "cudaGraphLaunch", "eager": "py:__main__:step"}
# For an engine: ENGINE_FIRST is the first recorded step, and MANY is the number of recorded steps.
# COLLECTIVE has the SQL patterns that match the names of collectives' kernels.
ENGINE_FIRST, MANY = 300, 60
COLLECTIVE = ("%nccl%", "%cross_device_reduce%", "%multimem%")
# Maximum difference, between tllmprof's record and nsys's, in the share of the collectives' time
# for which ranks wait.
APART = 0.05


def unlike_sums(report):
    """Checks the sums of each rank. Its waiting time, transfer time and unmatched time must add up to the time of
    the collectives' kernels. Returns the errors."""
    wrong = []
    for process in report["processes"]:
        ns = sum(one["total_ns"] for one in process["kernels"] if is_collective(one["short_name"]))
        split = sum((one["wait_ns"] or 0) + (one["transfer_ns"] or 0) + one["unmatched_ns"] for one in process["collectives"])
        if abs(split - ns) > 0.02 * ns or not ns:
            wrong.append(f"rank {process['rank']}: {split} ns waited, transferred and not matched, {ns} ns in the collectives' kernels")
    return wrong


def is_collective(name):
    return any(part.strip("%") in name for part in COLLECTIVE)


def judge(cause, report):
    """Judges the output of `tllmprof report --json`. Returns (description, errors)."""
    found = report.get("collectives")
    if not found:
        return "no collectives", ["no collectives"]
    wrong = []
    ranks = {process["rank"]: place for place, process in enumerate(report["processes"])}
    last = [one["last"] for one in found["ranks"]]
    got = f"{found['verdict']}, waits {found['wait_share']:.1%}, transfers {found['transfer_share']:.1%}, last {last}"
    wrong += unlike_sums(report)
    if found["notes"]:
        wrong.append("; ".join(found["notes"]))
    finding = next(one for one in report["findings"] if one["rule"] == "arrival-skew")
    if cause == "none":
        # Without a planted cause, no rank may be late by more than 5 % of its iterations' time.
        if any(rank["late_ns"] > 0.05 * rank["iteration_ns"] * len(found["iterations"]) for rank in found["ranks"]):
            wrong.append(f"a rank is late by {[rank['late_ns'] for rank in found['ranks']]} ns")
        return got, wrong
    late = found["ranks"][ranks[1]]
    first = late["causes"][0] if late["causes"] else {"cause": "nothing", "detail": None}
    called = ", ".join(filter(None, (first["cause"], first["detail"])))
    got += f", rank 1: {called}"
    steps = [one["last"] for one in found["iterations"][1:]]
    if steps.count(ranks[1]) < len(steps):
        wrong.append(f"rank 1 is last in {steps.count(ranks[1])} of {len(steps)}")
    if not called.startswith(CAUSES[cause]):
        wrong.append(f"{called}, not {' or '.join(CAUSES[cause])}")
    if finding["verdict"] != "yes" or "rank 1" not in finding["evidence"]:
        wrong.append(f"arrival-skew: {finding['verdict']}: {finding['evidence']}")
    return got, wrong


def reported(bench, words, base, rule, ranks, variables, **more):
    """Runs the command `words` once per rank, at the same time. Returns (the output of `tllmprof report --json`,
    None), or (None, the reason why there is no report). `variables(window, rule, …)` returns a rank's environment."""
    port = free_port()

    def one(rank):
        given = variables(f"{FIRST}-{LAST}", rule, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=port, TLLMPROF_TRACE=f"{base}-%r.tllmprof", TLLMPROF_KERNELS=STEPS, **more, **NO_MULTICAST)
        return child.run(words, given, 100)

    with ThreadPoolExecutor(ranks) as pool:
        ran = list(pool.map(one, range(ranks)))
    failed = [f"rank {rank}: {ended.why()}" for rank, ended in enumerate(ran) if ended.status != 0]
    if failed:
        print(*(ended.err[-2500:] for ended in ran), sep="\n", file=sys.stderr, flush=True)
        return None, "; ".join(failed)
    shown = child.run([bench.command, "report", "--json", *(f"{base}-{rank}.tllmprof" for rank in range(ranks))], child.variables())
    return (None, f"no report: {shown.why()}") if shown.status != 0 else (json.loads(shown.out), None)


def measured(bench, command, base, cause, way, ranks, variables):
    """Runs ranks with the cause planted in the second one, and judges the report. Returns (description, True if the
    report is right). `variables(window, rule, …)` returns a rank's environment."""
    batch = "__main__:step=requests:requests,tokens:tokens,decode_tokens:tokens"
    report, why = reported(bench, [*command, str(STEPS), cause, way], base, WAYS[way], ranks, variables, TLLM_PROFILE_RECORD_GC=1, TLLMPROF_BATCH=batch)
    if report is None:
        return why, False
    got, wrong = judge(cause, report)
    return got + (f" ({'; '.join(wrong[:4])})" if wrong else ""), not wrong


def judge_splits(report):
    """Judges the report about communicators that torch split from the one of all ranks. Each rank must have two
    communicators: one for all ranks and one for its pair. Returns (description, True if right)."""
    parts, wrong, ranks = {}, [], len(report["processes"])
    for process in report["processes"]:
        rank, made = process["rank"], process["communicators"]
        if [(one["rank"], one["size"]) for one in made] != [(rank, ranks), (rank % 2, 2)]:
            wrong.append(f"rank {rank} is in {made}")
        parts.setdefault("all", set()).add(made[0]["id"] if made else None)
        parts.setdefault(f"pair {rank // 2}", set()).add(made[-1]["id"] if made else None)
    ids = set().union(*parts.values())
    if None in ids or len(ids) != len(parts) or any(len(one) != 1 for one in parts.values()):
        wrong.append(f"the ids are {parts}")
    matched = sum(one["matched"] for process in report["processes"] for one in process["collectives"])
    return "; ".join(wrong[:3]) or f"{len(parts) - 1} pairs, each known by both ranks; {matched} collectives matched", not wrong and matched > 0


class OfRanks(Check):
    """A check with several ranks, each on its own GPU."""

    def __init__(self, program, ranks, label, rule, wanted):
        self.ranks = ranks
        super().__init__(program, f"{ranks} ranks{label}", f"{rule}, {FIRST}-{LAST}", wanted, apart=True)

    def skip(self, bench):
        if bench.gpus < self.ranks:
            return f"{bench.gpus} GPU"
        return self.program.missing or (None if bench.command else "no tllmprof command built")


class LateRank(OfRanks):
    """A check with ranks of which the second is late because of `cause`."""

    def __init__(self, program, cause, way, ranks):
        self.cause, self.way = cause, way
        wanted = "no rank is named" if cause == "none" else f"rank 1 is last in all steps but the first, by {' or '.join(CAUSES[cause])}"
        super().__init__(program, ranks, f", {way}, late by {cause}", WAYS[way], wanted)

    def measure(self, bench):
        base = os.path.join(bench.folder, f"arrivals-{self.ranks}-{self.way}-{self.cause}")
        return self.row(*measured(bench, self.program.command, base, self.cause, self.way, self.ranks, bench.shimmed))


class Splits(OfRanks):
    """A check with pairs of ranks. torch splits the communicator of each pair from the communicator of all
    ranks."""

    def __init__(self, program, ranks):
        super().__init__(program, ranks, "", WAYS["eager"], "the communicator of each pair is known by both")

    def measure(self, bench):
        base = os.path.join(bench.folder, f"splits-{self.ranks}")
        report, why = reported(bench, [*self.program.command, str(STEPS)], base, WAYS["eager"], self.ranks, bench.shimmed)
        return self.row(*((why, False) if report is None else judge_splits(report)))


def checks(programs):
    late = [LateRank(programs["arrivals"], cause, way, ranks) for ranks in RANKS for way in WAYS for cause in CAUSES]
    return late + [Splits(programs["splits"], ranks) for ranks in RANKS]


def check_custom(bench, report, own, run):
    """Makes the check of LateRank with an engine's own all-reduce (engines.py)."""
    def variables(window, rule, **more):
        return own.variables(LD_PRELOAD=bench.shim, TLLM_PROFILE_START_STOP=window, TLLMPROF_STEP=rule, CUSTOM=own.name, **more)

    what, ranks, way = f"{own.name}, {run.label}", run.variables["TP"], run.variables["WAY"]
    if bench.gpus < ranks:
        return report.check(what, f"{bench.gpus} GPU", None)
    for cause in CAUSES:
        report.check(f"{what}, late by {cause}",
                     *measured(bench, own.words(run), os.path.join(own.records(run), "rank"), cause, way, ranks, variables))
    return None


def waiting(ranks):
    """Returns (the share of the collectives' time that ranks wait for the last rank, the median duration in ns, the
    number). The argument has for each rank an ordered list of (start, end), one for each kernel of a collective. The
    n-th kernel of one rank belongs to the n-th of the others, except for kernels at the ends that some rank lacks.
    Ranks leave a collective at the same time, so the last rank's kernel is the shortest."""
    first, *others = ranks
    columns = [first]
    for other in others:
        def apart(skip, other=other):
            pairs = list(zip(first[max(0, skip):], other[max(0, -skip):]))
            return statistics.median(abs(one[1] - two[1]) for one, two in pairs) if pairs else math.inf

        skip = min(range(-MANY, MANY + 1), key=lambda skip: (apart(skip), abs(skip)))
        columns.append([other[at - skip] if 0 <= at - skip < len(other) else None for at in range(len(first))])
    whole = [row for row in zip(*columns) if None not in row]
    waits = sum(max(start for start, _ in row) - start for row in whole for start, _ in row)
    all_ns = [end - start for row in whole for start, end in row]
    return waits / max(1, sum(all_ns)), statistics.median(all_ns), len(whole)


def by_nsys(database):
    """Returns the result of `waiting` for an nsys export, in which each GPU is a rank."""
    names = " OR ".join("s.value LIKE ?" for _ in COLLECTIVE)
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT k.deviceId, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
                          f"WHERE {names} ORDER BY k.start", COLLECTIVE).fetchall()
    db.close()
    devices = sorted({device for device, _, _ in rows})
    return waiting([[(start, end) for device, start, end in rows if device == one] for one in devices]) + (len(devices),)


def check_engine(bench, report, own, run):
    """Compares waits and transfers by tllmprof and by nsys, for an engine (engines.py) whose ranks share one
    model."""
    what, ranks = f"{own.name}, {run.label}", run.variables["TP"]
    if bench.gpus < ranks:
        return report.check(what, f"{bench.gpus} GPU", None)
    folder = own.records(run)
    window = (ENGINE_FIRST, ENGINE_FIRST + MANY - 1)
    made = own.made(run, "kernels", own.settings(window, TLLMPROF_TRACE=f"{folder}/%p.tllmprof", TLLMPROF_KERNELS=MANY))
    read = child.run([bench.command, "report", "--json", *glob.glob(f"{folder}/*.tllmprof")], child.variables())
    if made.ended.status != 0 or read.status != 0:
        report.raw(what, made.ended)
        return report.check(what, f"{made.ended.why()}; {read.why()}", False)
    shown = json.loads(read.out)
    shown["processes"] = [process for process in shown["processes"] if process["collectives"]]
    found, names = shown["collectives"], [process["rank"] for process in shown["processes"]]
    if not found:
        return report.check(what, f"no collectives in {len(names)} processes' kernels", False)
    # Ranks open their windows at different times. So at the ends of a window, a rank has kernels of
    # collectives that other ranks did not record. Up to a tenth of the kernels may be unmatched for
    # this reason.
    matched = sum(one["matched"] for process in shown["processes"] for one in process["collectives"])
    all_of_them = sum(one["count"] for process in shown["processes"] for one in process["collectives"])
    wrong = unlike_sums(shown) + (found["notes"] if matched < 0.9 * all_of_them else [])
    if sorted(names) != list(range(ranks)):
        wrong.append(f"ranks {names}")
    ours = found["wait_share"] / (found["wait_share"] + found["transfer_share"])
    report.check(what, f"{found['verdict']}, {ours:.1%} of the time of {matched} of {all_of_them} collectives is waiting, "
                 f"last {[one['last'] for one in found['ranks']]}"
                 + (f" ({'; '.join(wrong[:4])})" if wrong else ""), not wrong)
    base = nsys.report_base(bench.folder, what)
    nsys.read(bench.nsys, base, own.under_nsys(run, base, own.settings(window), "node").ended)
    share, median, many, devices = max((by_nsys(one) for one in glob.glob(f"{glob.escape(base)}*.sqlite")), key=lambda one: one[2])
    return report.check(f"{what}: nsys", f"{share:.1%} is waiting, of {many} collectives on {devices} GPUs, {median / 1000:.1f} us each",
                        devices == ranks and many > 0 and abs(share - ours) <= APART)
