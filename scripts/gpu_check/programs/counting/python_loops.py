"""python_loops.py NAME STEPS: runs the loop NAME, to test if the rule `auto` counts its steps. The last line of
output lists the time when each step began."""
import json
import os
import sys
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
BEGAN = []


def begin_step(*_):
    BEGAN.append(time.monotonic_ns())


def jax_decode(steps):
    """Runs a jitted JAX function in each step. The step donates its cache (the function may overwrite it), and
    reads the resulting token."""
    import functools

    import jax
    import jax.numpy as jnp

    hidden, layers, vocabulary = 1024, 12, 8000
    keys = jax.random.split(jax.random.PRNGKey(0), layers)
    weights = [jax.random.normal(key, (hidden, hidden)) * 0.02 for key in keys]
    table = jax.random.normal(keys[0], (vocabulary, hidden))

    @functools.partial(jax.jit, donate_argnums=2)
    def decode(weights, tokens, cache):
        x = table[tokens] + cache[:, 0]
        for weight in weights:
            x = x + jax.nn.gelu(x @ weight)
        return jnp.argmax(x @ table.T, axis=-1), jnp.roll(cache, 1, axis=1).at[:, 0].set(x * 1e-3)

    tokens, cache = jnp.zeros((8,), jnp.int32), jnp.zeros((8, 64, hidden))
    for _ in range(steps):
        begin_step()
        tokens, cache = decode(weights, tokens, cache)
        jax.device_get(tokens)


def llama(layers, hidden):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=8000, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
                         num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=8192)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def answer(model, steps, **more):
    """Generates answers, one after the other, until the model has made this number of steps."""
    import torch
    model.register_forward_pre_hook(begin_step)
    length = 40
    while len(BEGAN) < steps:
        ids = torch.randint(3, 8000, (1, length), device="cuda")
        model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, do_sample=False, max_new_tokens=64, min_new_tokens=64, **more)
        length += 30


def generate(steps):
    """Runs transformers' generate(). A step is a forward pass of the model."""
    answer(llama(6, 1024), steps)


def assisted(steps):
    """Runs generate() with a small model that drafts tokens for a large one. A step is a forward pass of the large
    model."""
    answer(llama(6, 1024), steps, assistant_model=llama(2, 512))


if __name__ == "__main__":
    {one.__name__: one for one in (jax_decode, generate, assisted)}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps({"pid": os.getpid(), "began": BEGAN}), flush=True)
