"""jax_loops.py decode | scan | train | long | late: loops in JAX. An iteration is one call of the jitted
function."""
import ctypes
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, LAYERS, BATCH, LENGTH, VOCABULARY = 256, 4, 3, 192, 4000
mark = getattr(ctypes.CDLL(None), "tllmprof_mark", None) or (lambda n: None)
keys = iter(jax.random.split(jax.random.PRNGKey(3), 64))
layers = [{name: jax.random.normal(next(keys), (WIDTH, WIDTH)) / 16 for name in ("q", "k", "v", "out", "up", "down")}
          for _ in range(LAYERS)]
parameters = {"table": jax.random.normal(next(keys), (VOCABULARY, WIDTH)) / 16, "layers": layers}


def attend(layer, x, cache, position):
    keys_, values = cache
    keys_ = jax.lax.dynamic_update_slice(keys_, (x @ layer["k"])[:, None], (0, position, 0))
    values = jax.lax.dynamic_update_slice(values, (x @ layer["v"])[:, None], (0, position, 0))
    scores = jnp.einsum("bw,blw->bl", x @ layer["q"], keys_) / WIDTH**0.5
    scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9)
    return jnp.einsum("bl,blw->bw", jax.nn.softmax(scores), values) @ layer["out"], (keys_, values)


def step(parameters, tokens, caches, position):
    x, new = parameters["table"][tokens], []
    for layer, cache in zip(parameters["layers"], caches):
        out, cache = attend(layer, x, cache, position)
        x = x + out
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        new.append(cache)
    return (x @ parameters["table"].T).argmax(-1), new


def empty():
    return [tuple(jnp.zeros((BATCH, LENGTH, WIDTH)) for _ in "kv") for _ in layers]


def decode():
    jitted = jax.jit(step, donate_argnums=2)
    number = 0
    for _ in range(2):
        tokens, caches = jnp.arange(BATCH), empty()
        for position in range(120):
            mark(number)
            number += 1
            tokens, caches = jitted(parameters, tokens, caches, position)
            result = jax.device_get(tokens)
    return result.tolist()


def long(late=0):
    """Decodes one endless request. Reads each token `late` steps after its own (0: at once)."""
    jitted = jax.jit(step, donate_argnums=2)
    tokens, caches, waiting = jnp.arange(BATCH), empty(), []
    for number in range(2500):
        mark(number)
        tokens, caches = jitted(parameters, tokens, caches, number % LENGTH)
        tokens.copy_to_host_async() if late else None
        waiting.append(tokens)
        if len(waiting) > late:
            result = np.asarray(waiting.pop(0))
    return result.tolist()


def scan():
    @functools.partial(jax.jit, donate_argnums=2)
    def chunk(parameters, tokens, caches, start):
        def one(carry, i):
            tokens, caches = step(parameters, *carry, start + i)
            return (tokens, caches), tokens

        (tokens, caches), made = jax.lax.scan(one, (tokens, caches), jnp.arange(8))
        return tokens, caches, made

    tokens = jnp.arange(BATCH)
    for number in range(120):
        if number % 20 == 0:
            caches = empty()
        mark(number)
        tokens, caches, made = chunk(parameters, tokens, caches, number % 20 * 8)
        result = jax.device_get(made)
    return result[-1].tolist()


def train():
    def loss(parameters, batch):
        x = parameters["table"][batch]
        for layer in parameters["layers"]:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        logits = jax.nn.log_softmax(x[:, :-1] @ parameters["table"].T)
        return -jnp.take_along_axis(logits, batch[:, 1:, None], -1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def update(parameters, batch):
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient), value

    trained = jax.tree.map(jnp.copy, parameters)
    for number in range(200):
        mark(number)
        batch = jax.random.randint(jax.random.PRNGKey(number), (4, 32), 0, VOCABULARY)
        trained, value = update(trained, batch)
        result = float(value)
    return result


print("jax_loops", sys.argv[1], {"decode": decode, "scan": scan, "train": train, "long": long, "late": lambda: long(1)}[sys.argv[1]]())
