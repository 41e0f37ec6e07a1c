"""server.py threads | pool | batches: a server that answers requests with an encoder model. An iteration is a
request.

threads: a new thread for each request, one request at a time. pool: four threads that answer requests in turn.
batches: one thread that answers several requests at once."""
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import transformers
from common import DEVICE, VOCABULARY, mark, ready

REQUESTS = 200
variant = sys.argv[1]
config = transformers.BertConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                                 vocab_size=VOCABULARY)
model = ready(transformers.BertModel(config), torch.half if DEVICE == "cuda" else torch.float32)
turn = threading.Lock()
answers = []


def serve(batch, length):
    with turn, torch.inference_mode():
        mark()
        ids = torch.randint(3, VOCABULARY, (batch, length)).to(DEVICE)
        mask = torch.ones(batch, length, dtype=torch.long).to(DEVICE)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(1) / weight.sum(1)
        answers.append(torch.nn.functional.normalize(pooled.float(), dim=-1).cpu())


requests = [(random.choice((1, 2, 8, 32) if variant == "batches" else (1, 2)), random.randint(5, 60))
            for _ in range(REQUESTS)]
if variant == "threads":
    for request in requests:
        thread = threading.Thread(target=serve, args=request)
        thread.start()
        thread.join()
elif variant == "pool":
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(serve, *request) for request in requests]:
            future.result()
else:
    for request in requests:
        serve(*request)
print("server", variant, len(answers))
