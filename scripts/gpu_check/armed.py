"""What the library costs with its window far off, in processor time a step.

Processes of one program live at the same time on one core and run in turn, a short block each, as in throughput.py; two of them are
without the library. One process may be dearer than its twin for as long as it lives, so they are started afresh again and again, and a
start is one value: its interval is by Student's t over the starts.
"""
import os
import statistics

from . import inside, throughput
from .kernels import Report

NAME = "armed"
AIM = 0.998
ROUNDS, BLOCK_SECONDS = 12, 0.06
STEP_ROUNDS, STEP_SECONDS = 20, 0.25
# Student's t for a 95 % interval, by the number of starts.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
TITLE = ("## Armed", "", "Processor time a step without the library, of that with it and its window far off: the mean of the starts' medians "
         f"and its 95 % interval; the aim is {AIM}. *Again*: a second process without it, which is the noise. Of replays, the steps a second, too.")


def loops(programs):
    static, torch = programs["loop-static"], programs["torch_graph"]
    return [throughput.Loop(static, "decode", "C: graph of 20 kernels, 1 kernel, wait", ("--decode",), 10),
            throughput.Loop(static, "launches", "C: 150 kernels, 1 wait", ("--waits", "1", "--launches", "150"), 10),
            throughput.Loop(torch, "decode", "torch: graph of 20 kernels, 1 kernel, wait", ("--decode",), 6)]


def ways(folder):
    """As throughput.WAYS."""
    recorded = dict(throughput.closed("auto"), TLLMPROF_TRACE=os.path.join(folder, "armed-%p.tllmprof"))
    return (("without", None), ("again", None), ("auto", throughput.closed("auto")), ("auto, with a record", recorded))


def of_starts(starts):
    """Of each way but the first, a start's median of plain ÷ its own; `starts`: what throughput.run_in_turn gave of each."""
    ratios = [throughput.ratios(times) for times in starts]
    return [[1 / statistics.median(start[way]) for start in ratios] for way in range(1, len(ratios[0]))]


def interval(values):
    """(mean, least, most)"""
    mean, half = statistics.mean(values), STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def judge(values):
    """(in words, whether the aim is met or None where the interval does not say)."""
    mean, least, most = interval(values)
    return f"{mean:.4f} ({least:.4f}–{most:.4f}) in {len(values)} starts", True if least >= AIM else False if most < AIM else None


def measured(bench, report, loop, ways=ways):
    # All processes run on one core, so that the cores' different speeds do not matter.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        starts = [throughput.run_in_turn(loop, bench, ROUNDS, BLOCK_SECONDS, False, ways(bench.folder), throughput.Block.processor_ns)[0]
                  for _ in range(loop.starts)]
    finally:
        os.sched_setaffinity(0, before)
    plain = statistics.median(one for start in starts for one in start[0])
    names = [name for name, _ in ways(bench.folder)][1:]
    for name, values in zip(names, of_starts(starts)):
        got, ok = judge(values)
        report.check(f"{loop.text}: {name}", f"{got}; {plain / 1000:.2f} us without", ok if name != "again" else None)


def ways_of_layers(folder):
    """As `ways`: the graphs are captured with layers on, and replayed with all windows behind them."""
    def passed(**more):
        return dict(throughput.closed("cudaGraphLaunch"), TLLMPROF_TRACE=os.path.join(folder, "layers-%p.tllmprof"), TLLMPROF_KERNELS=20, **more)

    return (("without", None), ("again", None), ("kernels", passed()), ("kernels and layers", passed(TLLMPROF_LAYERS=1)))


def judge_steps(ratios, noise):
    """(in words, whether the two 95 % intervals of medians overlap), of steps a second of those without the library and of a second process
    without it."""
    (ratio, least, most), (_, noise_least, noise_most) = inside.interval(ratios), inside.interval(noise)
    return (f"{ratio:.4f} ({least:.4f}–{most:.4f}) of the steps a second in {len(ratios)} blocks in turn; again {noise_least:.4f}–{noise_most:.4f}",
            least <= noise_most and noise_least <= most)


def measured_steps(bench, report, loop):
    ways = ways_of_layers(bench.folder)
    speeds, _ = throughput.run_in_turn(loop, bench, STEP_ROUNDS, STEP_SECONDS, False, ways)
    _, again, *others = throughput.ratios(speeds)
    for (name, _), ratios in zip(ways[2:], others):
        report.check(f"{loop.text}: {name}, steps a second", *judge_steps(ratios, again))


def table(bench, cuda, log):
    """(lines of the page, how many were as wanted, how many were not)."""
    report = Report(NAME, log)
    for loop in loops(bench.programs):
        if loop.program.missing:
            report.check(loop.text, f"skipped: {loop.program.missing}", None)
        else:
            report.guarded(measured, bench, loop)
    replays = throughput.Loop(bench.programs["torch_graph"], "decode", "torch: graph of 20 kernels, replayed", ("--decode",), 5)
    if not replays.program.missing:
        report.guarded(measured, bench, replays, ways_of_layers)
        report.guarded(measured_steps, bench, replays)
    return report.page(*TITLE)
