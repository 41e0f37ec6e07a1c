"""Parts that the drivers share: the load, the lines that they print, and the engine's own count of its steps.

Environment of each driver: REQS requests at once, TOKENS new tokens each, ROUNDS rounds, WARM tokens of a request
before the rounds, and TRUTH_FILE, a file for the engine's own steps, if any. Only for vLLM and SGLang: with SCORES=1,
an output includes its tokens' log probabilities; with LOADS=1, a step's row includes how even the loads of the experts
were.
"""
import hashlib
import json
import os
import struct
import sys
import time

# A row for a step, by the engine itself: the time when the step began (ns of CLOCK_MONOTONIC); the process's CPU time
# until then (ns); the number of requests, of tokens, and of prompt tokens; and the number of tokens by which the
# busiest expert of a layer exceeds the idlest. -1: not known.
ROW = struct.Struct("<6q")


def env(name, default):
    """Returns a variable, converted to the type of its default."""
    value = os.environ.get(name)
    return default if value is None else type(default)(value)


def say(what, **values):
    """Prints a line for the program that started this one."""
    print(what, json.dumps(values), flush=True)


def digest(tokens):
    """Returns a short hash of a request's output."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]


def load(defaults):
    """Returns the load: (requests, tokens, rounds, warm)."""
    return tuple(env(name, value) for name, value in zip(("REQS", "TOKENS", "ROUNDS", "WARM"), defaults))


def said_round(number, began, tokens, outputs):
    say("ROUND", n=number, seconds=time.time() - began, tokens=tokens, outputs=outputs)


class Steps:
    """Writes a row for each step to TRUTH_FILE.PID without buffering, because engines kill their processes at the
    end."""

    file = None

    def add(self, requests=-1, tokens=-1, prefill=-1, began=None, used=None, apart=-1):
        if "TRUTH_FILE" not in os.environ:
            return
        if self.file is None:
            self.file = os.open(f"{os.environ['TRUTH_FILE']}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self.file, ROW.pack(began or time.monotonic_ns(), used or time.process_time_ns(), requests, tokens, prefill, apart))


def refuse(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")
