"""Sends requests of many kinds to a server with OpenAI's API, for SECONDS, and prints how many were answered.

    mixed_load.py URL SECONDS

In turn: short prompts at a steady rate, many long prompts at once, one request after another, and no request at all.
"""
import concurrent.futures
import itertools
import json
import random
import sys
import time
import urllib.request

URL, SECONDS = sys.argv[1], float(sys.argv[2])
# For each phase: its duration in seconds, the number of requests at the same time, and the tokens of a prompt and the
# new tokens of a request. A phase without requests is a pause.
PHASES = ((20, 24, 60, 128), (8, 64, 900, 16), (10, 1, 20, 200), (12, 0, 0, 0), (15, 48, 300, 64), (5, 0, 0, 0))
# Token numbers that exist in the tokenizer of each model that engines/drivers/mkmodel.py makes.
TOKENS = range(10, 500)


def ask(length, tokens, number):
    prompt = random.Random(number).choices(TOKENS, k=length)
    data = dict(model="m", prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
    request = urllib.request.Request(URL + "/v1/completions", json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def main():
    end, numbers, answered = time.monotonic() + SECONDS, itertools.count(), 0
    with concurrent.futures.ThreadPoolExecutor(max(phase[1] for phase in PHASES)) as pool:
        for seconds, at_once, length, tokens in itertools.cycle(PHASES):
            until = min(end, time.monotonic() + seconds)
            if not at_once:
                time.sleep(max(0, until - time.monotonic()))
            while at_once and time.monotonic() < until:
                answered += len(list(pool.map(lambda number: ask(length, tokens, number), itertools.islice(numbers, at_once))))
            if time.monotonic() >= end:
                break
    print(f"ANSWERED {answered}", flush=True)


main()
