"""Torch modules whose classes override the methods by which a library could get the modules' names."""
import torch


class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2)})
        self.again = self.inner

    def named_modules(self, *arguments, **named):
        raise RuntimeError("named_modules is not for others")

    def __hash__(self):
        raise RuntimeError("nor is __hash__")

    def __eq__(self, other):
        raise RuntimeError("nor is __eq__")

    def forward(self, value):
        return self.inner["first"](value)


odd = Odd()
for _ in range(3):
    odd(torch.zeros(1, 2))
print("done")
