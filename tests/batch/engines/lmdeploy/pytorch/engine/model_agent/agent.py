import asyncio

import torch


def tensor(*shape):
    count = 1
    for length in shape:
        count *= length
    return torch.Tensor(bytes(count)).cast("B", shape)


class ModelInputs:
    def __init__(self, parts, way):
        self.input_ids = tensor(1, max(1, sum(part.tokens for part in parts)))
        self.seq_length = tensor(max(1, len(parts)))
        self.is_decoding = all(part.done >= part.request.prompt for part in parts)
        if way != "0.7.3":
            self.is_dummy = not parts


class BaseModelAgent:
    async def _async_model_forward(self, inputs, return_logits=False):
        await asyncio.sleep(0)


class Engine:
    """An imitation of LMDeploy's engine. Each of its batches is either all prefill or all decode."""

    def __init__(self, way):
        self.way, self.agent = way, BaseModelAgent()
        self.runs_idle = way != "0.7.3"
        if way == "under a mode":
            torch._C.modes.append(self)

    def step(self, parts, work):
        asyncio.run(self.agent._async_model_forward(ModelInputs(parts, self.way)))
        work()
