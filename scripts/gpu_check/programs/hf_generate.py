"""hf_generate.py TOKENS: runs transformers' generate() with a small random Llama. An iteration is one token."""
import functools
import sys

import torch
import transformers

from truth import RESET, mark

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
    vocab_size=8000)).half().cuda().eval()
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0
prompt = torch.randint(0, 8000, (2, 16)).cuda()
forward, token = model.forward, -1000


# generate() looks at the signature of the model's `forward`, so the wrapper must show the original
# signature
@functools.wraps(forward)
def marked_forward(*arguments, **named):
    global token
    if token >= 0:
        mark(token)
    token += 1
    return forward(*arguments, **named)


model.forward = marked_forward


def generate(tokens):
    with torch.inference_mode():
        return model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


generate(4)  # the first call loads libraries and makes them choose their kernels
# With TLLMPROF_WARMUP=capture, the library counts iterations only after a stream capture. This capture makes the
# library begin to count.
cell = torch.zeros(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    cell.add_(1)
mark(RESET)
token = 0
print("hf_generate:", generate(int(sys.argv[1])).sum().item())
