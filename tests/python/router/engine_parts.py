"""Imports modules of vLLM and SGLang from a folder that has only a few of them. Everything else that they import is a
fake.

A fake module has the values in NAMES, an empty base class for classes, and mocks. The machine is of no type that the
engines know, and no option is set.
"""

import collections
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from unittest import mock

import torch
import torch._dynamo
import torch.utils.flop_counter  # imported before triton is replaced by a fake

really_compile = torch.compile
PACKAGES = ("vllm", "sglang", "triton", "flashinfer", "sgl_kernel", "triton_kernels")


class Base(torch.nn.Module):
    """The base class of the engines' fake classes."""

    @staticmethod
    def register(name):
        return lambda kind: kind


class No:
    """A stand-in for an engine's settings: the platform is unknown, and no option is set."""

    __getattr__ = lambda self, name: False if name.startswith("VLLM_") else self
    __call__ = lambda self, *args, **named: self
    __bool__ = lambda self: False


class Recorder:
    """A stand-in for an engine's recorder of experts. It records nothing, and a compiler can follow it."""

    def on_select_experts(self, topk_ids):
        pass

    def capture(self, **named):
        pass


class NotMoved:
    """A stand-in for an engine's table of where experts are: no expert is moved."""

    @classmethod
    def init_new(cls, *args, **named):
        return None


def choose(scores, ids, weights):
    best = scores.topk(ids.shape[-1], -1)
    ids.copy_(best[1])
    weights.copy_(best[0])


def kernel(score):
    """Returns a kernel that writes weights and experts into its first two arguments, by the logits, and possibly a
    bias, in the other arguments."""

    def run(weights, ids, *others, **named):
        given = [one for one in (*others, *named.values()) if isinstance(one, torch.Tensor) and one.is_floating_point()]
        scores = score(next(one for one in given if one.ndim == 2))
        for bias in given:
            if bias.ndim == 1 and bias.numel() == scores.shape[-1]:
                scores = scores + bias
        choose(scores, ids, weights)

    return run


no = No()
KERNELS = types.ModuleType("vllm._custom_ops")
KERNELS.topk_softmax = kernel(lambda logits: logits.softmax(-1))
KERNELS.topk_sigmoid = kernel(torch.sigmoid)
NAMES = {
    "_custom_ops": KERNELS, "current_platform": no, "rocm_aiter_ops": no, "envs": no,
    "is_forward_context_available": bool, "has_forward_context": bool, "vllm_is_batch_invariant": bool,
    "CustomOp": Base, "PluggableLayer": Base, "MultiPlatformOp": Base, "BaseFusedOp": Base,
    "QuantizeMethodBase": object, "UnfinalizedMoEOutput": No,
    "get_bool_env_var": lambda *args: False, "cpu_has_amx_support": bool,
    "global_server_args_dict": collections.defaultdict(int),
    "topk_ids_logical_to_physical": lambda ids, info, *more: ids if info is None else info(ids),
    "expert_location_dispatch": types.SimpleNamespace(transform_select_experts_inputs=(
        lambda correction_bias, info, **its_logits: (*its_logits.values(), correction_bias))),
    "ExpertLocationDispatchInfo": NotMoved,
    "get_global_expert_distribution_recorder": Recorder, "get_global_experts_capturer": Recorder,
    "has_per_rank_fused_shared_slots": lambda *args: False,
    "get_model": lambda: types.SimpleNamespace(
        shared_experts=types.SimpleNamespace(use_waterfill=False, num_shared_topk_slots=0)),
}
for _name in ("cuda", "hip", "npu", "cpu", "xpu", "musa", "gfx95_supported"):
    NAMES["is_" + _name] = bool


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # NAMES has the values of some names, such as the engines' base classes, because a base class has to be a real
        # class. Of the names that are not in NAMES, those in capitals (constants) get False, and the others get a mock.
        value = NAMES.get(name)
        if value is None:
            value = False if name.strip("_").isupper() else mock.MagicMock(name=name)
        setattr(self, name, value)
        return value


class Loader(importlib.machinery.SourceFileLoader):
    """A loader that replaces expressions in files. `changes`: the files, with the expressions and their replacements."""

    changes = ()

    def get_data(self, path):
        text = super().get_data(path).decode()
        for file, expression, instead in self.changes:
            if path.endswith(file):
                text = re.sub(expression, instead, text)
        return text.encode()

    def set_data(self, *args, **named):
        pass


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in PACKAGES:
            return None
        file = os.path.join(self.folder, name.replace(".", "/") + ".py")
        # Only modules of layers come from the engine's source. All other modules are fakes.
        if ".layers." in name and os.path.exists(file):
            return importlib.machinery.ModuleSpec(name, Loader(name, file), origin=file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return KERNELS if spec.name == KERNELS.__name__ else StandIn(spec.name)

    def exec_module(self, module):
        pass


def install(folder, changes):
    Loader.changes = changes
    # torch.compile is replaced by a function that compiles nothing, because the machine may have no compiler.
    torch.compile = lambda *args, **named: args[0] if args and callable(args[0]) else lambda function: function
    sys.meta_path.insert(0, Finder(folder))
    sys.dont_write_bytecode = True
