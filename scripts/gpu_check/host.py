"""Finds out about this host: the GPU, CUDA's compiler, the profilers, and all their versions."""
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess


def first_line(command, pattern=None):
    """Returns the first line that a command prints, or the first match of a pattern; None if it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    if pattern:
        found = re.search(pattern, done.stdout)
        return found.group(1) if found else None
    return done.stdout.strip().split("\n")[0]


def newest(*patterns):
    found = [path for pattern in patterns for path in glob.glob(pattern) if os.access(path, os.X_OK)]
    return max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], default=None)


def find_nsys():
    return (os.environ.get("TLLMPROF_NSYS") or shutil.which("nsys") or
            newest("/opt/nvidia/nsight-systems*/bin/nsys", "/opt/nvidia/nsight-systems*/*/bin/nsys",
                   "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys", "/usr/local/cuda*/bin/nsys") or
            newest("/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys"))


def find_ncu():
    return (os.environ.get("TLLMPROF_NCU") or shutil.which("ncu") or
            newest("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu"))


def find_cuda():
    """Returns the folder of the CUDA toolkit: the first one that has bin/nvcc, or None."""
    nvcc = shutil.which("nvcc")
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"),
                 os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else None,
                 "/usr/local/cuda", newest("/usr/local/cuda-*")):
        if home and os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
            return home
    return None


def gpus():
    """Returns the names of the GPUs that nvidia-smi lists, as far as programs can use them here."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = re.findall(r"^GPU \d+: (.*?) \(", done.stdout, re.M) if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[:len(list(filter(None, visible.split(","))))]


def has_module(name):
    return importlib.util.find_spec(name) is not None


def package_version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def versions(cuda, nsys, ncu):
    """Returns [(name, version)] of all software that affects the results, so that a reader of the page can repeat
    the run."""
    cupy = [d.metadata["Name"] for d in importlib.metadata.distributions() if
            (d.metadata["Name"] or "").lower().startswith("cupy")]
    rows = [
        ("GPU", ", ".join(gpus())),
        ("driver", first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])),
        ("CUDA toolkit", first_line([f"{cuda}/bin/nvcc", "--version"], r"release [\d.]+, (V[\d.]+)") if cuda else None),
        ("nsys", first_line([nsys, "--version"], r"(\d[\w.-]+)") if nsys else None),
        ("ncu", first_line([ncu, "--version"], r"Version (\S+)") if ncu else None),
        ("Python", platform.python_version()),
        ("torch", package_version("torch")),
        ("transformers", package_version("transformers")),
        ("JAX", package_version("jax")),
        ("CuPy", package_version(*cupy)),
        ("glibc", platform.libc_ver()[1]),
        ("kernel", platform.release()),
    ]
    return [(what, version or "none") for what, version in rows]
