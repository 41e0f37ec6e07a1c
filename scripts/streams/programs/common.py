"""Parts that the programs share: the marks of their true iterations, and small models with random weights."""
import ctypes
import itertools
import os
import random

import torch

DEVICE = os.environ.get("STREAM_DEVICE", "cuda")  # "cpu" is for trying a program without a GPU
VOCABULARY = 8000

_mark = getattr(ctypes.CDLL(None), "tllmprof_mark", None)
_numbers = itertools.count()

torch.manual_seed(0)
random.seed(0)


def mark():
    """Marks the start of an iteration."""
    number = next(_numbers)
    if _mark is not None:
        _mark(ctypes.c_long(number))


def marked(model):
    """Returns the model, with a mark in each forward pass."""
    model.register_forward_pre_hook(lambda *_: mark())
    return model


def ready(model, dtype=torch.bfloat16):
    model = model.to(dtype).to(DEVICE).eval()
    config = getattr(model, "generation_config", None)
    if config is not None:  # the random weights must not generate an end of the sequence
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
