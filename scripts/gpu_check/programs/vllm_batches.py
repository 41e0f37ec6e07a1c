"""vllm_batches.py NAME MODEL: vLLM generates text in waves of requests. Each NAME of EAGER has decode batches that run
without a CUDA graph although they fit one, and each NAME of PADDED has decode batches that run in a graph that is much
larger than they are. NAME may also be healthy.

vLLM runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that this program can change how it selects graphs.
"""
import os
import random
import sys
import time

SECONDS = float(os.environ.get("SECONDS_EACH", 10))
# Conditions under which a decode batch gets no graph, by the number of its requests and the number of batches before it.
EAGER = {
    "odd_sizes": lambda requests, calls: requests % 2 == 1,
    "sizes_10_to_20": lambda requests, calls: 10 <= requests <= 20,
    "every_third_period": lambda requests, calls: calls // 40 % 3 == 0,
    "every_fifth_step": lambda requests, calls: calls % 5 == 0,
}
# The sizes for which vLLM captures graphs, and the numbers of requests in a wave. vLLM captures none above max_num_seqs.
FEW = dict(sizes=[1, 2, 4, 8, 16, 24, 32], waves=(24, 32))
PADDED = {
    "one_and_512": dict(sizes=[1, 256, 512], waves=(250, 330, 500)),
    "half_empty": dict(sizes=[8, 128, 480], waves=(120, 200, 470)),
    "gap_to_640": dict(sizes=[64, 320, 640], waves=(310, 400, 630)),
    "powers_of_four": dict(sizes=[4, 16, 64, 256, 1024], waves=(240, 350, 1000)),
}
HEALTHY = dict(sizes=[*range(1, 33)], waves=(24, 32))
name, model = sys.argv[1:]
setup = FEW if name in EAGER else PADDED.get(name, HEALTHY)


def refuse_graphs():
    """Makes vLLM run some decode batches without a graph, as `name` says."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    dispatch = cudagraph_utils.CudaGraphManager.dispatch
    calls = 0

    def dispatch_some(self, num_reqs, num_tokens, *args, **more):
        nonlocal calls
        found = dispatch(self, num_reqs, num_tokens, *args, **more)
        calls += 1
        if self._graphs_captured and num_tokens == num_reqs and EAGER[name](num_reqs, calls):
            found = cudagraph_utils.BatchExecutionDescriptor(
                cg_mode=CUDAGraphMode.NONE, num_tokens=num_tokens, num_reqs=num_reqs, num_active_loras=found.num_active_loras)
        return found

    cudagraph_utils.CudaGraphManager.dispatch = dispatch_some


def main():
    random.seed(0)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    from vllm import LLM, SamplingParams

    if name in EAGER:
        refuse_graphs()
    llm = LLM(model=model, load_format="dummy", max_model_len=512, seed=0, kv_cache_memory_bytes=12 << 30, gpu_memory_utilization=0.4,
              enable_prefix_caching=False, max_num_seqs=max(*setup["waves"], *setup["sizes"]), max_num_batched_tokens=16384,
              compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": setup["sizes"]})
    began, number = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        wave = setup["waves"][number % len(setup["waves"])]
        prompts = [{"prompt_token_ids": [random.randrange(10, 30000) for _ in range(8)]} for _ in range(wave)]
        # Requests end one after the other, so each wave has batches of many sizes.
        params = [SamplingParams(temperature=0.0, max_tokens=random.randrange(24, 97), ignore_eos=True) for _ in range(wave)]
        llm.generate(prompts, params, use_tqdm=False)
        number += 1
    print(f"{number} waves", flush=True)


if __name__ == "__main__":
    main()
