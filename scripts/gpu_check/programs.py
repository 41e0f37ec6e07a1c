"""Lists the programs that the checks run, and builds the compiled ones."""
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from streams import llama_cpp

from . import host

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Program:
    name: str
    linkage: str  # a text for the page: how the program is linked to CUDA, for example by shared cudart
    command: tuple  # without the argument for the number of steps
    missing: str = None  # None, or the reason why the program cannot run on this machine
    # True if the runtime is linked into the program, so that the library does not see where a runtime call begins
    inlined_runtime: bool = False
    count_option: tuple = ()  # words before the number of steps on the command line

    def words(self, steps, *more):
        if steps is None:  # the program always makes the same number of steps
            return [*self.command, *more]
        return [*self.command, *self.count_option, str(steps), *more]


def build(cuda, folder):
    """Builds the compiled programs into `folder`. Returns {name: the compiler's error} for those that failed."""
    os.makedirs(folder, exist_ok=True)
    nvcc, loop = os.path.join(cuda, "bin", "nvcc"), os.path.join(HERE, "loop.cu")
    cc = os.environ.get("CC") or shutil.which("cc") or "gcc"
    flags = ["-O2", "-arch=native", "-I", HERE]
    lib = next((p for p in (f"{cuda}/lib64", f"{cuda}/targets/x86_64-linux/lib", f"{cuda}/lib") if os.path.isdir(p)), "")
    commands = {
        "loop-static": [nvcc, *flags, "--cudart", "static", "-o", f"{folder}/loop-static", loop, "-ldl", "-lpthread"],
        "loop-shared": [nvcc, *flags, "--cudart", "shared", "-Xlinker", f"-rpath={lib}", "-o", f"{folder}/loop-shared",
                        loop, "-ldl", "-lpthread"],
        "loop-per-thread": [nvcc, *flags, "--default-stream", "per-thread", "-o", f"{folder}/loop-per-thread", loop,
                            "-ldl", "-lpthread"],
        "load": [nvcc, "-O2", "-arch=native", "-o", f"{folder}/load", os.path.join(HERE, "load.cu")],
        "libtruth.so": [cc, "-O2", "-shared", "-fPIC", "-I", f"{cuda}/include", "-o", f"{folder}/libtruth.so",
                        os.path.join(HERE, "truth.c"), "-ldl"],
        "engine": [cc, "-O2", "-o", f"{folder}/engine", os.path.join(ROOT, "examples", "engine.c"), "-ldl"],
    }

    def compile_one(item):
        name, command = item
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        except (OSError, subprocess.TimeoutExpired) as error:
            return name, str(error)
        return name, None if done.returncode == 0 else (done.stderr or done.stdout).strip()[-300:].replace("\n", " / ")

    with ThreadPoolExecutor(len(commands)) as pool:
        return {name: error for name, error in pool.map(compile_one, commands.items()) if error}


def build_llama(source, cuda, folder):
    """Builds llama.cpp and the program that uses it, into `folder`. Returns {name: the compiler's error} if that
    failed."""
    if source is None:
        return {"llama": "llama.cpp's source is not given (--llama)"}
    error = llama_cpp.build(os.path.abspath(source), os.path.join(folder, "llama"),
                            ["-DTRUTH", f"-I{HERE}", f"-I{cuda}/include"])
    return {"llama": error} if error else {}


def all_programs(folder, failed):
    """Returns every program as {name: Program}. `folder`: the folder with the compiled programs. `failed`: the
    errors of those that could not be built."""
    llama = os.path.join(folder, "llama")

    def compiled(name, target, linkage, **more):
        missing = f"not built: {failed[target]}" if target in failed else None
        return Program(name, linkage, (os.path.join(folder, target),), missing, count_option=("--steps",), **more)

    def python(name, module, linkage, **more):
        missing = None if host.has_module(module) else f"no {module}"
        if "libtruth.so" in failed:
            missing = f"libtruth.so was not built: {failed['libtruth.so']}"
        return Program(name, linkage, (sys.executable, os.path.join(HERE, f"{name}.py")), missing, **more)

    programs = [
        compiled("loop-static", "loop-static", "static cudart", inlined_runtime=True),
        compiled("loop-shared", "loop-shared", "shared cudart"),
        compiled("loop-per-thread", "loop-per-thread", "static cudart, per-thread streams", inlined_runtime=True),
        compiled("engine", "engine", "driver only, by dlopen"),
        compiled("load", "load", "static cudart"),
        python("torch_graph", "torch", "torch, RTLD_LOCAL"),
        python("hf_generate", "transformers", "transformers on torch"),
        python("hf_inside", "transformers", "transformers on torch"),
        python("serving", "torch", "torch, graphs and eager work, two threads"),
        python("moe_router", "transformers", "transformers on torch"),
        python("moe_ranks", "transformers", "transformers on torch, two ranks"),
        python("arrivals", "torch", "torch and NCCL"),
        python("splits", "torch", "torch and NCCL"),
        python("hang", "torch", "torch and NCCL"),
        python("jax_jit", "jax", "JAX, driver only"),
        python("cupy_graph", "cupy", "CuPy, its own cudart", inlined_runtime=True),
        # llama_loop makes 200 steps in this mode, so the number is not on its command line.
        Program("llama.cpp", "a plugin of its own, shared cudart",
                (f"{llama}/llama_loop", f"{llama}/tiny.gguf", "single"),
                f"not built: {failed['llama']}" if "llama" in failed else None),
    ]
    return {program.name: program for program in programs}


def llama_with(program, path, *shape):
    """Returns llama.cpp's program with another model, which tiny_gguf.py writes to `path`. `shape`: the number of
    layers and their width."""
    if program.missing:
        return program
    command, _, *words = program.command
    return replace(program, command=(command, path, *words), missing=llama_cpp.make_model(path, *shape))
