"""hf_inside.py TOKENS: runs transformers' generate() and writes down what happens inside Python.

TRUTH_LOG is a file that gets a JSON object: for each token, the generations of its garbage collections, and the
number of calls of each module by name."""
import collections
import functools
import gc
import json
import os
import sys

import torch
import transformers

from truth import RESET, mark

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
    vocab_size=8000)).half().cuda().eval()
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0
prompt = torch.randint(0, 8000, (2, 16)).cuda()
forward, token, marked = model.forward, -1000, -1000
collected = collections.defaultdict(list)
called = collections.defaultdict(collections.Counter)


# generate() looks at the signature of the model's `forward`, so the wrapper must show the original
# signature
@functools.wraps(forward)
def marked_forward(*arguments, **named):
    global token, marked
    marked = token
    if token >= 0:
        mark(token)
        if token % 10 == 0:
            gc.collect(token // 10 % 3)
    with torch.profiler.record_function(f"step {token}"):
        result = forward(*arguments, **named)
    token += 1
    return result


def count_module(name):
    def count(module, arguments):
        called[marked][name] += 1
    return count


def count_collection(phase, information):
    if phase == "stop":
        collected[marked].append(information["generation"])


def generate(tokens):
    with torch.inference_mode():
        return model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


model.forward = marked_forward
for name, module in model.named_modules():
    if name:  # calls of the model itself, whose name is empty, are counted in its wrapped `forward`
        module.register_forward_pre_hook(count_module(name))
gc.callbacks.append(count_collection)
generate(4)  # the first call loads libraries and makes them choose their kernels
# With TLLMPROF_WARMUP=capture, the library counts iterations only after a stream capture. This capture makes the
# library begin to count.
cell = torch.zeros(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    cell.add_(1)
mark(RESET)
token = 0
print("hf_inside:", generate(int(sys.argv[1])).sum().item())
gc.callbacks.remove(count_collection)
with open(os.environ["TRUTH_LOG"], "w") as log:
    json.dump({"collected": collected, "called": called}, log)
