"""Builds llama.cpp, the program llama_loop.cpp that uses it, and a model for it."""
import os
import shutil
import sys

from gpu_check import child

from .programs import HERE


def must(command, seconds):
    """Runs a command. Returns None, or the reason why it failed."""
    ended = child.run(command, child.variables(), seconds)
    return None if ended.status == 0 else f"{os.path.basename(command[0])}: {ended.why()}"


def build(source, folder, flags=()):
    """Builds llama.cpp and llama_loop.cpp into `folder`, with additional compiler flags. Returns None, or the
    reason why that failed."""
    cores = str(os.cpu_count() or 4)
    off = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")]
    libraries = os.path.join(folder, "bin")
    loop = [os.environ.get("CXX", "c++"), "-O1", *flags, f"-I{source}/include", f"-I{source}/ggml/include", "-o",
            os.path.join(folder, "llama_loop"), os.path.join(HERE, "llama_loop.cpp"), f"-L{libraries}", "-lllama",
            "-lggml", "-lggml-base", "-ldl", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}"]
    cuda = "/usr/local/cuda/bin/nvcc"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    compiler = [] if shutil.which("nvcc") or not os.path.exists(cuda) else [f"-DCMAKE_CUDA_COMPILER={cuda}"]
    return (must(["cmake", "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=ON",
                  "-DCMAKE_CUDA_ARCHITECTURES=90", "-DGGML_CUDA_FA=OFF", "-DGGML_CUDA_GRAPHS=ON",
                  "-DGGML_CUDA_NCCL=OFF", "-DGGML_OPENMP=OFF", *generator, *compiler, *off], 90)
            or must(["cmake", "--build", folder, "--target", "llama", "-j", cores], 330)
            or must(loop, 60)
            or make_model(os.path.join(folder, "tiny.gguf")))


def make_model(path, *shape):
    """Writes a model with tiny_gguf.py. Returns None, or the reason why that failed."""
    return must([sys.executable, "-B", os.path.join(HERE, "tiny_gguf.py"), path, *map(str, shape)], 120)
