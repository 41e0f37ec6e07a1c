"""Defines what the programs share: marks at the start of their iterations, and small models with random weights."""
import ctypes
import itertools
import os
import random

import torch

DEVICE = os.environ.get("STREAM_DEVICE", "cuda")  # "cpu" makes it possible to try a program without a GPU
VOCABULARY = 8000

_mark = getattr(ctypes.CDLL(None), "tllmprof_mark", None)
_numbers = itertools.count()

torch.manual_seed(0)
random.seed(0)


def mark():
    """Marks the start of an iteration in the recorded stream. Does nothing if the recorder is not preloaded."""
    number = next(_numbers)
    if _mark is not None:
        _mark(ctypes.c_long(number))


def marked(model):
    """Adds a hook to the model that marks the start of an iteration at each forward pass. Returns the model."""
    model.register_forward_pre_hook(lambda *_: mark())
    return model


def ready(model, dtype=torch.bfloat16):
    model = model.to(dtype).to(DEVICE).eval()
    config = getattr(model, "generation_config", None)
    # with random weights, the model may generate an end of the sequence at any time, which must not
    # end the loop
    if config is not None:
        config.eos_token_id = config.forced_eos_token_id = None
        config.pad_token_id = 0
    return model


def sizes(layers=2):
    return dict(hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
                num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=2048)


def llama(layers=2):
    import transformers

    transformers.logging.set_verbosity_error()
    return ready(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(layers))))


def tokens(batch, length):
    return torch.randint(3, VOCABULARY, (batch, length)).to(DEVICE)
