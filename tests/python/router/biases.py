# Checks that the biases of routers get their learned values back when windows close, also if a switch was skipped.

import pathlib
import sys
import types

import torch

FILES = ("balance.py", "operators.py", "proof.py", "engines.py", "blocks.py", "ranks.py")
folder = pathlib.Path(__file__).resolve().parents[3] / "crates" / "router" / "src"
router = types.ModuleType("router")
router.warn = router.say = lambda text: print(text, file=sys.stderr)
exec("".join((folder / name).read_text() for name in FILES), router.__dict__)
router.torch = torch


def skip(on):
    """Does what a switch does during a stream capture: only the wanted state changes."""
    router._active = on


bias = torch.tensor([1.0, 2.0, 3.0])
router._keep_bias(bias)
assert bias.tolist() == [1, 2, 3]
router.switch(True, True)
assert bias.tolist() == [0, 0, 0]
skip(False)
router.switch(True, True)
assert bias.tolist() == [0, 0, 0]
router.switch(False, True)
assert bias.tolist() == [1, 2, 3], "the learned values were lost"

router.switch(True, True)
bias.copy_(torch.tensor([0.0, 5.0, 0.0]))
router.switch(False, True)
assert bias.tolist() == [0, 5, 0], "new weights of a window were overwritten"

skip(True)
later = torch.tensor([4.0])
router._keep_bias(later)
assert later.tolist() == [4], "the device is not balanced"
router.switch(False, True)
assert (bias.tolist(), later.tolist()) == ([0, 5, 0], [4])
router.switch(True, True)
assert (bias.tolist(), later.tolist()) == ([0, 0, 0], [0])
router.free_biases(types.SimpleNamespace(biases=(later,)))
assert (bias.tolist(), later.tolist()) == ([0, 0, 0], [4])
router.switch(False, True)
assert (bias.tolist(), later.tolist()) == ([0, 5, 0], [4])

# If a switch back was skipped, the next switch back restores the biases.
router.switch(True, True)
assert bias.tolist() == [0, 0, 0]
skip(False)
router.switch(False, True)
assert bias.tolist() == [0, 5, 0], "the device stays balanced"
assert not router._behind
