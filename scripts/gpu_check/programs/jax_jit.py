"""A jitted step and the read of its result, jax_jit.py STEPS."""
import sys

import jax
import jax.numpy as jnp

from truth import mark

weights = [jax.random.normal(jax.random.PRNGKey(i), (256, 256)) / 16 for i in range(6)]
table = jax.random.normal(jax.random.PRNGKey(9), (4000, 256))


@jax.jit
def step(tokens):
    x = table[tokens]
    for weight in weights:
        x = jax.nn.relu(x @ weight) + x
    return (x @ table.T).argmax(-1)


tokens = jnp.zeros((8,), jnp.int32)
for i in range(int(sys.argv[1])):
    tokens = step(tokens)
    # After the read: the step is launched from another thread, and has been once its result is here.
    result = jax.device_get(tokens)
    mark(i)
print("jax_jit:", result.tolist())
