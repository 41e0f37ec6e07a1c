"""gate_alone.py HIDDEN EXPERTS TOKENS: calls one bfloat16 gate (the linear layer that scores the experts) by
itself, and prints a JSON list of the kernels that it launches."""
import json
import sys

import torch

hidden, experts, tokens = map(int, sys.argv[1:])
gate = torch.nn.Linear(hidden, experts, bias=False, dtype=torch.bfloat16, device="cuda")
states = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda")
with torch.inference_mode():
    gate(states)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        gate(states)
        torch.cuda.synchronize()
print(json.dumps(sorted({event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA})))
