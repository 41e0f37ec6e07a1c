"""decode_loop.py default | reduce-overhead: a hand-written decode loop with a compiled model and a static cache."""
import sys

import torch
from common import DEVICE, llama, mark, tokens
from transformers import StaticCache

mode = sys.argv[1]
model = llama()
cache = StaticCache(config=model.config, max_cache_len=320)


def forward(token, position):
    out = model(token, past_key_values=cache, position_ids=position, use_cache=True).logits[:, -1]
    return out.argmax(-1, keepdim=True)


compiled = torch.compile(forward, mode=mode)
position = torch.arange(16, device=DEVICE)
read = []
with torch.inference_mode():
    mark()
    # the prompt's forward pass uses the model that is not compiled
    token = forward(tokens(2, 16), position.unsqueeze(0))
    read.append(token.tolist())
    for i in range(16, 256):
        mark()
        token = compiled(token.clone(), torch.full((1, 1), i, device=DEVICE))
        read.append(token.tolist())
print("decode_loop", mode, len(read))
