"""jax_jit.py STEPS | --blocks [--decode]: in each step, calls a jitted JAX function and reads its result.

--blocks: runs steps on request (blocks.py). --decode: the weights are so large that a step takes several
milliseconds on the GPU."""
import sys

import jax
import jax.numpy as jnp

import blocks
from truth import mark

WIDTH, TURNS = (8192, 20) if "--decode" in sys.argv else (256, 1)
weights = [jax.random.normal(jax.random.PRNGKey(i), (WIDTH, WIDTH)) / WIDTH**0.5 for i in range(6)]
table = jax.random.normal(jax.random.PRNGKey(9), (4000, WIDTH))


@jax.jit
def forward(weights, table, tokens):
    def layers(_, x):
        for weight in weights:
            x = jax.nn.relu(x @ weight) + x
        return x

    x = jax.lax.fori_loop(0, TURNS, layers, table[tokens]) if TURNS > 1 else layers(0, table[tokens])
    return (x @ table.T).argmax(-1)


tokens = jnp.zeros((8,), jnp.int32)


def step(i=0):
    global tokens, result
    tokens = forward(weights, table, tokens)
    # JAX launches the step in another thread. Only the result shows that the launch has happened, so the mark comes
    # after the result has been read.
    result = jax.device_get(tokens)
    mark(i)


if sys.argv[1] == "--blocks":
    step()  # the first call compiles the function
    blocks.serve(step)
else:
    for i in range(int(sys.argv[1])):
        step(i)
    print("jax_jit:", result.tolist())
