"""Defines the programs of a soak test (loads): how each is built and run, and which message it must log at its
end."""
import glob
import json
import os
import subprocess
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "tests", "soak")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
# The maximum number of windows of a load (one program of the soak test). All windows are in one environment variable,
# which must be shorter than the kernel's limit of 128 KiB.
MOST_WINDOWS = 14_400
WINDOWS_A_SECOND = 4
APART = 20  # number of iterations from the begin of one window to the begin of the next
EVERYTHING = {
    "TLLMPROF_TRACE": "%q{SOAK_FOLDER}/%q{SOAK_LOAD}-%p.tllmprof", "TLLMPROF_TRACE_MAX": "256M", "TLLMPROF_NVTX": "1",
    "TLLM_NVTX_DEBUG": "1", "TLLM_LLMAPI_ENABLE_NVTX": "1", "TLLM_PROFILE_RECORD_GC": "1", "TLLMPROF_GIL": "1",
    "TLLMPROF_KERNELS": "1", "ENABLE_PERFECT_ROUTER": "1", "TLLMPROF_PY_RANGES": "__main__:marked",
    "TLLMPROF_STACKS": "1000",
}


class CannotRun(Exception):
    pass


@dataclass
class Load:
    name: str
    program: list
    tickets: int
    seconds: float
    rule: str
    windows: str
    expected: int = 0  # number of windows that must be recorded; 0: not known
    is_plain: bool = False  # runs without the library
    beside: str = ""  # name of another load, without the library, with whose growth this load's growth is compared
    has_children: bool = False  # True if its child processes also write records
    variables: dict = field(default_factory=dict)

    def command(self):
        return [*self.program, str(self.tickets), str(self.seconds)]

    def environment(self, lib, folder, standin):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TLLM", "LD_", "NVTX_"))}
        libraries = (standin, os.path.join(standin, "bin"), os.path.join(standin, "cupti"), os.path.join(folder, "bin"))
        clean.update(LD_LIBRARY_PATH=":".join(libraries), PYTHONDONTWRITEBYTECODE="1")
        if not self.is_plain:
            clean.update(EVERYTHING, LD_PRELOAD=lib, SOAK_FOLDER=folder, SOAK_LOAD=self.name, TLLMPROF_STEP=self.rule,
                         TLLM_PROFILE_START_STOP=self.windows, TLLMPROF_CONTROL=os.path.join(folder, "control"))
        clean.update(self.variables)
        return clean


def one_in(apart, count):
    return ",".join(str(apart // 2 + apart * n) for n in range(count))


def three_in(apart, count):
    return ",".join(f"{apart // 2 + apart * n}-{apart // 2 + apart * n + 2}" for n in range(count))


def must(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRun(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def nvtx_headers():
    machine = os.uname().machine
    said = must(["cargo", "metadata", "--format-version", "1", "--filter-platform", f"{machine}-unknown-linux-gnu",
                 "--manifest-path", os.path.join(ROOT, "Cargo.toml")])
    paths = [package["manifest_path"] for package in json.loads(said)["packages"] if package["name"] == "nvtx-sys"]
    return os.path.join(os.path.dirname(paths[0]), "c", "include")


def pythons():
    """Returns [(path, version)] of the CPythons with a GIL from scripts/list-pythons, newest first."""
    listed = [line.split() for line in must([os.path.join(ROOT, "scripts", "list-pythons")]).splitlines()]
    return [(path, ".".join(version.split(".")[:2])) for path, version, _, gil, _ in reversed(listed) if gil == "gil"]


def libpythons(path, minor):
    """Returns (the prefix of a Python, [(kind, path)] of its libpythons). kind: "shared" or "static"."""
    home = must([path, "-c", "import sys; print(sys.base_prefix)"]).strip()
    kinds = (("shared", f"libpython{minor}.so.1.0"), ("static", f"python{minor}/config-*/libpython{minor}.a"))
    return home, [(kind, found) for kind, name in kinds for found in glob.glob(f"{home}/lib*/{name}")[:1]]


class Workshop:
    """Builds the programs of the loads into FOLDER/bin."""

    def __init__(self, folder, standin):
        self.bin = os.path.join(folder, "bin")
        self.standin = standin
        os.mkdir(self.bin)
        must(["make", "-s", "-C", os.path.join(ROOT, "tests", "standin"), f"OUT={standin}"])
        self.headers = nvtx_headers()

    def build(self, source, name, *options):
        built = os.path.join(self.bin, name)
        must(["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fexceptions", "-DSTANDIN",
              "-I", os.path.join(ROOT, "tests", "standin"), "-I", FIXTURES, "-I", self.headers, "-o", built,
              os.path.join(SOURCES, source), "-L", self.standin, "-Wl,--no-as-needed", *options, "-ldl"])
        return built

    def with_runtime(self, source, name, number, *options):
        return self.build(source, name, f"-l:libcudart.so.{number}", *options)

    def with_python(self, name, library, home):
        """Builds a program that embeds Python through this libpython. Returns None if it cannot be linked or does not
        start, for example because it needs another C library."""
        options = [library, "-lm", "-lutil", "-lz", "-Wl,--export-dynamic"] if library.endswith(".a") else [
            library, f"-Wl,-rpath,{os.path.dirname(library)}"]
        try:
            program = self.build("interpreters.c", name, *options)
            must(["env", f"PYTHONHOME={home}", program, "1", "0"])
            return program
        except CannotRun:
            return None


def interpreters(shop, pythons, seconds):
    """Yields loads that start and end Python interpreters, with one shared and one static libpython, each with and
    without the library."""
    tickets = max(40, min(10_000, int(seconds * 2)))
    done = set()
    for path, minor in pythons:
        if len(done) == 2:
            return
        home, libraries = libpythons(path, minor)
        for kind, library in libraries:
            if kind in done or (program := shop.with_python(f"python-{kind}", library, home)) is None:
                continue
            done.add(kind)
            plain = f"python{minor}-{kind}-plain"
            for is_plain in (True, False):
                yield Load(plain if is_plain else f"python{minor}-{kind}", [program], tickets, seconds, "cudaGraphLaunch", "3",
                           is_plain=is_plain, beside="" if is_plain else plain, variables={"PYTHONHOME": home})


def loads(shop, seconds):
    count = max(10, min(MOST_WINDOWS, int(seconds * WINDOWS_A_SECOND)))
    few = count // 2
    steps = shop.with_runtime("steps.c", "steps", 12)
    forks = shop.with_runtime("forks.c", "forks", 12)
    closes = shop.build("closes.c", "closes")
    for number in (12, 13):
        shop.with_runtime("plugin.c", f"soak{number}.so", number, "-shared", "-fPIC")

    def windows(name, program, rule, windows, known, **more):
        return Load(name, program, APART * count, seconds, rule, windows, known, **more)

    def plain(name, program, tickets):
        return Load(name, program, tickets, seconds, "", "", is_plain=True)

    # The stand-in for CUDA never frees destroyed objects, so that it notices if a program still uses them. So the
    # memory of programs grows without the library, too, and loads are compared with a load without the library.
    beside = {"beside": "steps-plain"}
    yield plain("steps-plain", [steps], APART * count)
    yield windows("launches", [steps], "cudaGraphLaunch", one_in(APART, count), count, **beside)
    yield windows("waits", [steps], "cudaStreamSynchronize", one_in(APART, count), count, **beside)
    yield windows("ranges", [steps], "nvtx:^step$", one_in(APART, count), count, **beside)
    yield windows("functions", [steps], "sym:^soak_step$", one_in(APART, count), count, **beside)
    # The rule `auto` begins to count only after it has learned the step. The program makes its steps in 16 threads, so
    # the rule may count fewer steps than the program makes, and the number of windows is not known.
    yield windows("auto", [steps], "auto", three_in(2 * APART, few), 0, **beside,
                  variables={"TLLMPROF_TRACE_MAX": "2M"})
    found = pythons()
    if found:
        python = [found[0][0], os.path.join(SOURCES, "steps.py")]
        yield plain("python-plain", python, APART * count)
        yield windows("python", python, "py:__main__:step", one_in(2 * APART, few), few, beside="python-plain")
    yield Load("forks", [forks], max(40, int(seconds * 8)), seconds, "cudaGraphLaunch", "3-4,10", has_children=True)
    closings = max(100, min(10_000, int(seconds * 20)))
    yield plain("closes-plain", [closes], closings)
    for name, rule in (("closes", "cudaGraphLaunch"), ("closes-functions", "sym:^soak_step$")):
        yield Load(name, [closes], closings, seconds, rule, one_in(APART, closings // 10), closings // 10, beside="closes-plain")
    yield from interpreters(shop, found, seconds)
