"""Measures steps per second with and without the shim. The shim's window is never reached.

Four processes of the same program run in turn, a short block of steps each, so that a change in the machine's speed
affects all of them alike. Two of the four run without the shim, and the difference between these two is the noise. The
processes are started several times, because one process can be faster than an equal one for its whole life."""
import os
import re
import select
import statistics
import subprocess
import time
from dataclasses import dataclass

FAR = "1000000000"


def closed(rule):
    return {"TLLM_PROFILE_START_STOP": FAR, "TLLMPROF_STEP": rule}


# The ways to run a program: (name, the library's variables). With None, the program runs without the library.
WAYS = (
    ("without", None),
    ("without, again", None),
    ("cudaGraphLaunch, window closed", closed("cudaGraphLaunch")),
    ("auto, window closed", closed("auto")),
)
# The order of the four ways in each round. In every four rounds, each way is once at each position, and once directly
# after each other way.
ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
START_SECONDS = 90


@dataclass
class Loop:
    """A program and the options that choose the loop to measure."""

    program: object
    size: str
    text: str  # text for the page that describes a step
    words: tuple = ()
    starts: int = 6

    @property
    def name(self):
        return f"throughput {self.program.name} {self.size}"


@dataclass
class Speed:
    """The results of one way to run a loop.

    A ratio compares a block with the blocks of the same round that run without the shim: with the mean of both, or,
    for the two ways without the shim themselves, with the first of them."""

    way: str
    steps_a_second: float  # median over all blocks
    ratio: float  # median ratio of the steps per second to those without the shim
    quartiles: tuple
    of_starts: tuple  # lowest and highest of the medians of the starts


def loops(programs):
    """Returns the loops to measure: some with the shortest possible steps, in which the shim's cost is a large
    share, and some with steps as long as those of a served model."""
    static, torch = programs["loop-static"], programs["torch_graph"]
    return [
        Loop(static, "decode", "graph of 20 kernels of arithmetic, 1 kernel, wait", ("--decode",)),
        Loop(torch, "decode", "graph of 17 kernels of 36 000 cycles and 3 tiny ones, 1 kernel, wait", ("--decode",)),
        Loop(static, "tiny", "graph of 3 tiny kernels, 1 tiny kernel, wait", starts=3),
        Loop(torch, "tiny", "graph of 3 tiny kernels, 1 tiny kernel, wait", starts=3),
    ]


class Block:
    """A running program that makes steps for a time when it is asked to (programs/blocks.py)."""

    def __init__(self, command, environment, said=subprocess.DEVNULL):
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0)
        self.graph_us = None  # duration of the program's graph on the GPU in µs, if the program prints it
        self.unread = b""

    def line(self, seconds):
        """Returns the next line that the program prints. Raises an error if there is none within `seconds`."""
        until = time.monotonic() + seconds
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not part:
                raise RuntimeError("it ended or hung" if ready else "it did not answer in time")
            self.unread += part
        text, self.unread = self.unread.split(b"\n", 1)
        return text.decode()

    def wait_until_ready(self):
        while (line := self.line(START_SECONDS)).strip() != "ready":
            if found := re.fullmatch(r"graph ([\d.]+) us", line.strip()):
                self.graph_us = float(found.group(1))

    def run(self, seconds):
        """Makes the program run steps for this time. Returns (number of steps, their duration in s, their processor time
        in s, and the median step in s if the program prints it)."""
        self.process.stdin.write(f"{seconds}\n".encode())
        steps, *others = self.line(seconds * 4 + 20).split()
        return int(steps), *map(float, others)

    def steps_a_second(self, seconds):
        steps, elapsed, *_ = self.run(seconds)
        return steps / elapsed

    def median_rate(self, seconds):
        """Returns 1 / the median step. Unlike the mean step, the median does not depend on single steps that the
        system delayed. If the program prints no median, returns steps per second over the whole time."""
        steps, elapsed, _, *median = self.run(seconds)
        return 1 / median[0] if median else steps / elapsed

    def processor_ns(self, seconds):
        """Runs steps for this time. Returns the processor time per step in ns."""
        steps, _, used, *_ = self.run(seconds)
        return used / steps * 1e9

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def run_in_turn(loop, bench, rounds, seconds, alone, ways, measured=Block.steps_a_second):
    """Starts one process for each way, and runs them in turn. Returns (a list of measured values for each way, the
    duration of the graph on the GPU if the program prints it). `measured`: the function that measures a block.

    alone: the first process measures its graph before the others start, because they would share the GPU with it."""
    speeds, blocks = [[] for _ in ways], []
    try:
        for _, variables in ways:
            environment = bench.preloaded(**variables) if variables else bench.variables()
            blocks.append(Block([*loop.program.command, "--blocks", *loop.words], environment))
            if alone and len(blocks) == 1:
                blocks[0].wait_until_ready()
        for block in blocks[1 if alone else 0:]:
            block.wait_until_ready()
        for block in blocks:
            measured(block, seconds)  # the first block of each process is a warm-up, whose value is not used
        for turn in range(rounds):
            for way in ORDERS[turn % len(ORDERS)]:
                speeds[way].append(measured(blocks[way], seconds))
        return speeds, blocks[0].graph_us
    finally:
        for block in blocks:
            block.end()


def ratios(speeds):
    """Returns for each way a list with the ratio of each round (see Speed)."""
    first, second = speeds[:2]
    both = [(a + b) / 2 for a, b in zip(first, second)]
    return [[a / b for a, b in zip(speed, first if way < 2 else both)] for way, speed in enumerate(speeds)]


def measure(loop, bench, rounds, seconds, ways=WAYS):
    """Measures a loop. Returns (a Speed for each way, the duration of the graph on the GPU in µs or None)."""
    starts = [run_in_turn(loop, bench, rounds, seconds, start == 0, ways) for start in range(loop.starts)]
    of_starts = [ratios(speeds) for speeds, _ in starts]
    result = []
    for way, (name, _) in enumerate(ways):
        all_ratios = [ratio for start in of_starts for ratio in start[way]]
        medians = [statistics.median(start[way]) for start in of_starts]
        low, middle, high = statistics.quantiles(all_ratios, n=4)
        speed = statistics.median(one for speeds, _ in starts for one in speeds[way])
        result.append(Speed(name, speed, middle, (low, high), (min(medians), max(medians))))
    return result, starts[0][1]


def table(chosen, bench, rounds, seconds, ways=WAYS):
    yield (f"A step is a graph launch, an eager kernel and a wait for the stream. Blocks of {seconds} s in turn, {rounds} "
           "rounds for each start of all four processes. «Of without»: the median of the rounds' ratios, their quartiles, "
           "and the lowest and highest median of a start. «Without, again» is the noise.")
    yield ""
    yield ("| program | step | graph on the GPU, µs | starts | shim | step, µs | steps/s, of without | quartiles | "
           "starts' medians |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for loop in chosen:
        name = f"| {loop.program.name} | {loop.text}"
        if loop.program.missing:
            yield f"{name} |  |  |  |  | skipped: {loop.program.missing} |  |  |"
            continue
        try:
            speeds, graph_us = measure(loop, bench, rounds, seconds, ways)
        except (RuntimeError, OSError, ValueError) as error:
            yield f"{name} |  |  |  |  | failed: {error} |  |  |"
            continue
        name += f" | {graph_us:.0f}" if graph_us else " | "
        for speed in speeds:
            begin = f"{name} | {loop.starts} | {speed.way} | {1e6 / speed.steps_a_second:.2f} |"
            if speed is speeds[0]:
                yield f"{begin} 1 |  |  |"
            else:
                (low, high), (least, most) = speed.quartiles, speed.of_starts
                yield f"{begin} {speed.ratio:.4f} | {low:.4f}–{high:.4f} | {least:.4f}–{most:.4f} |"
