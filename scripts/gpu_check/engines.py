"""Runs real inference engines without and with the library (`--engine NAME --engines FOLDER`). Both runs must give
the same outputs, and the library must count the engine's own steps.

Each engine runs three times under the same load: without the library; with the library, which counts steps by `auto`
and writes a record of some windows; and with the library under nsys. Code inside the engine (scripts/engines/drivers)
counts its own steps and writes one row per step."""
import glob
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field

from engines.drivers.driver import ROW

from . import answers, arrivals, attach, batches, busy, captures, child, hang, healthy, inside, layers, ledger, nsys, sources
from .kernels import Report
from .programs import HERE, ROOT
from .record_file import process_of
from .router_ranks import free_port

NAME = "engines"
DRIVERS = os.path.join(ROOT, "scripts", "engines", "drivers")
MODEL, MODEL_WITH_WEIGHTS, MODEL_OF_EXPERTS = "tiny-llama", "tiny-llama-float16", "tiny-moe"
# A model with 21 GB of weights. Each step reads all of them, so the GPU determines how long a step takes.
WIDE_MODEL = "wide-llama"
# A model of the shape of Llama 3 8B.
MODEL_8B = "llama-8b"
# The first eight layers of that model.
MODEL_8B_PART = "llama-8b-8"
# The models of the check "blocks", by their number of layers.
MODELS_OF = {layers: f"tiny-llama-float16-{layers}" for layers in (4, 8, 32)}
MODELS = {MODEL: [], MODEL_WITH_WEIGHTS: ["--weights"], MODEL_OF_EXPERTS: ["--moe"],
          WIDE_MODEL: ["--wide", "--layers", "12"], MODEL_8B: ["--8b"], MODEL_8B_PART: ["--8b", "--layers", "8"],
          **{name: ["--weights", "--layers", str(layers)] for layers, name in MODELS_OF.items()}}
# First and last iteration of the first window, which nsys captures, too. Each of the other windows is followed by the
# same number of steps outside windows. So the cost of recording can be measured within one process.
FIRST = (20, 60)
WINDOWS = [FIRST] + [(first, first + 49) for first in range(100, 1600, 100)]
SECONDS = 300
# An iteration with at most this number of launches did not run the model, because even one layer of a model makes more
# launches.
FEW = 4
LONE = 3  # a step that takes at least this number of median steps contains the pause between two rounds of the load
TITLE = ("## Real engines", "", "Each engine plain and with the library. *Steps*: by the library, and by the engine itself. *Cost*: "
         "medians of steps, in one process inside and outside its windows; processor time of the process a step, plain and with it.")


@dataclass(frozen=True)
class Run:
    """One way to run an engine. words: a driver and its arguments; the name of a model in MODELS stands for the model's
    folder.

    rule: a pattern for the record's rule. extra: the number of steps that the rule may count beyond the engine's own.
    facts: the record has the contents of each batch. is_server: the library is in the server instead of the driver.
    under_nsys: also runs under nsys. kernel: for an engine that does not count its steps, a kernel that each step
    launches once. looks_at: another check than the load of a plain run:
        "router"    a model with experts (engine_router.py)
        "split"     a window that is split by a condition on the batch (`SPLIT`)
        "busy"      the GPU's busy time by our kernels and by nsys (busy.py)
        "inside"    the cost of a step in windows (inside.py)
        "layers"    the layers of its kernels (layers.py)
        "blocks"    the blocks that are found, compared with the number LAYERS of the model's layers
        "ranks"     the time that the ranks of TP GPUs wait for each other
        "arrivals"  TP ranks of which one is late, with the engine's all-reduce by WAY (arrivals.py)
        "sources"   the same steps by three recorders (sources.py)
        "captures"  captures on demand (captures.py)
        "attach"    attaches to a running server (attach.py)
        "answer"    `tllmprof run` without options (answers.py)
        "hang"      verdicts on a server that is not stuck (hang.py)
        "batches"   batches without their graph, or in a graph that is too large (batches.py)
        "healthy"   three minutes of load in which nothing is planted (healthy.py)
    """

    label: str
    words: tuple
    rule: str
    extra: tuple = (0, 0)
    facts: bool = False
    is_server: bool = False
    under_nsys: bool = True
    looks_at: str = ""
    kernel: str = ""
    variables: dict = field(default_factory=dict)

    @property
    def is_load(self):
        return not self.looks_at


@dataclass(frozen=True)
class Engine:
    """An engine. packed: the name of its archive, or None if it is installed on the host. environment: a function
    that returns the engine's variables for the folder of the unpacked archive."""

    packed: str
    environment: object
    runs: tuple


def before(name, *folders):
    """Returns {name: value} for a path variable such as PYTHONPATH, with `folders` in front of its present
    value."""
    return {name: ":".join([*folders, *filter(None, [os.environ.get(name)])])}


def vllm(site, cache):
    return dict(before("PYTHONPATH", site), VLLM_NO_USAGE_STATS=1, VLLM_DO_NOT_TRACK=1, VLLM_USE_FLASHINFER_SAMPLER=0,
                VLLM_USE_DEEP_GEMM=0, VLLM_USE_RUST_FRONTEND=0, VLLM_CACHE_ROOT=f"{cache}/vllm", TRITON_CACHE_DIR=f"{cache}/triton",
                TORCHINDUCTOR_CACHE_DIR=f"{cache}/inductor", CUDA_MODULE_LOADING="LAZY")


def sglang(site, cache):
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return {**before("PYTHONPATH", site), "SGLANG_IS_FLASHINFER_AVAILABLE": "false", "CUDA_HOME": cuda,
            "TVM_FFI_CUDA_ARCH_LIST": "9.0a", "TVM_FFI_DISABLE_TORCH_C_DLPACK": 1, "TRITON_CACHE_DIR": f"{cache}/triton",
            **before("PATH", f"{cuda}/bin", os.path.join(sys.prefix, "bin"))}


def of_cuda_12(site, _):
    import nvidia
    home = list(nvidia.__path__)[0]
    return {**before("PYTHONPATH", site), **before("LD_LIBRARY_PATH", f"{site}/nv12", f"{home}/cu13/lib", f"{home}/nccl/lib")}


def plain_site(site, _):
    return before("PYTHONPATH", site)


# For the check "split". SPLIT: first and last iteration of the requested window, which has 300 iterations. Only
# iterations that meet the condition count, so the window ends later than requested. CONDITION: the condition, which
# excludes the prompts at the beginning of each round.
SPLIT, CONDITION = (20, 319), "phase=decode and requests>=16"
LONG = dict(REQS=16, TOKENS=128, ROUNDS=8, WARM=8)
# The programs of vllm_batches.py, by what they plant.
BATCHES = {"eager": ("odd_sizes", "sizes_10_to_20", "every_third_period", "every_fifth_step"),
           "padded": ("one_and_512", "half_empty", "gap_to_640", "powers_of_four"), "none": ("healthy",)}
ROUTED = dict(REQS=16, TOKENS=96, ROUNDS=3, WARM=8, SCORES=1, LOADS=1)
MIXED_REQUESTS = f"{os.path.join(HERE, 'mixed_requests.py')} {{url}} {healthy.SECONDS}"
SGLANG_STEP = r"^py:sglang\.srt\.managers\.scheduler:Scheduler\.run_batch$"
ENGINES = {
    "vllm": Engine("vllm", vllm, (
        Run("offline", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", (0, 2), True, variables=LONG),
        Run("server", ("serve.py", "vllm", MODEL), r"^py:vllm\.v1\.worker\.gpu", (0, 2), True, is_server=True, under_nsys=False,
            variables=LONG),
        Run("where split", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="split", variables=LONG),
        Run("busy", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="busy", variables=dict(LONG, ROUNDS=24)),
        Run("inside", ("serve.py", "vllm", MODEL), r"^py:vllm\.v1\.worker\.gpu", is_server=True, looks_at="inside",
            variables=dict(LONG, ROUNDS=36)),
        *(Run(f"tensor parallel {ranks}", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="ranks",
              variables=dict(LONG, ROUNDS=24, TP=ranks, **arrivals.NO_MULTICAST)) for ranks in arrivals.RANKS),
        *(Run(f"arrivals of {ranks} ranks, {way}", (os.path.join(HERE, "arrivals.py"),), "", looks_at="arrivals", variables=dict(TP=ranks, WAY=way))
          for ranks in arrivals.RANKS for way in arrivals.WAYS),
        # vLLM's compile cache is off, because a graph from this cache has no modules (docs/layers.md).
        Run("layers", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="layers",
            variables=dict(LONG, VLLM_DISABLE_COMPILE_CACHE=1)),
        Run("layers, runner V1", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="layers",
            variables=dict(LONG, VLLM_DISABLE_COMPILE_CACHE=1, VLLM_USE_V2_MODEL_RUNNER=0)),
        Run("layers, piecewise graphs", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="layers",
            variables=dict(LONG, VLLM_DISABLE_COMPILE_CACHE=1, GRAPHS="PIECEWISE")),
        *(Run(f"{label}, {layers.NO_GRAPHS}", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="layers",
              variables=dict(LONG, VLLM_DISABLE_COMPILE_CACHE=1, GRAPHS="NONE", **more))
          for label, more in (("layers", {}), ("layers, runner V1", dict(VLLM_USE_V2_MODEL_RUNNER=0)))),
        Run("answer 8B", ("serve.py", "vllm", MODEL_8B), r"^py:vllm\.v1\.worker\.gpu", is_server=True, looks_at="answer", variables=dict(
            CLIENT="-m vllm.entrypoints.cli.main bench serve --backend openai --base-url {url} --model m --tokenizer {model} --dataset-name random "
                   "--random-input-len 256 --random-output-len 128 --num-prompts 160 --request-rate 8 --ignore-eos",
            MORE="--gpu-memory-utilization 0.6 --max-num-seqs 64")),
        Run("answer", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="answer", variables=dict(LONG, ROUNDS=24)),
        Run("hang", ("serve.py", "vllm", MODEL_8B), "", is_server=True, looks_at="hang",
            variables=dict(MORE="--gpu-memory-utilization 0.6 --max-num-seqs 64")),
        # Padding costs time only where the GPU determines how long a step takes.
        *(Run(f"batches {name}", (os.path.join(HERE, "vllm_batches.py"), name, MODEL_8B if kind == "padded" else MODEL_8B_PART), "",
              looks_at="batches", variables=dict(VLLM_ENABLE_V1_MULTIPROCESSING=0, KIND=kind)) for kind, names in BATCHES.items() for name in names),
        Run("healthy", ("serve.py", "vllm", MODEL_8B), "", is_server=True, looks_at="healthy",
            variables=dict(CLIENT=MIXED_REQUESTS, MORE="--gpu-memory-utilization 0.6 --max-num-seqs 64")),
        Run("captures", ("vllm_offline.py", MODEL), r"^py:vllm\.v1\.worker\.gpu", looks_at="captures", variables=dict(LONG, ROUNDS=120)),
        Run("attach", ("serve.py", "vllm", WIDE_MODEL), "^auto$", is_server=True, looks_at="attach",
            variables=dict(LONG, MORE="--gpu-memory-utilization 0.6 --max-num-seqs 16")),
        Run("sources", (sources.PROGRAM, "vllm", MODEL), "", looks_at="sources", variables=dict(VLLM_ENABLE_V1_MULTIPROCESSING=0)),
        # The library logs a message about the routers when the process ends. vLLM kills its worker processes, so they
        # would not log this message. Therefore vLLM runs in one process here.
        Run("router", ("vllm_offline.py", MODEL_OF_EXPERTS), r"^py:vllm\.v1\.worker\.gpu", looks_at="router",
            variables=dict(ROUTED, VLLM_ENABLE_V1_MULTIPROCESSING=0)))),
    "sglang": Engine("sglang", sglang, (
        Run("server", ("serve.py", "sglang", MODEL), SGLANG_STEP, (0, 0), True, is_server=True, under_nsys=False, variables=LONG),
        Run("busy", ("serve.py", "sglang", MODEL), SGLANG_STEP, is_server=True, looks_at="busy", variables=dict(LONG, ROUNDS=24)),
        Run("answer", ("serve.py", "sglang", MODEL), SGLANG_STEP, is_server=True, looks_at="answer", variables=dict(LONG, ROUNDS=24)),
        Run("healthy", ("serve.py", "sglang", MODEL_8B_PART), "", is_server=True, looks_at="healthy",
            variables=dict(CLIENT=MIXED_REQUESTS, MORE="--mem-fraction-static 0.6")),
        Run("inside", ("serve.py", "sglang", MODEL), SGLANG_STEP, is_server=True, looks_at="inside", variables=dict(LONG, ROUNDS=36)),
        Run("layers", ("serve.py", "sglang", MODEL), SGLANG_STEP, is_server=True, looks_at="layers", variables=LONG),
        Run(f"layers, {layers.NO_GRAPHS}", ("serve.py", "sglang", MODEL), SGLANG_STEP, is_server=True, looks_at="layers",
            variables=dict(LONG, MORE="--disable-cuda-graph")),
        Run("attach", ("serve.py", "sglang", WIDE_MODEL), "^auto$", is_server=True, looks_at="attach",
            variables=dict(LONG, MORE="--mem-fraction-static 0.6")),
        Run("router", ("serve.py", "sglang", MODEL_OF_EXPERTS), SGLANG_STEP, is_server=True, looks_at="router",
            variables=dict(ROUTED, TOGETHER=1, MORE="--disable-radix-cache --enable-tokenizer-batch-encode")))),
    "lmdeploy": Engine("lmdeploy", of_cuda_12, (
        Run("offline", ("lmdeploy_offline.py", MODEL_WITH_WEIGHTS), r"^sym:\^turbomind::", kernel="embeddingLookupKernel",
            variables=dict(REQS=16, TOKENS=128, ROUNDS=4)),
        Run("answer", ("lmdeploy_offline.py", MODEL_WITH_WEIGHTS), r"^sym:\^turbomind::", looks_at="answer",
            variables=dict(REQS=16, TOKENS=128, ROUNDS=16)),
        *(Run(f"blocks of {layers} layers", ("lmdeploy_offline.py", model), r"^sym:\^turbomind::", looks_at="blocks",
              variables=dict(REQS=16, TOKENS=128, ROUNDS=4, LAYERS=layers)) for layers, model in MODELS_OF.items()))),
    "onnxruntime": Engine("onnxruntime", plain_site, (
        *(Run(mode, ("onnxruntime_run.py", mode), rule, extra, variables=dict(TOKENS=300, ROUNDS=4))
          for mode, rule, extra in (("run", r"^py:onnxruntime\.", (0, 0)), ("binding", "^auto$", (0, 1)), ("graph", "^auto$", (0, 1)))),
        Run("answer", ("onnxruntime_run.py", "run"), r"^py:onnxruntime\.", looks_at="answer", variables=dict(TOKENS=1000, ROUNDS=8)))),
    "ctranslate2": Engine("ctranslate2", of_cuda_12, (
        Run("offline", ("ctranslate2_offline.py", MODEL_WITH_WEIGHTS), "^auto$", (0, 2),
            variables=dict(REQS=16, TOKENS=128, ROUNDS=6)),)),
    "transformers": Engine("transformers", plain_site, (
        Run("generate", ("transformers_offline.py", "generate", MODEL_WITH_WEIGHTS), r"^py:transformers\.generation\.utils",
            variables=dict(REQS=8, TOKENS=128, ROUNDS=3)),
        Run("answer", ("transformers_offline.py", "generate", MODEL_WITH_WEIGHTS), r"^py:transformers\.generation\.utils", looks_at="answer",
            variables=dict(REQS=8, TOKENS=128, ROUNDS=10)),
        Run("healthy", ("transformers_offline.py", "generate", MODEL_WITH_WEIGHTS), "", looks_at="healthy",
            variables=dict(REQS=8, TOKENS=128, ROUNDS=healthy.ROUNDS)),
        Run("continuous batching", ("transformers_offline.py", "batching", MODEL_WITH_WEIGHTS),
            r"^py:transformers\.generation\.continuous", variables=dict(REQS=8, TOKENS=128, ROUNDS=3, TRUTH_OF="batching")),
        Run("server", ("serve.py", "transformers", MODEL_WITH_WEIGHTS), r"^py:transformers\.generation\.continuous", is_server=True,
            under_nsys=False, variables=dict(REQS=8, TOKENS=128, ROUNDS=3, WARM=8, TRUTH_OF="batching")))),
}


def unpack(folder, name, into):
    """Unpacks an engine into a folder, unless that was done before. Makes its archive in FOLDER if it does not
    exist."""
    site = os.path.join(into, name)
    if os.path.isdir(site):
        return site
    if not os.path.exists(os.path.join(folder, f"{name}.sha256")):
        subprocess.run([os.path.join(ROOT, "scripts", "pack-engine"), name, folder], check=True)
    with open(os.path.join(folder, f"{name}.sha256")) as sums:
        wanted, archive = sums.read().split()
    archive = os.path.join(folder, archive)
    with open(archive, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
            raise RuntimeError(f"{archive}: not the checksum of {name}.sha256")
    os.makedirs(site + ".part")
    if shutil.which("xz"):
        subprocess.run(["tar", "-xJf", archive, "-C", site + ".part"], check=True)
    else:
        with tarfile.open(archive, mode="r:xz") as tar:
            tar.extractall(site + ".part", filter="tar")
    os.rename(site + ".part", site)
    return site


def make_model(name, into, variables):
    path = os.path.join(into, name)
    if not os.path.isdir(path):
        ended = child.run([sys.executable, os.path.join(DRIVERS, "mkmodel.py"), path + ".part", *MODELS[name]], variables)
        if ended.status != 0:
            raise RuntimeError(f"no model: {ended.why()}")
        os.rename(path + ".part", path)
    return path


@dataclass
class Made:
    """The results of an engine's run: the driver's output, the rows that the engine wrote for its own steps, and
    the engine's log."""

    ended: object
    said: dict  # values that the driver printed, by the word at the begin of the line: {word: [values]}
    rows: list
    log: str = ""

    @property
    def outputs(self):
        return [one["outputs"] for one in self.said.get("ROUND", [])]

    def tokens_a_second(self):
        """Returns the tokens per second of each round. Leaves out the first round, in which the engine warms up."""
        rounds = self.said.get("ROUND", [])[1:] or self.said.get("ROUND", [])
        return [one["tokens"] / one["seconds"] for one in rounds]

    def processor_us(self):
        """Returns the processor time per step of the engine's process, in µs. This is the median over the last half
        of the steps."""
        used = [later[1] - row[1] for row, later in zip(self.rows, self.rows[1:])]
        return statistics.median(used[len(used) // 2:]) / 1000 if len(used) > 1 else None


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def rows_of(path):
    """Returns the rows of the process that wrote the most rows to files with this path's prefix."""
    found = []
    for file in glob.glob(glob.escape(path) + ".*"):
        with open(file, "rb") as rows:
            data = rows.read()
        found.append([ROW.unpack_from(data, at) for at in range(0, len(data) - ROW.size + 1, ROW.size)])
    return max(found, key=len, default=[])


def said_in(text):
    said = {}
    for line in text.splitlines():
        what, _, values = line.partition(" ")
        if what in ("UP", "ROUND", "ENDED") and values.startswith("{"):
            said.setdefault(what, []).append(json.loads(values))
    return said


class Bench:
    """The files and the environment with which one engine is run."""

    def __init__(self, bench, folder, name):
        self.bench, self.name, self.engine = bench, name, ENGINES[name]
        self.own = os.path.join(bench.folder, NAME)
        os.makedirs(f"{self.own}/cache", exist_ok=True)
        site = unpack(folder, self.engine.packed, self.own)
        self.site = self.engine.environment(site, f"{self.own}/cache")

    def variables(self, **more):
        mine = {**self.site, "HF_HUB_OFFLINE": 1, "TRANSFORMERS_OFFLINE": 1, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": 1,
                "CACHE": f"{self.own}/cache", **more}
        mine["PYTHONPATH"] = f"{DRIVERS}/truth:{self.site.get('PYTHONPATH', '')}"
        return child.variables(**mine)

    def words(self, run):
        driver, *words = run.words
        return [sys.executable, os.path.join(DRIVERS, driver),
                *(make_model(word, self.own, self.variables()) if word in MODELS else word for word in words)]

    def records(self, run, label=""):
        """Returns a new, empty folder for the records of a run."""
        folder = os.path.join(self.own, f"records-{self.name}-{run.label}{label}".replace(" ", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def made(self, run, label, settings=None, wrap=(), folder=None, seconds=SECONDS, **variables):
        """Runs the engine in `folder`. `settings`: the library's variables. If the engine has a server, only the
        server gets them."""
        truth = os.path.join(self.own, f"truth-{self.name}-{run.label}-{label}".replace(" ", "-"))
        more = dict(run.variables, **variables, TRUTH_FILE=truth, LOG=truth + "-log", PORT=free_port())
        if settings and run.is_server:
            more["WRAP"] = " ".join(f"{name}={value}" for name, value in settings.items())
        else:
            more.update(settings or {})
        ended = child.run([*wrap, *self.words(run)], self.variables(**more), seconds, folder or self.own)
        return Made(ended, said_in(ended.out), rows_of(truth), read(truth + "-log") if run.is_server else ended.err)

    def settings(self, *windows, **more):
        """Returns the library's variables for windows, each (first iteration, last iteration)."""
        given = ",".join(f"{first}-{last}" for first, last in windows)
        return {"LD_PRELOAD": self.bench.shim, "TLLM_PROFILE_START_STOP": given, "TLLMPROF_STEP": "auto", **more}

    def recorded(self, run, label, *windows, **more):
        """Runs the engine with a record of the windows. Returns (the results of the run; the report of the process with
        the most iterations; the file of its record)."""
        folder = self.records(run)
        made = self.made(run, label, self.settings(*windows, TLLMPROF_TRACE=f"{folder}/%p.tllmprof", **more))
        return (made, *largest(self.bench.command, glob.glob(f"{folder}/*.tllmprof")))

    def kept(self, label):
        """Returns the path at which a run's record is kept."""
        return os.path.join(self.own, f"{self.name}-{label}.tllmprof".replace(" ", "-"))

    def under_nsys(self, run, base, settings, graph_trace, capture_end="stop"):
        """Runs the engine under nsys, with a report named `base`. With capture_end None, nsys records the whole
        run."""
        return self.made(run, "nsys", settings, (self.bench.nsys, "profile", "--trace-fork-before-exec=true",
                                                 *nsys.profile_arguments(base, capture_end, graph_trace)))


def largest(command, paths):
    """Returns (the report of the process with the most iterations among these records, the file of its record)."""
    found = [(process_of(command, path), path) for path in paths]
    return max(found, key=lambda one: counted(one[0]), default=(None, None))


def counted(process, text=""):
    """Returns the number of all iterations of a process. It comes from the line that the library logs at exit (in
    `text`). Without that line it comes from the record, which lacks iterations before `auto` learned the step."""
    said = re.findall(r"(\d+) iterations by ", text)
    return int(said[-1]) if said else process["outside"]["iterations"] + (process["inside"] or {"iterations": 0})["iterations"]


def wrong_windows(process, asked, steps):
    """Compares a record's windows with the windows that were requested, as far as the run was long enough. Each
    must have all its iterations, once each. Returns the errors."""
    wrong = []
    held = {window["first"]: [one["n"] for one in window["iterations"]] for window in process["windows"]}
    for first, last in asked:
        wanted = list(range(first, min(last, steps - 1) + 1))
        if wanted and held.get(first, []) != wanted:
            wrong.append(f"window {first}-{last} holds {len(held.get(first, []))} iterations, not {len(wanted)}")
    return wrong


def unlike_facts(process, rows):
    """Compares the batches of iterations with those of the engine's own rows. Returns (number of compared
    iterations, number of mismatches, offset).

    The library and the engine begin to count at different steps. Row n belongs to iteration n + offset. The offset
    is the one with the fewest mismatches."""
    batches = {one["n"]: one["batch"] for window in process["windows"] for one in window["iterations"] if not one["cut"]}
    known = [row[2:5] for row in rows]

    def differing(apart):
        wrong = 0
        for n, batch in batches.items():
            at = n - apart
            row = known[at] if 0 <= at < len(known) else None
            mine = batch and (batch["requests"], batch["tokens"], batch["prefill_tokens"])
            wrong += row is None or mine != row
        return wrong

    apart = min(range(-8, 9), key=lambda one: (differing(one), abs(one)))
    return len(batches), differing(apart), apart


def inside_and_outside(rows, windows, apart):
    """Returns the median durations in ns of steps inside and outside windows, by the engine's own rows. Only steps
    with equal batches are used."""
    steps = [(at + apart, later[0] - row[0], row[2:5]) for at, (row, later) in enumerate(zip(rows, rows[1:]))]
    if not steps:
        return None
    commonest = statistics.mode(row for _, _, row in steps)
    median = statistics.median(ns for _, ns, row in steps if row == commonest)
    alike = [(n, ns) for n, ns, row in steps if row == commonest and ns < LONE * median and n > FIRST[0]]
    inside = [ns for n, ns in alike if any(first <= n < last for first, last in windows)]
    outside = [ns for n, ns in alike if not any(first - 1 <= n <= last for first, last in windows) and n <= windows[-1][1] + 50]
    return (statistics.median(inside), statistics.median(outside)) if inside and outside else None


def alike(made, other):
    """Compares the outputs of two runs. Returns (number of equal outputs, number of outputs)."""
    pairs = [(one, another) for mine, theirs in zip(made.outputs, other.outputs) for one, another in zip(mine, theirs)]
    return sum(one == another for one, another in pairs), len(pairs)


def check_outputs(report, what, plain, armed, again):
    """Checks that the outputs with the library are the same as without it. An output counts only if it is the same in
    each round and in a second run without the library, which `again()` makes."""
    same, of = alike(plain, armed)
    steady = [len({outputs[at] for outputs in plain.outputs[1:]}) == 1 for at in range(len((plain.outputs or [[]])[0]))]
    by_itself = f"{sum(steady)} of {len(steady)} requests have the same output in each round of the plain run"
    is_judged = bool(steady) and all(steady)
    if is_judged and same < of:
        second = alike(plain, again())
        is_judged = second[0] == second[1]
        by_itself += f", and {second[0]} of {second[1]} in a second one"
    report.check(f"{what}: outputs", f"{same} of {of} as in the plain run; {by_itself}", same == of > 0 if is_judged else None if of else False)


def check_run(bench, report, own, run):
    what = f"{own.name}, {run.label}"
    plain = own.made(run, "plain")
    folder = own.records(run)
    armed = own.made(run, "armed", own.settings(*WINDOWS, TLLMPROF_TRACE=f"{folder}/%p.tllmprof"))
    for label, made in (("plain", plain), ("with the library", armed)):
        if made.ended.status != 0 or not made.outputs:
            report.raw(f"{what}, {label}", made.ended)
    version = ((plain.said.get("UP") or [{}])[0].get("version"), armed.said.get("ENDED"))
    report.check(f"{what}: ends", f"status {plain.ended.status} plain, {armed.ended.status} with the library; {version[0] or ''}; rounds "
                 f"{len(plain.outputs)}, {len(armed.outputs)}; servers {plain.said.get('ENDED')}, {version[1]}",
                 plain.ended.status == armed.ended.status == 0 and len(plain.outputs) == len(armed.outputs) > 0
                 and plain.said.get("ENDED") == armed.said.get("ENDED"))
    check_outputs(report, what, plain, armed, lambda: own.made(run, "plain again"))
    process, path = largest(bench.command, glob.glob(f"{folder}/*.tllmprof"))
    if process is None:
        report.raw(f"{what}, with the library", armed.ended)
        return report.check(f"{what}: record", f"none; the library said: {armed.ended.said_by_shim()}", False)
    shutil.copy(path, own.kept(run.label))
    report.check(f"{what}: rule", f"{process['rule']}: {process['rule_why']}", re.search(run.rule, process["rule"]) is not None)
    steps = counted(process, armed.ended.err)
    # If the process is killed, its record may lack the step in progress.
    killed = int(process["state"] == "unfinished")
    if run.kernel:
        guarded(report, f"{what}: steps", check_kernel, bench, report, own, run)
    else:
        report.check(f"{what}: steps", f"{steps}; {len(armed.rows)} by the engine{', which was killed' if killed else ''}",
                     len(armed.rows) > 0 and run.extra[0] - killed <= steps - len(armed.rows) <= run.extra[1])
    wrong = wrong_windows(process, WINDOWS, steps)
    if process["rule"] == "auto" and wrong and wrong[0].startswith(f"window {FIRST[0]}"):
        wrong = wrong[1:]  # with `auto`, the first window may pass before the step is learned
    report.check(f"{what}: windows", "; ".join(wrong) or f"{len(process['windows'])}, with all their iterations; record "
                 f"{process['state']}, {process['dropped']} dropped", not wrong and not process["dropped"])
    apart = 0
    if run.facts:
        compared, unlike, apart = unlike_facts(process, armed.rows)
        report.check(f"{what}: batches", f"{compared - unlike} of {compared} as the engine's own (requests, tokens, tokens of prompts)",
                     compared > 0 and unlike == 0)
    report.check(f"{what}: ledger", *ledger.judge(process))
    check_cost(report, what, plain, armed, apart)
    if run.under_nsys:
        check_nsys(bench, report, own, run, what)
    return None


def check_kernel(bench, report, own, run):
    """Checks the number of steps of an engine that does not count its steps. It must be the number of times that a
    certain kernel ran, which each step launches once."""
    what = f"{own.name}, {run.label}: steps"
    base, trace = nsys.report_base(bench.folder, what), os.path.join(own.records(run, "-steps"), "record.tllmprof")
    made = own.under_nsys(run, base, own.settings((0, ""), TLLMPROF_TRACE=trace), bench.graph_trace, capture_end=None)
    nsys.read(bench.nsys, base, made.ended)
    process = process_of(bench.command, trace)
    steps, launched, empty = counted(process, made.ended.err), nsys.kernels_named(base, run.kernel), empty_steps(process)
    return report.check(what, f"{steps}, {empty} of them with nothing to run; {run.kernel} ran {launched} times by nsys", steps - empty == launched > 0)


def empty_steps(process):
    """Returns the number of iterations in a record's windows that did not run the model: those with at most FEW
    launches."""
    return sum(one["launches"] <= FEW for window in process["windows"] for one in window["iterations"])


def unlike_split(process, first, wanted):
    """Checks a window that is split by a condition. It must have `wanted` iterations whose batches meet the condition,
    and each iteration must be marked by its batch. Returns the errors."""
    held = [one for window in process["windows"] for one in window["iterations"]]
    right = [one for one in held if one["batch"] and one["batch"]["phase"] == "decode" and one["batch"]["requests"] >= 16]
    wrong = [f"{one['n']} is marked wrongly" for one in held if one.get("qualifies") is not (one in right)]
    if len(right) != wanted or any(one["n"] < first for one in held):
        wrong.append(f"{len(right)} of {wanted} iterations qualify, from {held[0]['n'] if held else 'none'} on")
    # The window is closed while the condition does not hold, so it has several parts. But a part stays open for at
    # least 100 ms, even if the condition does not hold any more.
    if len(process["windows"]) < 2:
        wrong.append("it was never closed in between")
    return wrong


def check_split(bench, report, own, run):
    what = f"{own.name}, {run.label}"
    made, process, _ = own.recorded(run, "split", SPLIT, TLLMPROF_WHERE=CONDITION, TLLMPROF_WHERE_SPLIT=1)
    if process is None or made.ended.status != 0:
        report.raw(what, made.ended)
        return report.check(what, made.ended.why(), False)
    wrong = unlike_split(process, SPLIT[0], SPLIT[1] + 1 - SPLIT[0])
    compared, unlike, _ = unlike_facts(process, made.rows)
    if unlike or not compared:
        wrong.append(f"{unlike} of {compared} batches are not the engine's own")
    parts = [(len(window["iterations"]), window["first"], window["last"]) for window in process["windows"]]
    return report.check(what, "; ".join(wrong[:4]) or f"{compared} iterations in {len(parts)} parts: {parts}", not wrong)


def shown(values, unit):
    return f"{statistics.median(values):.0f} {unit} ({min(values):.0f} to {max(values):.0f})" if values else "none"


def check_cost(report, what, plain, armed, apart):
    found = inside_and_outside(armed.rows, WINDOWS, apart)
    spans = f"a step {found[0] / 1000:.1f} us inside windows, {found[1] / 1000:.1f} us outside ({found[1] / found[0]:.3f})" if found else ""
    used = [made.processor_us() for made in (plain, armed)]
    processor = f"processor time {used[0]:.1f} us a step plain, {used[1]:.1f} with it" if all(used) else ""
    report.check(f"{what}: cost", "; ".join(filter(None, (spans, processor, f"{shown(plain.tokens_a_second(), 'tokens/s')} plain, "
                 f"{shown(armed.tokens_a_second(), 'tokens/s')} with it"))), None)


def check_nsys(bench, report, own, run, what):
    base = nsys.report_base(bench.folder, what)
    first, last = FIRST
    # With the rule `auto`, steps are counted only after they have been learned, so the window is later.
    later = 180 if run.rule == "^auto$" else 0
    made = own.under_nsys(run, base, own.settings((first + later, last + later)), bench.graph_trace)
    try:
        traces = nsys.read(bench.nsys, base, made.ended)
    except nsys.Failed as failed:
        return report.check(f"{what}: nsys", str(failed), False)
    held = [sum(one.text.startswith("iteration ") for one in trace.ranges) for trace in traces]
    return report.check(f"{what}: nsys", f"{held} ranges of iterations in its captures, {last - first + 1} wanted",
                        held == [last - first + 1])


def guarded(report, what, act, *arguments):
    """Returns the result of `act(…)`. An error of `act` becomes a failed check, so that the results of other checks
    are not lost."""
    try:
        return act(*arguments)
    except Exception as error:
        report.check(what, f"{type(error).__name__}: {error}", False)
        return None


def table(bench, folder, log, names, only, check_router):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    checks = {"": check_run, "router": check_router, "split": check_split, "busy": busy.check_engine, "captures": captures.check_engine,
              "inside": inside.check_engine, "ranks": arrivals.check_engine, "arrivals": arrivals.check_custom, "layers": layers.check_engine,
              "attach": attach.check_engine, "answer": answers.check_engine, "blocks": layers.check_engine_blocks,
              "sources": sources.check_engine, "hang": hang.check_engine, "batches": batches.check_engine, "healthy": healthy.check_engine}
    for name in names:
        own = guarded(report, name, Bench, bench, folder, name)
        for run in own.engine.runs if own else ():
            what = f"{name}, {run.label}"
            if not only or any(one in what for one in only):
                guarded(report, what, checks[run.looks_at], bench, report, own, run)
    return report.page(*TITLE)
