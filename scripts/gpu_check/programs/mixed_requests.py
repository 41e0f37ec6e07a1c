"""mixed_requests.py URL SECONDS: sends requests to a server with OpenAI's API for some time. Prompts and answers have
different lengths, so that batches mix prompts with decodes, and the load stays the same."""
import concurrent.futures
import json
import random
import sys
import time
import urllib.request

CLIENTS = 16
URL, SECONDS = sys.argv[1], float(sys.argv[2])


def ask(chosen):
    words = " ".join(str(chosen.randrange(100)) for _ in range(chosen.randrange(4, 120)))
    body = dict(model="m", prompt=words, max_tokens=chosen.randrange(16, 160), temperature=0, ignore_eos=True)
    request = urllib.request.Request(f"{URL}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def client(number):
    """Sends one request after the other. Returns (number of requests, number of tokens in the answers)."""
    chosen, made, tokens = random.Random(number), 0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        tokens += ask(chosen)
        made += 1
    return made, tokens


with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
    done = list(pool.map(client, range(CLIENTS)))
print(f"{sum(made for made, _ in done)} requests, {sum(tokens for _, tokens in done)} tokens", flush=True)
