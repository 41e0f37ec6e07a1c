"""vllm_offline.py MODEL: vLLM's LLM.generate with weights made up."""
import sys
import time

from driver import digest, load, said_round, say


def main():
    requests, tokens, rounds, warm = load((8, 128, 8, 0))
    import vllm
    from vllm import LLM, SamplingParams

    began = time.time()
    llm = LLM(model=sys.argv[1], load_format="dummy", max_model_len=1024, seed=0, gpu_memory_utilization=0.3)
    say("UP", version=vllm.__version__, seconds=time.time() - began)

    def params(count):
        return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)

    prompts = [f"hello my name is number {i} and the quick brown fox" for i in range(requests)]
    if warm:
        llm.generate(prompts[:1], params(warm), use_tqdm=False)
    for number in range(rounds):
        began = time.time()
        out = llm.generate(prompts, params(tokens), use_tqdm=False)
        said_round(number, began, sum(len(o.outputs[0].token_ids) for o in out), [digest(list(o.outputs[0].token_ids)) for o in out])


if __name__ == "__main__":  # vLLM starts its workers by spawn
    main()
