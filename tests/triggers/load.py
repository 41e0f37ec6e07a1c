"""A serving loop with mixed load: prefills between decodes. A prefill takes fifty times as long as a decode, which is
normal. An argument `STEP:CAUSE`, any number of them, plants a stall with this cause in a step. STALL is its length in
seconds. LAST is the number of steps. END is how the program ends: `exit`, or `waits`, which waits until the process is
killed. A program that exits prints the steps that took longer than half of a stall, as NUMBER:MILLISECONDS: those with a
stall, and on a busy machine others.
"""
import gc
import os
import sys
import threading
import time

from gpu import Gpu

DECODE, PREFILL = (0, 0) if "FAST" in os.environ else (0.003, 0.15)
STALL = float(os.environ.get("STALL", "0.6"))
STEPS = int(os.environ.get("LAST", "260"))

gpu = Gpu()
gc.disable()
garbage = []


def sleeps():
    time.sleep(STALL)


def waits():
    for _ in range(int(STALL * 2500)):
        gpu.launch(400_000)


def collects():
    garbage.extend([garbage] for _ in range(100_000))
    until = time.monotonic() + STALL
    while time.monotonic() < until:
        gc.collect()


def needs_gil():
    """Makes the step wait for the GIL: another thread holds the GIL, and nothing forces that thread to give it up."""
    sys.setswitchinterval(10)

    def spin():
        until = time.monotonic() + STALL
        while time.monotonic() < until:
            pass

    threading.Thread(target=spin).start()
    # This sleep releases the GIL, and the other thread takes it. So this thread waits for the GIL after the sleep.
    time.sleep(0.01)


PLANTED = {int(step): cause for step, cause in (word.split(":") for word in sys.argv[1:])}


def step(requests, tokens, prompt, number):
    gpu.launch(1000)
    gpu.wait()
    time.sleep(PREFILL if prompt else DECODE)
    if number in PLANTED:
        globals()[PLANTED[number]]()
        gpu.wait()
        sys.setswitchinterval(0.005)


begins = []
for number in range(STEPS):
    prompt = 900 if number % 10 == 4 else 0
    begins.append(time.monotonic())
    step(8, 8 + prompt, prompt, number)
took = [end - begin for begin, end in zip(begins, begins[1:])]

if os.environ.get("END") == "waits":
    print("waits", flush=True)
    time.sleep(600)
else:
    print("slow", *(f"{number}:{seconds * 1000:.0f}" for number, seconds in enumerate(took) if seconds > STALL / 2))
