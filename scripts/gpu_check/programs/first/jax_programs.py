"""jax_programs.py NAME: inference loops in JAX. programs.txt lists them with the expected findings."""
import itertools
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from steps import main, program, steps  # noqa: E402

HIDDEN, LAYERS, VOCABULARY = 4096, 24, 32000


def weights(layers, hidden):
    keys = jax.random.split(jax.random.PRNGKey(0), layers)
    return [(jax.random.normal(key, (hidden, 4 * hidden), jnp.bfloat16) * 0.01, jax.random.normal(key, (4 * hidden, hidden), jnp.bfloat16) * 0.01)
            for key in keys]


@jax.jit
def decode(layers, table, tokens, cache):
    x = table[tokens]
    for up, down in layers:
        x = x + jax.nn.gelu(x @ up) @ down
        x = x / (jnp.abs(x).max(-1, keepdims=True) + 1e-3)
    return jnp.argmax(x @ table.T, axis=-1), jnp.roll(cache, 1, axis=1)


@program
def jax_decode():
    """Runs a compiled function in each step, and reads its tokens."""
    layers, table = weights(LAYERS, HIDDEN), jnp.ones((VOCABULARY, HIDDEN), jnp.bfloat16)
    tokens, cache = jnp.zeros((8,), jnp.int32), jnp.zeros((8, 128, 256), jnp.bfloat16)
    for _ in steps():
        tokens, cache = decode(layers, table, tokens, cache)
        np.asarray(tokens)


@jax.jit
def encode(layers, x):
    for up, down in layers:
        x = jnp.tanh(x @ up) @ down
    return x.sum(-1)


@program
def jax_new_shapes():
    """Gives the compiled function a text of a new length in each step. JAX compiles the function for each new
    length."""
    layers = weights(2, HIDDEN // 2)
    text = np.zeros((8192, HIDDEN // 2), np.float32)
    for _, length in zip(steps(), itertools.count(100)):
        np.asarray(encode(layers, text[:length]))


if __name__ == "__main__":
    main()
