"""batching.py plain | graphs | async: runs transformers' continuous batching. New requests come while others are
processed."""
import random
import sys
import threading
import time

import torch
from common import VOCABULARY, llama, mark
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import continuous_api

variant = sys.argv[1]
step = continuous_api.ContinuousBatchProcessor._generation_step


def marked_step(self, model):
    mark()
    return step(self, model)


continuous_api.ContinuousBatchProcessor._generation_step = marked_step

REQUESTS = 40
model = llama()
generation = GenerationConfig(max_new_tokens=60, eos_token_id=-1, pad_token_id=0, do_sample=variant == "async",
                              temperature=0.8)
config = ContinuousBatchingConfig(num_blocks=128, block_size=32, max_batch_tokens=128, max_requests_per_batch=8,
                                  allow_block_sharing=False, use_cuda_graph=variant != "plain",
                                  use_async_batching=variant == "async")
with model.continuous_batching_context_manager(generation_config=generation, continuous_batching_config=config,
                                               warmup=variant != "plain") as manager:
    def send():
        for i in range(REQUESTS):
            prompt = [random.randint(3, VOCABULARY - 1) for _ in range(random.randint(4, 90))]
            manager.add_request(prompt, max_new_tokens=random.randint(10, 60))
            if i > 12:
                time.sleep(random.random() * 0.03)

    sender = threading.Thread(target=send)
    sender.start()
    done, began = 0, time.monotonic()
    while done < REQUESTS and time.monotonic() - began < 20:
        result = manager.get_result(timeout=1)
        done += result is not None and result.is_finished()
    sender.join()
print("batching", variant, done, "requests")
if done < REQUESTS:
    sys.exit(f"{done} of {REQUESTS} requests were done")
