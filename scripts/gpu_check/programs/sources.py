"""Runs one loop of fixed work, of which several recorders (tllmprof, nsys, the PyTorch profiler) record the same steps.
Each step is a range ProfilerStep#N.

   sources.py KIND WAY OUT FIRST STEPS [MODEL]

KIND: eager, graph (the same work in a CUDA graph), cpu (no GPU work), or vllm (vLLM with the model in the folder
MODEL). WAY: plain (for a recorder that needs no help), range (calls cudaProfilerStart and cudaProfilerStop around the
recorded steps), or profile (the PyTorch profiler, whose trace is written to OUT, and compressed to OUT.gz). Prints the
number of steps that were made, of STEPS steps from FIRST on."""
import contextlib
import gzip
import json
import shutil
import sys

import torch

# Number of steps that the program makes after the recorded ones.
AFTER = 8
LAYERS, HIDDEN, TOKENS = 12, 2048, 1024


class Recorder:
    """Opens a range for each step, and starts and stops the recording around steps `first` to `last`. Waits until
    the GPU is idle before both."""

    def __init__(self, way, out, first, steps, on_gpu=True):
        self.way, self.out, self.first, self.end = way, out, first, first + steps
        self.made, self.on_gpu = 0, on_gpu
        self.profiler = torch.profiler.profile() if way == "profile" else None

    def edge(self):
        if self.on_gpu:
            torch.cuda.synchronize()
        if self.way == "range" and self.on_gpu:
            (torch.cuda.profiler.start if self.made == self.first else torch.cuda.profiler.stop)()
        if self.profiler:
            (self.profiler.start if self.made == self.first else self.profiler.stop)()

    @contextlib.contextmanager
    def step(self):
        if self.made in (self.first, self.end):
            self.edge()
        name = f"ProfilerStep#{self.made}"
        self.made += 1
        if self.profiler:
            with torch.profiler.record_function(name):
                yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    def finish(self):
        if self.profiler:
            self.profiler.export_chrome_trace(self.out)
            with open(self.out, "rb") as trace, gzip.open(self.out + ".gz", "wb", 1) as packed:
                shutil.copyfileobj(trace, packed)
        print(json.dumps({"steps": min(self.made, self.end) - self.first}), flush=True)


def loop(kind, way, out, first, steps):
    on_gpu = kind != "cpu"
    device = "cuda" if on_gpu else "cpu"
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    kept = {"device": device, "dtype": torch.bfloat16}
    hidden, tokens = (HIDDEN, TOKENS) if on_gpu else (64, 64)
    x = torch.randn(tokens, hidden, **kept)
    weights = [torch.randn(hidden, hidden, **kept) / hidden**0.5 for _ in range(LAYERS)]

    def work():
        y = x
        for weight in weights:
            y = torch.nn.functional.gelu(y @ weight) + x
        return y.float().sum()

    act = work
    if kind == "graph":
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = work()

        def act():
            graph.replay()
            return result

    recorder = Recorder(way, out, first, steps, on_gpu)
    for _ in range(first + steps + AFTER):
        with recorder.step():
            act().item()  # waits for the GPU
    recorder.finish()


def serve(way, out, first, steps, model):
    from vllm import LLM, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    llm = LLM(model=model, load_format="dummy", max_model_len=1024, seed=0, gpu_memory_utilization=0.3, enable_prefix_caching=False)
    recorder = Recorder(way, out, first, steps)
    inner = LLMEngine.step

    def step(self):
        with recorder.step():
            return inner(self)

    prompts = [f"hello my name is number {i} and the quick brown fox" for i in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=first + steps + AFTER, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)  # compiles everything, so that the recorded steps compile nothing
    LLMEngine.step = step
    llm.generate(prompts, params, use_tqdm=False)
    recorder.finish()


def main():
    kind, way, out, first, steps, *model = sys.argv[1:]
    if kind == "vllm":
        serve(way, out, int(first), int(steps), *model)
    else:
        loop(kind, way, out, int(first), int(steps))


if __name__ == "__main__":  # vLLM may start processes with spawn, which imports this file again
    main()
