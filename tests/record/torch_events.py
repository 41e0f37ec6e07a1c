"""Runs the program tests/python/torch_modules.py in a window of a record."""
import ctypes
import os
import runpy

import torch

runtime = ctypes.CDLL("libcudart.so.12")
for _ in range(2):
    assert runtime.cudaDeviceSynchronize() == 0
here = os.path.dirname(os.path.abspath(__file__))
runpy.run_path(os.path.join(here, "..", "python", "torch_modules.py"), run_name="__main__")
