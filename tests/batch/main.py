"""main.py NAME WAY: runs the engine NAME. Prints a line of JSON for each step with the contents of its batch. PAUSE:
seconds before each step."""

import importlib
import json
import os
import sys
import time

from py_ctypes import Runtime
from serving import BUDGET, REQUESTS, Serving, truth

name, way = sys.argv[1:]
module = importlib.import_module(name)
loop = Runtime("libcudart.so.12")
loop.capture()
engine = module.Engine(way)
serving = Serving(REQUESTS, BUDGET)
for parts in iter(serving.batch, None):
    if len(serving.running) > 100:
        serving.budget = 2000
    if parts or engine.runs_idle:
        time.sleep(float(os.environ.get("PAUSE", "0")))
        engine.step(parts, loop.step)
        print(json.dumps(truth(parts)))
    serving.did(parts)
