"""Measures the library's cost in processor time per step, while the first iteration of its window is never reached.

Several processes of one program run on one core in turn, a short block of steps each, like in throughput.py. Two of
them run without the library. One process may be slower than an equal one for its whole life. So the processes are
started several times, and each start gives one value. The 95 % interval over these values is by Student's t."""
import os
import statistics

from . import inside, throughput
from .kernels import Report

NAME = "armed"
AIM = 0.998
ROUNDS, BLOCK_SECONDS = 12, 0.06
STEP_ROUNDS, STEP_SECONDS = 20, 0.25
# Factors of Student's t distribution for a 95 % confidence interval of a mean, by the number of values. Each start of a
# program gives one value.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
TITLE = ("## Armed", "", "Processor time a step without the library, of that with it and its window far off: the mean of the starts' medians "
         f"and its 95 % interval; the aim is {AIM}. *Again*: a second process without it, which is the noise. Of replays, the steps a second, too.")


def loops(programs):
    static, torch = programs["loop-static"], programs["torch_graph"]
    return [throughput.Loop(static, "decode", "C: graph of 20 kernels, 1 kernel, wait", ("--decode",), 10),
            throughput.Loop(static, "launches", "C: 150 kernels, 1 wait", ("--waits", "1", "--launches", "150"), 10),
            throughput.Loop(torch, "decode", "torch: graph of 20 kernels, 1 kernel, wait", ("--decode",), 6)]


def ways(folder):
    """Returns the ways to run a program: [(name, the library's variables; None: without the library)], like
    throughput.WAYS."""
    recorded = dict(throughput.closed("auto"), TLLMPROF_TRACE=os.path.join(folder, "armed-%p.tllmprof"))
    return (("without", None), ("again", None), ("auto", throughput.closed("auto")), ("auto, with a record", recorded))


def of_starts(starts):
    """Returns for each way except the first (without the library) one ratio per start: processor time without the
    library ÷ with this way, the median over the rounds. `starts`: the results of throughput.run_in_turn for each
    start."""
    ratios = [throughput.ratios(times) for times in starts]
    return [[1 / statistics.median(start[way]) for start in ratios] for way in range(1, len(ratios[0]))]


def interval(values):
    """Returns (mean, lowest, highest) of the 95 % interval of the values."""
    mean, half = statistics.mean(values), STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def judge(values):
    """Returns (description, verdict). The verdict is True if the whole interval meets AIM, False if none of it
    does, and None if AIM lies within it."""
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
    """Returns the ways to run a program like `ways`, here with recorded layers. CUDA graphs are captured while
    layers are recorded, and are replayed after all windows."""
    def passed(**more):
        return dict(throughput.closed("cudaGraphLaunch"), TLLMPROF_TRACE=os.path.join(folder, "layers-%p.tllmprof"), TLLMPROF_KERNELS=20, **more)

    return (("without", None), ("again", None), ("kernels", passed()), ("kernels and layers", passed(TLLMPROF_LAYERS=1)))


def judge_steps(ratios, noise):
    """Compares the speed with the library to the noise. Returns (description, True if the two 95 % intervals
    overlap). `ratios`: steps per second relative to those without the library. `noise`: the same for a second
    process without the library."""
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
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
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
