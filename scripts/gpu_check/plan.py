"""The list of checks, in the order in which they run."""
from dataclasses import replace

from . import arrivals, hang, inside_python, metrics, record, router, router_ranks
from .checks import (FIRST, LAST, STEPS, AgainstWholeRun, ByCommand, Closed, KernelsUnderNcu, Learnt, RankWindows,
                     StepsInARow, Unharmed, Windows)
from .expect import GRAPH_LAUNCH, LLAMA_DECODE, OWN_FUNCTION, OWN_RANGE, READ, STREAM_WAIT, Expected, known


def rank_checks(program):
    return [
        Closed(program, "rank 0 of ranks 1", ("--device", "0"), {"RANK": 0, "TLLMPROF_RANKS": "1"}),
        RankWindows(program, "rank 1 of ranks 1", GRAPH_LAUNCH, [known(FIRST, LAST, grids=True)],
                    variables={"RANK": 1, "TLLMPROF_RANKS": "1"}),
    ]


def all_checks(programs):
    static, shared, per_thread = (programs[f"loop-{name}"] for name in ("static", "shared", "per-thread"))
    torch, hf, jax = programs["torch_graph"], programs["hf_generate"], programs["jax_jit"]
    window = [known(FIRST, LAST, grids=True)]
    # The slowest checks come first. If a slow check began last, no other checks would be left to run at the same
    # time.
    checks = inside_python.checks(programs) + router.checks(programs) + router_ranks.checks(programs)
    checks += arrivals.checks(programs)
    checks += hang.checks(programs)
    checks.append(AgainstWholeRun(hf, [STREAM_WAIT, READ], warmup="capture"))
    checks.append(StepsInARow(jax, READ, 1000, 1050, 1200))
    checks.append(AgainstWholeRun(torch, [GRAPH_LAUNCH]))
    checks.append(AgainstWholeRun(programs["cupy_graph"], [GRAPH_LAUNCH]))
    checks += [Learnt(hf), Learnt(jax, 1200), Learnt(torch), Learnt(programs["cupy_graph"]), Learnt(shared), Learnt(static),
               Learnt(programs["llama.cpp"], None)]
    checks.append(Windows(torch, "open at os._exit", GRAPH_LAUNCH, [known(FIRST, STEPS - 1, kernels=None, waits_after=1)],
                          # `waits_after`: number of waits after the last step. The program waits once more, when it
                          # reads its result.
                          f"{FIRST}-", ("os._exit",)))
    checks.append(AgainstWholeRun(programs["engine"], [GRAPH_LAUNCH], words=("--prefill",)))
    for program in (static, shared, per_thread):
        checks.append(Windows(program, "", GRAPH_LAUNCH, window))
        checks.append(Windows(program, "stream waits", STREAM_WAIT, window))
        checks.append(Windows(program, "4 graphs", replace(GRAPH_LAUNCH, every=4), [known(FIRST, LAST, graphs=4, grids=True)],
                              words=("--graphs", "4")))
        checks.append(Windows(program, "two windows", GRAPH_LAUNCH,
                              [known(100, 120, grids=True), known(140, 150, grids=True)], "100-120,140-150",
                              ("--pause-after", "130")))
    named = [replace(window[0], steps=list(range(FIRST, LAST + 1)))]
    for program in (static, shared):
        checks.append(Windows(program, "a function of its own", OWN_FUNCTION, window))
        checks.append(Windows(program, "ranges of its own", OWN_RANGE, named, words=("--ranges",)))
    # The counted function looks at its own return address, so the library cannot hook its return,
    # and an iteration lasts from one call to the next. The program makes mark N before its N-th
    # call. So mark FIRST comes before the window opens, and mark LAST + 1 before it closes.
    decoded = Expected(FIRST, LAST, list(range(FIRST + 1, LAST + 2)))
    checks.append(Windows(programs["llama.cpp"], "its step", LLAMA_DECODE, [decoded], steps=None))
    checks.append(ByCommand(static, "by tllmprof run", GRAPH_LAUNCH, window))
    for style in ("return", "exit", "_exit", "quick_exit", "term"):
        checks.append(Windows(static, f"open at {style}", GRAPH_LAUNCH, [known(FIRST, STEPS - 1, grids=True)],
                              f"{FIRST}-", ("--end", style)))
    checks.append(Windows(static, "two GPUs, a thread each", GRAPH_LAUNCH, window, words=("--devices", "2"),
                          needs_gpus=2))
    checks += rank_checks(shared)
    checks.append(Unharmed(hf, "cudaStreamSynchronize", warmup="capture"))
    checks.append(Unharmed(torch, "cudaGraphLaunch", ("os._exit",)))
    for program in (jax, programs["cupy_graph"], programs["engine"], static, shared, per_thread):
        checks.append(Unharmed(program, "cudaGraphLaunch"))
    for style in ("exit", "_exit", "quick_exit", "term"):
        checks.append(Unharmed(static, "cudaGraphLaunch", ("--end", style), label=f"without nsys, {style}"))
    checks += metrics.checks(programs)
    checks += record.checks(programs)
    checks.append(KernelsUnderNcu(static))
    checks.append(KernelsUnderNcu(shared))
    return checks
