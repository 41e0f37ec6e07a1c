"""window.py: six steps of a small model with experts, each after a graph launch on the stand-in.

Prints for each step a digest of its logits, and the difference between the loads of its experts.
"""

import os
import sys
import warnings

warnings.filterwarnings("ignore")

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fixtures"))
import models
import run
from py_ctypes import Driver

model = models.build("mixtral")
if "--compiled" in sys.argv:
    model = torch.compile(model)
seen = []
for _, gate in run.blocks(model):
    gate.register_forward_hook(lambda gate, args, result: seen.append(result))
driver = Driver("libcuda.so.1")
driver.capture()
for n in range(6):
    driver.step()
    seen.clear()
    with torch.no_grad():
        logits = model(torch.arange(3, 67).view(1, 64)).logits
    spreads = []
    for result in seen:
        loads = torch.bincount(run.experts_of(result, 8, 2)[0].reshape(-1), minlength=8)
        spreads.append(int(loads.max() - loads.min()))
    print("step", n, run.digest(logits), max(spreads, default=-1), flush=True)
