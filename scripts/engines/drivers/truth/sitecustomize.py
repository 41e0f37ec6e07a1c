"""Counts an engine's steps in its own process. If this file's folder is in PYTHONPATH, Python imports this file at its
start. When the engine imports a module of HOOKS, this file wraps functions of the module so that they write a row for
each step (driver.Steps)."""
import functools
import importlib.machinery
import os
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from driver import Steps  # noqa: E402

STEPS = Steps()


def wrap(owner, name, make):
    inner = getattr(owner, name)
    if not hasattr(inner, "counted"):
        wrapped = functools.wraps(inner)(make(inner))
        wrapped.counted = True
        setattr(owner, name, wrapped)


def vllm_executor(module):
    """Counts each call of vLLM's executor that has tokens to process as one step. To count prompt tokens, keeps the
    number of prompt tokens left for each request."""
    left = {}  # number of prompt tokens not processed yet, by request

    def prefill(output):
        for new in output.scheduled_new_reqs:
            left[new.req_id] = len(new.prompt_token_ids or ()) - new.num_computed_tokens
        found = 0
        for request, tokens in output.num_scheduled_tokens.items():
            part = min(tokens, max(0, left.get(request, 0)))
            left[request] = left.get(request, 0) - part
            found += part
        return found

    def make(inner):
        def execute_model(self, output, *args, **kwargs):
            if not output.total_num_scheduled_tokens:
                return inner(self, output, *args, **kwargs)
            batch = (len(output.num_scheduled_tokens), output.total_num_scheduled_tokens, prefill(output))
            if not LOADS:
                STEPS.add(*batch)
                return inner(self, output, *args, **kwargs)
            began, used = time.monotonic_ns(), time.process_time_ns()
            LOADS.taken()
            try:
                return inner(self, output, *args, **kwargs)
            finally:
                STEPS.add(*batch, began=began, used=used, apart=LOADS.taken())
        return execute_model

    for name in ("UniProcExecutor", "MultiprocExecutor"):
        if name in vars(module):
            wrap(vars(module)[name], "execute_model", make)


BATCH = []  # inputs of the forward passes in SGLang's current step


def sglang_scheduler(module):
    """Counts a call of run_batch as a step. The row's numbers come from the inputs of the forward passes in that
    call (BATCH)."""
    def make(inner):
        def run_batch(self, *args, **kwargs):
            began, used = time.monotonic_ns(), time.process_time_ns()
            BATCH.clear()
            if LOADS:
                LOADS.taken()
            try:
                return inner(self, *args, **kwargs)
            finally:
                STEPS.add(*(BATCH[0] if BATCH else (-1, -1, -1)), began=began, used=used, apart=LOADS.taken() if LOADS else -1)
        return run_batch

    wrap(module.Scheduler, "run_batch", make)


def sglang_runner(module):
    def make(inner):
        def forward(self, *args, **kwargs):
            batch = args[0] if args else kwargs["forward_batch"]
            if batch.forward_mode.is_idle():
                BATCH.append((0, 0, 0))
            else:
                tokens = len(batch.input_ids)
                BATCH.append((batch.batch_size, tokens, 0 if batch.forward_mode.is_decode() else tokens))
            return inner(self, *args, **kwargs)
        return forward

    wrap(module.ModelRunner, "forward", make)


class Loads:
    """Computes how uneven the experts of a layer are used: the number of tokens of the busiest expert minus that of
    the idlest, and of this the maximum over the layer's calls in a step. Counts on the GPU, so captured graphs are
    counted, too. Reading the result makes each step wait for the GPU."""

    def __init__(self):
        self.most = {}  # on the GPU: the largest difference so far, by layer

    def count(self, layer, ids, experts):
        """Counts the tokens per expert in one call of a layer. Negative expert numbers are padding of the batch."""
        import torch
        most = self.most.get(layer)
        if most is None:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a layer of experts is called in a capture first")
            with torch.inference_mode(False):
                most = self.most[layer] = torch.full((), -1, dtype=torch.int64, device=ids.device)
        ids = ids.reshape(-1).long()
        loads = torch.zeros(experts + 1, dtype=torch.int64, device=ids.device)
        loads.scatter_add_(0, torch.where(ids < 0, experts, ids), torch.ones_like(ids))
        torch.maximum(most, loads[:experts].max() - loads[:experts].min(), out=most)

    def taken(self):
        """Returns the largest difference of all layers since the last call of this function, and resets it. Waits
        for the whole GPU, because the engine may use several streams."""
        if not self.most:
            return -1
        import torch
        torch.cuda.synchronize()
        found = max(int(most) for most in self.most.values())
        for most in self.most.values():
            most.fill_(-1)
        torch.cuda.synchronize()
        return found


LOADS = Loads() if os.environ.get("LOADS") == "1" else None


def vllm_router(module):
    """Wraps the method that chooses a layer's experts, in the class that this vLLM release has for it."""
    def make(inner):
        def select_experts(self, *args, **kwargs):
            weights, ids, *more = inner(self, *args, **kwargs)
            LOADS.count(id(self), ids, self.global_num_experts)
            return (weights, ids, *more)
        return select_experts

    for name in ("FusedMoERouter", "BaseRouter") if LOADS else ():
        owner = vars(module).get(name)
        if "select_experts" in vars(owner or object):
            wrap(owner, "select_experts", make)


def sglang_experts(module):
    """Wraps the layer of experts, whose inputs show which experts were chosen."""
    def make(inner):
        def forward(self, hidden_states, topk_output, *args, **kwargs):
            ids = getattr(topk_output, "topk_ids", None)  # None if the kernel of the experts itself makes the choice
            if ids is not None:
                LOADS.count(id(self), ids, self.num_experts)
            return inner(self, hidden_states, topk_output, *args, **kwargs)
        return forward

    if LOADS:
        wrap(module.FusedMoE, "forward", make)


def llama(module):
    """Counts each forward pass of the model in transformers' `generate` as a step."""
    def make(inner):
        def forward(self, input_ids=None, *args, **kwargs):
            if input_ids is not None:
                STEPS.add(*input_ids.shape[:1], input_ids.numel())
            return inner(self, input_ids, *args, **kwargs)
        return forward

    if os.environ.get("TRUTH_OF") != "batching":
        wrap(module.LlamaForCausalLM, "forward", make)


def batching(module):
    """Counts each batch of transformers' continuous batching as a step, with or without a CUDA graph."""
    def make(inner):
        def compute_batch(self, *args, **kwargs):
            STEPS.add()
            return inner(self, *args, **kwargs)
        return compute_batch

    for owner in vars(module).values():
        if isinstance(owner, type) and "compute_batch" in vars(owner):
            wrap(owner, "compute_batch", make)


HOOKS = {
    "vllm.v1.executor.uniproc_executor": vllm_executor,
    "vllm.v1.executor.multiproc_executor": vllm_executor,
    "vllm.model_executor.layers.fused_moe.router.fused_moe_router": vllm_router,
    "vllm.model_executor.layers.fused_moe.router.base_router": vllm_router,
    "sglang.srt.layers.moe.fused_moe_triton.layer": sglang_experts,
    "sglang.srt.managers.scheduler": sglang_scheduler,
    "sglang.srt.model_executor.model_runner": sglang_runner,
    "transformers.models.llama.modeling_llama": llama,
    "transformers.generation.continuous_batching.model_runner": batching,
}


class Finder:
    def find_spec(self, name, path, target=None):
        hook = HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


if "TRUTH_FILE" in os.environ:
    sys.meta_path.insert(0, Finder())
