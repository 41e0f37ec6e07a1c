"""vllm_offline.py MODEL: runs vLLM's LLM.generate with random weights. Environment: TP is the number of GPUs that
share the model (tensor parallelism), and GRAPHS is vLLM's cudagraph_mode."""
import os
import sys
import time

from driver import digest, env, load, said_round, say


def output(one, has_scores):
    """Returns a short hash of a request's tokens and, with `has_scores`, of their log probabilities."""
    scores = [token.logprob for tokens in one.logprobs for token in tokens.values()] if has_scores else []
    return digest([list(one.token_ids), scores])


def main():
    requests, tokens, rounds, warm = load((8, 128, 8, 0))
    has_scores = env("SCORES", 0)
    import vllm
    from vllm import LLM, SamplingParams

    began = time.time()
    llm = LLM(model=sys.argv[1], load_format="dummy", max_model_len=1024, seed=0, gpu_memory_utilization=0.3,
              enable_prefix_caching=False, tensor_parallel_size=env("TP", 1),
              **({"compilation_config": {"cudagraph_mode": os.environ["GRAPHS"]}} if "GRAPHS" in os.environ else {}))
    say("UP", version=vllm.__version__, seconds=time.time() - began)

    def params(count):
        return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=0 if has_scores else None)

    prompts = [f"hello my name is number {i} and the quick brown fox" for i in range(requests)]
    if warm:
        llm.generate(prompts[:1], params(warm), use_tqdm=False)
    for number in range(rounds):
        began = time.time()
        out = llm.generate(prompts, params(tokens), use_tqdm=False)
        done = [one.outputs[0] for one in out]
        said_round(number, began, sum(len(one.token_ids) for one in done), [output(one, has_scores) for one in done])


if __name__ == "__main__":  # needed because vLLM starts its workers with spawn, which imports this file again
    main()
