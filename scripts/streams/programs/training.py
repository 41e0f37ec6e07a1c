"""training.py every1 | every10 | accumulate | amp | ddp: a training loop. An iteration is one step of the
optimizer."""
import os
import sys

import torch
from common import DEVICE, VOCABULARY, llama, mark

variant = sys.argv[1]
STEPS = 160
if variant == "ddp":
    torch.cuda.set_device(int(os.environ["RANK"]))
    torch.distributed.init_process_group("nccl")
model = llama().float().train()
forward = torch.nn.parallel.DistributedDataParallel(model) if variant == "ddp" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))
scaler = torch.amp.GradScaler(DEVICE) if variant == "amp" else None
pinned = [torch.randint(3, VOCABULARY, (4, 64)) for _ in range(8)]
if DEVICE == "cuda":
    pinned = [batch.pin_memory() for batch in pinned]
losses = []
for step in range(STEPS):
    mark()
    for part in range(2 if variant == "accumulate" else 1):
        batch = pinned[(step + part) % len(pinned)].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.float16, enabled=scaler is not None):
            loss = forward(input_ids=batch, labels=batch).loss
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    if variant != "every10" or step % 10 == 9:
        losses.append(loss.item())
print("training", variant, f"{losses[0]:.3f} to {losses[-1]:.3f}")
if variant == "ddp":
    torch.distributed.destroy_process_group()
