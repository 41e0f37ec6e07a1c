"""transformers_programs.py NAME: programs like those that new users profile first, in PyTorch and transformers.
programs.txt lists them with the expected findings."""
import asyncio
import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from steps import begin_step, main, program, seconds, steps, until_the_end  # noqa: E402

DEVICE, VOCABULARY = "cuda", 32000
torch.set_grad_enabled(False)


def llama(layers, hidden):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
                         num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=8192)
    with torch.device(DEVICE):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def prompt(sequences, length):
    ids = torch.randint(3, VOCABULARY, (sequences, length), device=DEVICE)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False}


@program
def generate():
    """Generates answers to prompts of different lengths, one after another. A step is a forward pass of the
    model."""
    model = llama(12, 2048)
    model.register_forward_pre_hook(begin_step)
    for _, length in zip(until_the_end(), itertools.count(180, 70)):
        model.generate(**prompt(4, length), max_new_tokens=60, min_new_tokens=60)


@program
def assisted_generation():
    """Generates answers with a small model that drafts tokens for a large one. A step is a forward pass of the
    large model."""
    model, draft = llama(12, 2048), llama(2, 512)
    model.register_forward_pre_hook(begin_step)
    for _, length in zip(until_the_end(), itertools.count(90, 50)):
        model.generate(**prompt(1, length), assistant_model=draft, max_new_tokens=40, min_new_tokens=40)


@program
def large_batch():
    """Generates many sequences at once, with flash attention, so the GPU is busy all the time. The program has no
    fault."""
    model = llama(4, 8192)
    model.register_forward_pre_hook(begin_step)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        for _ in until_the_end():
            model.generate(**prompt(768, 32), max_new_tokens=100, min_new_tokens=100)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(8, channels), nn.MultiheadAttention(channels, 8, batch_first=True)
        self.convolutions = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x):
        x = x + self.convolutions(self.norm(x))
        pixels = x.flatten(2).transpose(1, 2)
        return x + self.attention(pixels, pixels, pixels, need_weights=False)[0].transpose(1, 2).reshape(x.shape)


@program
def diffusion():
    """Makes images. Each takes 12 forward passes of a network with guidance, and then a decoder. A step is a
    forward pass."""
    with torch.device(DEVICE):
        net = nn.Sequential(*(Residual(320) for _ in range(4))).half().eval()
        decoder = nn.Sequential(nn.Conv2d(320, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1)).half().eval()
    for _ in until_the_end():
        latent = torch.randn(1, 320, 64, 64, device=DEVICE).half()
        for _ in range(12):
            begin_step()
            plain, guided = net(torch.cat([latent, latent])).chunk(2)
            latent = 0.9 * latent - 0.02 * (plain + 5 * (guided - plain))
        decoder(latent).float().cpu()


@program
def embeddings():
    """Computes embeddings of texts of different lengths in batches. A step is a batch."""
    from transformers import BertConfig, BertModel
    chosen = random.Random(3)
    with torch.device(DEVICE):
        model = BertModel(BertConfig()).half().eval()
    for _ in steps():
        ids = torch.randint(0, 30000, (8, chosen.choice([16, 32, 48, 64, 96, 128]))).to(DEVICE)
        nn.functional.normalize(model(ids).last_hidden_state.mean(1).float(), dim=1).cpu()


@program
def asyncio_server():
    """Serves twelve clients. A batcher collects their requests and runs the model in a separate thread. A step is a
    batch."""
    model, chosen = llama(8, 1024), random.Random(5)
    pool = ThreadPoolExecutor(1)

    @torch.inference_mode()
    def forward(sequences):
        begin_step()
        return model(prompt(sequences, 64)["input_ids"], use_cache=False).logits[:, -1].argmax(-1).tolist()

    async def client(waiting):
        for _ in until_the_end():
            answer = asyncio.get_running_loop().create_future()
            await waiting.put(answer)
            await answer
            await asyncio.sleep(chosen.expovariate(300))

    async def batcher(waiting):
        while True:
            batch = [await waiting.get()]
            while len(batch) < 16 and not waiting.empty():
                batch.append(waiting.get_nowait())
            tokens = await asyncio.get_running_loop().run_in_executor(pool, forward, len(batch))
            for answer, token in zip(batch, tokens):
                answer.set_result(token)

    async def serve():
        waiting = asyncio.Queue()
        running = asyncio.create_task(batcher(waiting))
        await asyncio.wait([asyncio.create_task(client(waiting)) for _ in range(12)], timeout=seconds() + 5)
        running.cancel()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
