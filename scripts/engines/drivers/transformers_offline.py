"""transformers_offline.py generate|batching MODEL: runs transformers' generate, or generate_batch (continuous
batching)."""
import sys
import time

import torch
import transformers
from driver import digest, load, refuse, said_round, say
from transformers import AutoModelForCausalLM, GenerationConfig


def main():
    mode, path = sys.argv[1:3]
    if mode not in ("generate", "batching"):
        refuse(f"no mode {mode}: generate or batching")
    requests, tokens, rounds, _ = load((8, 128, 2, 0))
    began = time.time()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16).cuda().eval()
    say("UP", version=transformers.__version__, seconds=time.time() - began)
    prompts = [[3 + (i * 7 + j) % 500 for j in range(12)] for i in range(requests)]
    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=2)
    for number in range(rounds):
        began = time.time()
        if mode == "generate":
            ids = torch.tensor(prompts, device="cuda")
            out = model.generate(ids, generation_config=config, attention_mask=torch.ones_like(ids))[:, len(prompts[0]):].tolist()
        else:
            found = model.generate_batch(prompts, generation_config=config)
            # transformers names the requests `…_N` in the order of the prompts. Sorting by N restores this order.
            out = [found[name].generated_tokens for name in sorted(found, key=lambda name: int(name.rpartition("_")[2]))]
        said_round(number, began, sum(map(len, out)), [digest(one) for one in out])


if __name__ == "__main__":
    main()
