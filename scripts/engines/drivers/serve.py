"""serve.py vllm|sglang|transformers MODEL: starts the engine's server, waits until it is healthy, sends requests, and
stops the server.

Environment: WRAP is put in front of the server's command; with it, the library is preloaded into the server and not
into this program. MORE is added to the end of the command. Both are separated by spaces. PORT is the server's port, and
LOG the file for its output. With TOGETHER=1 (only SGLang), all requests of a round are sent as one, so each round has
the same batches. CLIENT is the command of a Python program that sends the requests instead of this one; {url} and
{model} are replaced in it. Exit status 1: the server did not become healthy, and the last lines of its output are
printed."""
import concurrent.futures
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request

from driver import digest, env, load, said_round, say

ENGINE, MODEL = sys.argv[1:3]
PORT = env("PORT", 8000)
SCORES, TOGETHER = env("SCORES", 0), env("TOGETHER", 0)
URL = f"http://127.0.0.1:{PORT}"
LISTEN = ["--host", "127.0.0.1", "--port", str(PORT)]
SERVERS = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--served-model-name", "m", "--max-model-len", "1024",
             "--gpu-memory-utilization", "0.3", "--load-format", "dummy", *LISTEN],
    "sglang": ["-m", "sglang.launch_server", "--model-path", MODEL, "--mem-fraction-static", "0.3", "--attention-backend", "triton",
               "--sampling-backend", "pytorch", "--grammar-backend", "none", "--max-total-tokens", "32768",
               "--max-running-requests", "16", "--cuda-graph-max-bs-decode", "16", "--disable-prefill-cuda-graph",
               "--load-format", "dummy", *LISTEN],
    "transformers": ["-m", "transformers.cli.transformers", "serve", MODEL, "--continuous-batching", "--dtype", "float16",
                     "--device", "cuda:0", *LISTEN],
}
HEALTHY_SECONDS, END_SECONDS = 300, 30


def post(path, data):
    request = urllib.request.Request(URL + path, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def ask_sglang(text, tokens):
    """Sends a text, or a list of texts, to SGLang's server. Returns the server's answer."""
    return post("/generate", dict(text=text, return_logprob=bool(SCORES),
                                  sampling_params=dict(max_new_tokens=tokens, temperature=0, ignore_eos=True)))


def of_sglang(answer):
    about = answer["meta_info"]
    return about["completion_tokens"], digest([answer["text"], about["output_token_logprobs"] if SCORES else []])


def ask(prompt, tokens):
    """Sends one request to the engine's server. Returns (number of new tokens, hash of the new tokens)."""
    if ENGINE == "sglang":
        return of_sglang(ask_sglang(prompt, tokens))
    if ENGINE == "vllm":
        answer = post("/v1/completions", dict(model="m", prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True))
        return answer["usage"]["completion_tokens"], digest(answer["choices"][0]["text"])
    answer = post("/v1/chat/completions", dict(model=MODEL, messages=[dict(role="user", content=prompt)], max_tokens=tokens,
                                               temperature=0))
    return answer["usage"]["completion_tokens"], digest(answer["choices"][0]["message"]["content"])


def is_healthy(server):
    end = time.time() + HEALTHY_SECONDS
    while time.time() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(URL + "/health", timeout=5):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def stop(server):
    os.kill(server.pid, signal.SIGINT)
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(server.pid, signal.SIGKILL)  # also kills processes that the server started and did not end
    except ProcessLookupError:
        pass
    return server.wait()


def main():
    requests, tokens, rounds, warm = load((16, 128, 2, 8))
    began = time.time()
    log = open(os.environ.get("LOG", f"{ENGINE}.log"), "wb")
    command = [*shlex.split(env("WRAP", "")), sys.executable, *SERVERS[ENGINE], *shlex.split(env("MORE", ""))]
    # A shell starts background jobs with SIGINT ignored, and their children inherit this setting. The server is stopped
    # with SIGINT, so its default handling is restored.
    server = subprocess.Popen(["env", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        if not is_healthy(server):
            sys.exit(1)
        say("UP", seconds=time.time() - began)
        if warm:
            ask("the quick brown fox", warm)
        client = env("CLIENT", "").format(url=URL, model=MODEL)
        if client:
            subprocess.run([sys.executable, *shlex.split(client)], check=True)
        with concurrent.futures.ThreadPoolExecutor(requests) as pool:
            for number in range(0 if client else rounds):
                began = time.time()
                prompts = [f"hello my name is number {i}" for i in range(requests)]
                if TOGETHER:
                    answers = [of_sglang(answer) for answer in ask_sglang(prompts, tokens)]
                else:
                    answers = list(pool.map(lambda prompt: ask(prompt, tokens), prompts))
                said_round(number, began, sum(new for new, _ in answers), [output for _, output in answers])
    finally:
        say("ENDED", status=stop(server))
        log.close()
        with open(log.name, errors="replace") as file:
            sys.stderr.write("".join([line for line in file if line.strip()][-25:]))


if __name__ == "__main__":
    main()
