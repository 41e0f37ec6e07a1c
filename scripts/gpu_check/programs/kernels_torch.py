"""Runs three kinds of steps, each with a wait for an event: a graph of 300 tiny kernels ("graph"), the same kernels
launched one by one ("eager"), and a graph of kernels of 14 us ("long"). Prints the durations of steps before, in and
after a window.

   kernels_torch.py ROUNDS BEFORE WINDOW INNER AFTER [profile | first]      the three kinds in turn, ROUNDS times
   kernels_torch.py busy THREADS WARM BEFORE WINDOWS AFTER           with THREADS busy threads at the same time
   kernels_torch.py inside FROM TO STEPS                             the PyTorch profiler in some steps of a graph

profile: after these steps, the PyTorch profiler records more of them. first: it records some before these steps."""
import json
import sys
import threading
import time
from collections import Counter
from statistics import median

import torch

y = torch.zeros(1024, device="cuda")
done = torch.cuda.Event()


def tiny(times=300):
    z = y
    for _ in range(times):
        z = z + 1


def long():
    for _ in range(60):
        torch.cuda._sleep(26000)


def captured(work):
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    torch.cuda.synchronize()
    return graph


def step(work):
    began = time.perf_counter()
    work()
    done.record()
    done.synchronize()
    return (time.perf_counter() - began) * 1e6


def profiled(work, steps):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        took = [step(work) for _ in range(steps)]
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return {"us": median(took), "names": Counter(event.name for event in events),
            "ns": sum(event.time_range.elapsed_us() for event in events) * 1000}


def say(**what):
    print(json.dumps(what), flush=True)


def quick(took):
    """Returns the tenth percentile of the steps' durations. The quickest steps are free of delays by the host's
    other work, but would show a lasting effect of CUPTI, which slows every step."""
    return sorted(took)[len(took) // 10]


def kinds(rounds, before, window, inner, after, profiler):
    works = {"graph": captured(tiny).replay, "eager": tiny, "long": captured(long).replay}
    for work in works.values():
        for _ in range(20):
            work()
    torch.cuda.synchronize()
    if profiler == "first":
        say(kind="graph", profiler=profiled(works["graph"], 5))
    for turn in range(rounds):
        for kind, work in works.items():
            took = [step(work) for _ in range(before + window + after)]
            parts = {"before": took[before // 4:before], "inside": took[before + 2:before + inner],
                     "window": took[before + inner + 8:before + window], "after": took[before + window + after // 4:]}
            say(kind=kind, round=turn, first=took[before:before + 2], leaves=took[before + inner:before + inner + 2],
                quick={part: quick(of) for part, of in parts.items() if of},
                **{part: median(of) for part, of in parts.items() if of})
    if profiler == "profile":
        for kind, work in works.items():
            say(kind=kind, profiler=profiled(work, inner))


def busy(threads, *counts):
    made = [0] * threads
    ends = threading.Event()
    errors = []

    def work(index):
        try:
            stream = torch.cuda.Stream()
            x = torch.zeros(1024, device="cuda")
            with torch.cuda.stream(stream):
                while not ends.is_set():
                    z = x
                    for _ in range(20):
                        z = z + 1
                    stream.synchronize()
                    made[index] += 1
        except Exception as error:
            errors.append(str(error))

    graph = captured(lambda: tiny(50))
    started = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in started:
        thread.start()

    def part(steps):
        began, had = time.perf_counter(), sum(made)
        took = [step(graph.replay) for _ in range(steps)]
        elapsed = time.perf_counter() - began
        return {"us": median(took), "quick": quick(took), "others": (sum(made) - had) / elapsed, "seconds": elapsed}

    parts = {name: part(steps) for name, steps in zip(("warm", "before", "windows", "after"), counts)}
    ends.set()
    for thread in started:
        thread.join()
    torch.cuda.synchronize()
    say(errors=errors, **parts)


def inside(first, last, steps):
    graph = captured(tiny)
    seen = None
    for i in range(steps):
        if i == first:
            seen = profiled(graph.replay, last - first)
        elif not first < i < last:
            step(graph.replay)
    print("kernels:", sum(count for name, count in seen["names"].items() if "elementwise" in name))
    print("result:", y.sum().item())


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        inside(*map(int, sys.argv[2:5]))
    elif sys.argv[1] == "busy":
        busy(*map(int, sys.argv[2:7]))
    else:
        kinds(*map(int, sys.argv[1:6]), sys.argv[6] if len(sys.argv) > 6 else None)
