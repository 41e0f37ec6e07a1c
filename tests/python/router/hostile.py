"""hostile.py: does what programs do with their modules in addition to calling them. Prints `name: True` for each result
that is the same as without the library."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import warnings

warnings.filterwarnings("ignore")

import torch

import models
import run

TOKENS = torch.arange(3, 67).view(1, 64)


def spread(model, name, tokens=TOKENS, train=False):
    """Returns, for one call of the model, the difference between the loads of its experts, over all layers."""
    own, seen = models.MODELS[name][1], []
    count = own.get("num_local_experts") or own["num_experts"]
    handles = [gate.register_forward_hook(lambda gate, args, result: seen.append(result)) for _, gate in run.blocks(model)]
    with torch.set_grad_enabled(train):
        logits = model(tokens).logits
    for handle in handles:
        handle.remove()
    loads = [torch.bincount(run.experts_of(result, count, own["num_experts_per_tok"])[0].reshape(-1), minlength=count)
             for result in seen]
    return max(int(load.max() - load.min()) for load in loads), logits


def copied(name):
    model = models.build(name)
    other = copy.deepcopy(model)
    del model
    gc.collect()
    return spread(other, name)[0] <= 1


def pickled(name):
    """A model is pickled. The pickle contains nothing of the library, so it can be read without the library."""
    model = models.build(name)
    model(TOKENS)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model, file.name)
        reads = ("import sys, torch; model = torch.load(sys.argv[1], weights_only=False);"
                 "print(tuple(model(torch.arange(3, 67).view(1, 64)).logits.shape), '_tllmprof_router' in sys.modules)")
        plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", reads, file.name], env=plain, capture_output=True,
                             text=True, timeout=300)
    again = pickle.load(io.BytesIO(pickle.dumps(model)))
    again(TOKENS)
    return out.stdout.strip() == "(1, 64, 256) False" or out.stderr


def rebuilt(name):
    """A hundred models, made one after the other, use no more of the library's layers than one model."""
    module = sys.modules.get("_tllmprof_router")
    for _ in range(100):
        block = models.build(name, num_hidden_layers=1)
    block(TOKENS[:, :7])
    del block
    gc.collect()
    return module is None or (len(module._layers) < 60 and len(module._pending) < 4) or (
        len(module._layers), len(module._pending))


def abandoned(name):
    """Blocks that were never put into a model are freed."""
    import weakref

    model = models.build(name, num_hidden_layers=1)
    kind, config = next((type(block), model.config) for block, _ in run.blocks(model))
    gone = []
    for _ in range(20):
        block = kind(config)
        gone.append(weakref.ref(next(gate for _, gate in run.blocks(block))))
        del block
    gc.collect()
    return all(one() is None for one in gone)


def threads(name):
    model, found = models.build(name), []

    def work(number):
        with torch.no_grad():
            for tokens in (7, 64, 300 + number):
                found.append(model(torch.arange(3, 3 + tokens).remainder(250).view(1, -1)).logits.isfinite().all().item())

    all_of_them = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    return len(found) == 12 and all(found) and not torch.overrides._get_current_function_mode_stack()


def raises(name):
    """An exception that the program raises in the gate reaches the caller unchanged. No state of the call remains."""
    model = models.build(name)
    gate = next(gate for _, gate in run.blocks(model))
    handle = gate.register_forward_pre_hook(lambda gate, args: 1 // 0)
    try:
        model(TOKENS)
        return False
    except ZeroDivisionError:
        pass
    handle.remove()
    return not torch.overrides._get_current_function_mode_stack() and spread(model, name)[0] <= 1


def kinds(name):
    """The results are right with autocast, half precision, inference mode, another default device, and no tokens."""
    found = []
    model = models.build(name)
    with torch.device("meta"):
        found.append(spread(model, name)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(spread(model, name)[0])
    for dtype in (torch.bfloat16, torch.float16):
        found.append(spread(models.build(name).to(dtype), name)[0])
    with torch.inference_mode():
        model(TOKENS)
    block, _ = next(iter(run.blocks(model)))
    block(torch.zeros(1, 0, 64))
    return max(found) <= 1 or found


def trained(name):
    """In training, the experts get gradients, and no gate gets a gradient that is not a number."""
    model = models.build(name).train()
    apart, logits = spread(model, name, train=True)
    logits.sum().backward()
    gates = [parameter.grad for _, gate in run.blocks(model) for parameter in gate.parameters()]
    return apart <= 1 and all(grad is None or bool(grad.isfinite().all()) for grad in gates)


def on_meta(name):
    with torch.device("meta"):
        model = getattr(models.transformers, models.MODELS[name][0] + "ForCausalLM")(models.build(name).config)
    return model(TOKENS.to("meta")).logits.shape == (1, 64, 256)


def among_ranks(name):
    """Runs a block that uses torch.cond, which is not an operator, in its first call on one of several ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = models.build(name)
        for block, _ in run.blocks(model):
            block.register_forward_pre_hook(lambda block, args: (
                torch.cond(args[0].sum() > 0, lambda x: x + 0, lambda x: x - 0, (args[0],)), *args[1:]))
        return spread(model, name)[0] <= 1
    finally:
        torch.distributed.destroy_process_group()


for act in (copied, pickled, rebuilt, abandoned, threads, raises, kinds, trained, on_meta, among_ranks):
    for name in ("mixtral", "jamba"):
        try:
            said = act(name)
        except Exception as error:
            said = "%s: %s" % (type(error).__name__, str(error)[:300])
        print("%s %s: %s" % (act.__name__, name, said), flush=True)
