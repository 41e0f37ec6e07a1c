"""Runs steps, in the way that its argument names, until there is a file `end`. While there is a file `look`, writes
into a file `state` what traces of the library it finds in its own process."""
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import types
import warnings

sys.path.insert(0, os.environ["FIXTURES"])
from py_ctypes import Runtime  # noqa: E402

warnings.simplefilter("ignore")  # hides warnings about forks in a process with several threads
kind = sys.argv[1]
most = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 40
loop = Runtime("libcudart.so.12")
loop.capture()
holding = ctypes.PyDLL(None)
bad = 0
done = 0


class Engine:
    def step(self, number):
        loop.step()
        return sum(self.parts(number))

    def parts(self, number):
        for part in range(20):
            yield part * number


def evaluator():
    if not (3, 9) <= sys.version_info[:2] <= (3, 11):
        return 0
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    get = api._PyInterpreterState_GetEvalFrameFunc
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return get(api.PyInterpreterState_Get())


def tools():
    if sys.version_info < (3, 12):
        return []
    return [sys.monitoring.get_tool(number) for number in range(6)]


class Shares:
    def __init__(self, **named):
        self.__dict__.update(named)


def serve():
    """Imitates an engine, which is recognized by the name of its module."""
    name = "vllm.v1.worker.gpu_model_runner"
    for package in ("vllm", "vllm.v1", "vllm.v1.worker", name):
        sys.modules[package] = types.ModuleType(package)
    module = sys.modules[name]
    source = '''
class GPUModelRunner:
    def _prepare_inputs(self, scheduler_output):
        return scheduler_output.total_num_scheduled_tokens

    def execute_model(self, scheduler_output, launch):
        tokens = self._prepare_inputs(scheduler_output)
        launch()
        return tokens
'''
    exec(compile(source, "/lib/vllm/v1/worker/gpu_model_runner.py", "exec"), module.__dict__)
    cached = Shares(req_ids=["a", "b"], num_output_tokens=[1, 1])
    work = Shares(
        num_scheduled_tokens={"a": 3, "b": 4},
        total_num_scheduled_tokens=7,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
    )
    runner = module.GPUModelRunner()
    return lambda: runner.execute_model(work, loop.step)


def fork():
    """Forks a child that runs some Python code and then ends."""
    child = os.fork()
    if child == 0:
        engine = Engine()
        gc.collect()
        os._exit(sum(engine.parts(1)) - 190)
    return os.waitpid(child, 0)[1] != 0


def state():
    return {"tools": tools(), "callbacks": len(gc.callbacks), "evaluator": evaluator(), "threads": threading.active_count()}


def looks():
    if os.path.exists("look"):
        with open("state.new", "w") as file:
            json.dump(state(), file)
        os.rename("state.new", "state")
        os.remove("look")


def steps():
    global bad, done
    engine = Engine()
    serves = serve() if kind == "serves" else None
    while done < most and (done % 20 or not os.path.exists("end")):
        if serves:
            bad += serves() != 7
        else:
            bad += engine.step(done) != 190 * done
        done += 1
        if done % 5 == 0:
            gc.collect(0)
        if done % 20 == 0:
            looks()
        if kind == "forks" and done % 20 == 0:
            bad += fork()
        if os.path.exists("block"):
            # Reads from the FIFO while holding the GIL. The call returns when another process has written a byte.
            fifo = os.open("block", os.O_RDWR)
            os.rename("block", "blocks")
            holding.read(fifo, ctypes.create_string_buffer(1), 1)
            os.close(fifo)
        if kind == "holds":
            holding.usleep(20_000)  # while holding the GIL
        elif kind == "computes":
            sum(i * i for i in range(20_000))
        else:
            time.sleep(0.001)
        if done == 1:
            print("ready", flush=True)


class Over(Exception):
    pass


def over(*_):
    raise Over


def worker():
    steps()
    if kind == "sleeps":
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


signal.signal(signal.SIGUSR1, over)
before = state()
if kind in ("computes", "holds", "forks", "blocks", "serves"):
    steps()
else:
    thread = threading.Thread(target=worker)
    try:
        thread.start()
        if kind == "sleeps":
            time.sleep(3600)
        while kind == "contends" and thread.is_alive():
            sum(i * i for i in range(2_000))
    except Over:
        pass
    thread.join()
print(f"bad {bad}, {'steps ' + str(done) if most < 1 << 40 else 'ended'}")
if kind == "exits":
    sys.exit(3)
