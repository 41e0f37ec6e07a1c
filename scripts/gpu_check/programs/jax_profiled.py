"""jax_profiled.py FROM TO STEPS: runs steps of a jitted function, with JAX's own profiler from step FROM until
before step TO. Prints the number of GPU events that JAX's profiler recorded."""
import glob
import gzip
import json
import sys
import tempfile

import jax
import jax.numpy as jnp

first, last, steps = map(int, sys.argv[1:4])
weights = [jax.random.normal(jax.random.PRNGKey(i), (256, 256)) / 16 for i in range(4)]


@jax.jit
def step(x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def seen(folder):
    """Returns the number of GPU events in the profiler's trace."""
    (path,) = glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    gpus = {event["pid"] for event in events if event.get("name") == "process_name" and "GPU" in event["args"]["name"]}
    return sum(event.get("ph") == "X" and event["pid"] in gpus for event in events)


x = step(jnp.ones((8, 256)))
with tempfile.TemporaryDirectory() as folder:
    for i in range(steps):
        if i == first:
            jax.profiler.start_trace(folder)
        if i == last:
            jax.profiler.stop_trace()
        x = jax.device_get(step(x))
    print("events of the GPU:", seen(folder))
print("result:", x.sum())
