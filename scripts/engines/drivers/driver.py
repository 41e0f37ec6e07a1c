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

# The row that an engine writes for each of its steps: the time when the step began (ns of CLOCK_MONOTONIC); the
# process's CPU time until then (ns); the numbers of requests, of tokens, and of prompt tokens; and the largest
# difference in tokens between the busiest and the idlest expert of a layer. -1 means not known.
ROW = struct.Struct("<6q")


def env(name, default):
    """Returns an environment variable, converted to the type of its default, or the default if it is not set."""
    value = os.environ.get(name)
    return default if value is None else type(default)(value)


def say(what, **values):
    """Prints a line, a word and JSON, for the program that started this driver."""
    print(what, json.dumps(values), flush=True)


def digest(tokens):
    """Returns a short hash of a request's output."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]


def load(defaults):
    """Returns the load from the environment: (requests, tokens, rounds, warm). `defaults`: the four values for
    variables that are not set."""
    return tuple(env(name, value) for name, value in zip(("REQS", "TOKENS", "ROUNDS", "WARM"), defaults))


def said_round(number, began, tokens, outputs):
    say("ROUND", n=number, seconds=time.time() - began, tokens=tokens, outputs=outputs)


class Steps:
    """Writes a row for each step to TRUTH_FILE.PID. Does not buffer rows, because engines kill their processes at
    the end."""

    file = None

    def add(self, requests=-1, tokens=-1, prefill=-1, began=None, used=None, apart=-1):
        if "TRUTH_FILE" not in os.environ:
            return
        if self.file is None:
            self.file = os.open(f"{os.environ['TRUTH_FILE']}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self.file, ROW.pack(began or time.monotonic_ns(), used or time.process_time_ns(), requests, tokens, prefill, apart))


def refuse(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")
