"""Steps whose arguments have unexpected contents. Prints a line of JSON for each step with the contents of its batch,
or null if they cannot be read."""

import json
import sys

from py_ctypes import Runtime
from vllm.shapes import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

loop = Runtime("libcudart.so.12")
loop.capture()
runner = GPUModelRunner()


def output(requests=2):
    names = [f"r{n}" for n in range(requests)]
    cached = CachedRequestData(names, [9] * requests, [1] * requests)
    return SchedulerOutput([], cached, dict.fromkeys(names, 1), requests)


def right(requests):
    return {"requests": requests, "tokens": requests, "prefill_tokens": 0, "decode_tokens": requests, "phase": "decode"}


def step(scheduler_output, expected):
    try:
        runner.prepare_inputs(scheduler_output, None)
    finally:
        loop.step()
        print(json.dumps(expected))


class Hostile:
    """An object that prints the name of every attribute that is read from it."""

    def __getattribute__(self, name):
        print("asked for", name)
        raise SystemExit(3)

    __len__ = __int__ = __index__ = __eq__ = __hash__ = __iter__ = lambda *_: Hostile.__getattribute__(None, "")


class Computed(SchedulerOutput):
    @property
    def total_num_scheduled_tokens(self):
        print("a property ran")
        return 7

    @total_num_scheduled_tokens.setter
    def total_num_scheduled_tokens(self, _):
        pass


class Lazy:
    def __getattr__(self, name):
        print("asked for", name)
        return output().__dict__[name]


class Keyed(dict):
    def __getitem__(self, key):
        print("asked for", key)
        return 1


def changed(**attributes):
    wrong = output()
    wrong.__dict__.update(attributes)
    return wrong


def without(name):
    wrong = output()
    delattr(wrong, name)
    return wrong


WRONG = [
    None, 7, "text", Hostile(), Hostile, Lazy(), sys, object(),
    Computed([], output().scheduled_cached_reqs, {"r0": 1}, 1),
    changed(total_num_scheduled_tokens=None),
    changed(total_num_scheduled_tokens="2"),
    changed(total_num_scheduled_tokens=2.0),
    changed(total_num_scheduled_tokens=-1),
    changed(total_num_scheduled_tokens=1 << 80),
    changed(total_num_scheduled_tokens=Hostile()),
    changed(num_scheduled_tokens=Hostile()),
    changed(num_scheduled_tokens=5),
    changed(scheduled_new_reqs=Hostile()),
    changed(scheduled_new_reqs=[Hostile()]),
    changed(scheduled_new_reqs=[NewRequestData("unknown", 0)]),
    changed(scheduled_new_reqs=[NewRequestData(Hostile, 0)]),
    changed(scheduled_new_reqs=[NewRequestData("r0", 0)], num_scheduled_tokens=Keyed(r0=1)),
    changed(scheduled_new_reqs=(n for n in range(2))),
    changed(scheduled_cached_reqs=CachedRequestData(["r0"], [1], ["x"])),
    changed(scheduled_cached_reqs=CachedRequestData(["r0"], [1], Hostile())),
    without("num_scheduled_tokens"),
    without("scheduled_cached_reqs"),
]

step(output(), right(2))
for place, wrong in enumerate(WRONG):
    step(wrong, None)
    if place % 8 == 0:
        step(output(3), right(3))
# 4096 is the length of the longest list that the library reads. A list with one more item is not read.
step(output(4096), right(4096))
step(output(4097), None)
step(output(0), {"requests": 0, "tokens": 0, "prefill_tokens": 0, "decode_tokens": 0, "phase": "idle"})
# The library reads a batch while the program handles an exception. `sys.exc_info()` must still return this exception
# afterwards.
try:
    raise KeyError("kept")
except KeyError as error:
    step(7, None)
    step(output(), right(2))
    assert error.args == ("kept",) and sys.exc_info()[1] is error
# After 64 consecutive steps whose batch it cannot read, the library reads no more batches.
for _ in range(70):
    step(None, None)
step(output(), None)
