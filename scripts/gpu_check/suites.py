"""Runs the tests of other projects with and without the library (`--suites FOLDER`, which get-suites fills). The
same tests must pass in both runs. With the library, most of its features are on; or, if `--by-run` is given, the tests
are started by `tllmprof run`, which records what it does by default."""
import glob
import os
import re
import shutil
import site
import subprocess
import venv
import xml.etree.ElementTree as ElementTree
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import child

# Variables that turn on most of the library's features, with windows at iterations that short tests reach and at
# iterations that only long tests reach.
ALL_ON = {
    "TLLM_PROFILE_START_STOP": "5-24,100-119,1000-1019,5000-5099,50000-50099", "TLLMPROF_STEP": "cudaLaunchKernel",
    "TLLMPROF_KERNELS": 5, "TLLM_PROFILE_RECORD_GC": 1, "TLLMPROF_GIL": 1, "TLLM_LLMAPI_ENABLE_NVTX": 1,
    "TLLM_NVTX_DEBUG": 1, "TLLMPROF_STACKS": 1, "TLLMPROF_LAYERS": 1, "TLLMPROF_FLIGHT": 1, "TLLMPROF_CONTROL": 1,
    "TLLMPROF_LOG": "error",
}
SECONDS, SHORT = 900, 120
# If the results with and without the library differ, the differing tests are repeated this number of times with the
# library, and also without it.
AGAIN = 2
WHOLE = "the whole suite"
# A CuPy test that is left out, because it waits forever on a machine with less than four GPUs.
FOUR_GPUS = ("cupy_tests/cuda_tests/test_nccl.py::TestCommSplit",)
# Options of pytest. Results are written as JUnit files in the format xunit1, in which each test has its file name.
PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "-o", "junit_family=xunit1", f"--timeout={SHORT}")
# Groups of NVIDIA's CUDA samples. Samples in these groups need no files that have to be downloaded, end by themselves,
# and check their results.
SAMPLE_GROUPS = ("0_Introduction", "2_Concepts_and_Techniques", "3_CUDA_Features", "6_Performance")
NAMES = ("cupy", "numba-cuda", "torch", "torch-profiler", "samples", "nccl-tests", "compute-sanitizer")
NCCL = ("all_reduce_perf", "all_gather_perf", "broadcast_perf", "reduce_scatter_perf", "sendrecv_perf")
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED, SANITIZED_STEPS = ("loop-static", "loop-shared"), 40


@dataclass
class Outcome:
    """The results of one test, with its name: `plain` without the library, and `armed` with it."""

    plain: dict
    armed: dict

    def shown(self, names, why):
        return "; ".join(f"{name}: {self.plain.get(name, 'not run')}, with the library {self.armed.get(name, 'not run')}" +
                         (f" ({why[name]})" if name in why else "") for name in sorted(names))

    def unlike(self):
        return sorted(name for name in self.plain.keys() | self.armed.keys() if self.plain.get(name) != self.armed.get(name))


class Suite:
    """Another project's tests. Methods: `prepare` returns what is missing, or None; `run` returns {test: result};
    `again` repeats some tests and returns their results."""

    by_run = False  # True if `tllmprof run --` starts the tests with the library

    def __init__(self, name, folder, bench):
        self.name, self.folder, self.bench, self.runs = name, folder, bench, 0
        self.why = {}  # {test: the reason why it failed with the library}

    def prepare(self):
        return None

    def variables(self, is_armed, **more):
        """Returns (a new folder for a run's files, the words in front of the command that starts the tests, the
        environment)."""
        self.runs += 1
        own = os.path.join(self.bench.folder, "suites", f"{self.name}-{self.runs}")
        os.makedirs(own)
        before, trace = [], os.path.join(own, "%p.tllmprof")
        if is_armed and self.by_run:
            before = [self.bench.command, "run", "--trace", trace, "--"]
            more.update(TLLMPROF_LIB=self.bench.shim, TLLMPROF_LOG="error")
        elif is_armed:
            more.update(ALL_ON, LD_PRELOAD=self.bench.shim, TLLMPROF_TRACE=trace)
        return own, before, child.variables(**more)

    def again(self, is_armed, names):
        """Runs all tests again. Returns the results of those in `names`."""
        outcome = self.run(is_armed)
        return {name: outcome.get(name) for name in names}


def outcomes(path):
    """Reads a JUnit file. Returns ({test: passed, failed or skipped}, {failed test: reason}). A test has the name by
    which pytest can run it."""
    found, why = {}, {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        # The class name in a JUnit file begins with the name of the test's module, which is the file name without
        # extension. The part after it is the class inside the module.
        module = os.path.splitext(os.path.basename(case.get("file") or ""))[0]
        inside = f".{case.get('classname')}.".rpartition(f".{module}.")[2].strip(".")
        name = "::".join(filter(None, (case.get("file"), inside.replace(".", "::"), case.get("name"))))
        failed = [one for one in case if one.tag in ("failure", "error")]
        found[name] = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        why.update((name, " ".join((one.get("message") or "").split())[:300]) for one in failed)
    return found, why


class Pytest(Suite):
    """Tests that pytest runs, several at the same time."""

    def __init__(self, name, folder, bench, python, tests, jobs, module):
        super().__init__(name, folder, bench)
        self.python, self.tests, self.jobs, self.module = python, tests, jobs, module

    def prepare(self):
        if not os.path.isdir(self.folder):
            return f"no {self.folder}"
        done = subprocess.run([self.python, "-c", f"import {self.module}, pytest, pytest_timeout"], capture_output=True, text=True)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["python failed"])[-1]

    def run(self, is_armed):
        return self.pytest(is_armed, ["-n", str(self.jobs), *self.tests], SECONDS, WHOLE)

    def pytest(self, is_armed, words, seconds, label):
        """Runs pytest. Returns {test: result}. The entry `label` has the result of pytest itself."""
        own, before, variables = self.variables(is_armed)
        report = os.path.join(own, "report.xml")
        command = [*before, self.python, "-m", "pytest", *PYTEST, f"--rootdir={self.folder}", f"--junitxml={report}", *words]
        ended = child.run(command, variables, seconds, self.folder)
        if not os.path.exists(report):
            return {label: ended.why()}
        found, why = outcomes(report)
        if is_armed:
            self.why.update(why)
        return {**found, label: "passed" if ended.status in (0, 1) else ended.why()}

    def again(self, is_armed, names):
        """Runs each of these tests again, in a process of its own. In a shared process, a test's result could
        depend on the tests before it."""
        if WHOLE in names:
            return self.run(is_armed)
        found = {}
        for name in names:
            found[name] = self.pytest(is_armed, [name], SHORT, WHOLE).get(name)
        return found


class Programs(Suite):
    """Programs that test something. A program has succeeded if its exit status is `well` (0 by default)."""

    def __init__(self, name, folder, bench, build, jobs=8, well=0):
        super().__init__(name, folder, bench)
        self.build, self.jobs, self.well, self.commands, self.unbuilt = build, jobs, well, {}, []

    def prepare(self):
        if not os.path.isdir(self.folder):
            return f"no {self.folder}"
        self.commands, self.unbuilt = self.build(self.folder, os.path.join(self.bench.folder, "suites", self.name))
        return None if self.commands else f"nothing could be built: {self.unbuilt[:1]}"

    def run(self, is_armed, only=None):
        _, before, variables = self.variables(is_armed)

        def one(item):
            name, (command, folder) = item
            ended = child.run([*before, *command], variables, SHORT, folder)
            return name, "passed" if ended.status == self.well else f"status {ended.status}"

        wanted = [item for item in self.commands.items() if only is None or item[0] in only]
        with ThreadPoolExecutor(self.jobs) as pool:
            return dict(pool.map(one, wanted))

    def again(self, is_armed, names):
        return self.run(is_armed, names)


def build_samples(cuda):
    def build(folder, built):
        def one(source):
            name = os.path.basename(source)
            files = [path for end in ("cu", "cpp") for path in sorted(glob.glob(os.path.join(source, f"*.{end}")))]
            into = os.path.join(built, name)
            os.makedirs(into, exist_ok=True)
            done = subprocess.run([os.path.join(cuda, "bin", "nvcc"), "-O1", "-std=c++17", "-arch=native", "-rdc=true",
                                   f"-I{folder}/Common", f"-I{source}", "-o", f"{into}/{name}", *files, "-lcuda", "-lcudadevrt"],
                                  capture_output=True, text=True, timeout=300)
            return name, ([f"{into}/{name}"], source) if done.returncode == 0 else None

        sources = [path for group in SAMPLE_GROUPS for path in sorted(glob.glob(os.path.join(folder, "Samples", group, "*")))
                   if glob.glob(os.path.join(path, "*.cu"))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = dict(pool.map(one, sources))
        return {name: how for name, how in made.items() if how}, sorted(name for name, how in made.items() if not how)
    return build


def build_nccl(cuda, gpus):
    def build(folder, built):
        nccl = next((path for root in site.getsitepackages() for path in glob.glob(f"{root}/nvidia/nccl")), None)
        if not nccl:
            return {}, ["NCCL's Python package is not installed"]
        shutil.copytree(folder, built)
        # nccl-tests links with libnccl.so, a name that NCCL's Python package lacks. So a folder with this link is
        # made.
        home = os.path.join(built, "nccl")
        os.makedirs(f"{home}/lib")
        os.symlink(f"{nccl}/include", f"{home}/include")
        os.symlink(f"{nccl}/lib/libnccl.so.2", f"{home}/lib/libnccl.so")
        done = subprocess.run(["make", "-k", f"-j{os.cpu_count()}", f"CUDA_HOME={cuda}", f"NCCL_HOME={home}",
                               "NVCC_GENCODE=-arch=native"], cwd=built, capture_output=True, text=True, timeout=400)
        words = ["-b", "1K", "-e", "8M", "-f", "8", "-g", str(gpus), "-c", "1", "-n", "20"]
        commands = {name: (["env", f"LD_LIBRARY_PATH={nccl}/lib", f"{built}/build/{name}", *words], built) for name in NCCL
                    if os.path.exists(f"{built}/build/{name}")}
        errors = [line for line in done.stderr.splitlines() if re.search(r"error|\*\*\*", line, re.I)]
        return commands, [f"{name}: {' / '.join(errors)[:300]}" for name in NCCL if name not in commands]
    return build


def build_sanitized(cuda, programs):
    def build(_, __):
        tool = os.path.join(cuda, "bin", "compute-sanitizer")
        tool = tool if os.path.exists(tool) else shutil.which("compute-sanitizer")
        if not tool:
            return {}, ["no compute-sanitizer"]
        return {f"{name} under {check}": ([tool, "--tool", check, "--error-exitcode", "77", *programs[name].words(SANITIZED_STEPS)], None)
                for name in SANITIZED for check in SANITIZERS}, []
    return build


def make_python(folder, into):
    """Makes a virtual environment in `into` whose Python can import the packages of the running Python and the
    pytest wheels in FOLDER."""
    wheels = glob.glob(os.path.join(folder, "runners", "*.whl"))
    venv.create(into, with_pip=False, symlinks=True, system_site_packages=True)
    packages = glob.glob(os.path.join(into, "lib", "python*", "site-packages"))[0]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    with open(os.path.join(packages, "of_the_host.pth"), "w") as file:
        file.write("\n".join(site.getsitepackages()))
    return os.path.join(into, "bin", "python")


def all_suites(folder, bench, cuda):
    python = make_python(folder, os.path.join(bench.folder, "suites", "python"))
    jobs = max(2, (os.cpu_count() or 4) // 2)
    return [
        Pytest("cupy", os.path.join(folder, "cupy", "tests"), bench, python, [
            "cupy_tests/cuda_tests", *(f"--deselect={test}" for test in FOUR_GPUS if bench.gpus < 4)], jobs, "cupy"),
        Pytest("numba-cuda", os.path.join(folder, "numba-cuda", "numba_cuda", "numba", "cuda"), bench, python,
               ["tests/cudapy", "tests/cudadrv"], jobs, "numba.cuda"),
        Pytest("torch", os.path.join(folder, "torch", "test"), bench, python, ["test_cuda.py"], jobs, "torch, expecttest"),
        Pytest("torch-profiler", os.path.join(folder, "torch", "test"), bench, python, ["profiler/test_profiler.py",
               "profiler/test_kineto.py", "profiler/test_record_function.py"], jobs, "torch, expecttest"),
        Programs("samples", os.path.join(folder, "samples"), bench, build_samples(cuda)),
        Programs("nccl-tests", os.path.join(folder, "nccl-tests"), bench, build_nccl(cuda, bench.gpus), jobs=1),
        Programs("compute-sanitizer", folder, bench, build_sanitized(cuda, bench.programs), jobs=4, well=3),
    ]


def judged(suite):
    """Runs a suite with and without the library. Returns (description, verdict): True if the results are the same,
    False if not, None if the suite cannot run."""
    missing = suite.prepare()
    if missing:
        return f"left out: {missing}", None
    first = Outcome(suite.run(False), suite.run(True))
    unlike, once = first.unlike(), []
    for _ in range(AGAIN):
        if unlike:
            repeated = Outcome(suite.again(False, unlike), suite.again(True, unlike)).unlike()
            once += [name for name in unlike if name not in repeated]
            unlike = [name for name in unlike if name in repeated]
    passed, skipped = (sum(one == outcome for one in first.plain.values()) for outcome in ("passed", "skipped"))
    text = (f"{len(first.plain)} run: {passed} passed, {len(first.plain) - passed - skipped} failed, {skipped} skipped "
            "without the library")
    if getattr(suite, "unbuilt", None):
        text += f"; {len(suite.unbuilt)} cannot be built: {', '.join(suite.unbuilt)}"
    if once:
        text += f"; {len(once)} different at first and not when run again: {first.shown(once, suite.why)}"
    text += f"; {len(unlike)} different" + (f": {first.shown(unlike, suite.why)}" if unlike else "")
    return text, not unlike and passed > 0


def table(folder, bench, cuda, log, names, by_run=False):
    """Runs the suites in `names`. Returns (lines of the page, number of passed, failed and skipped suites)."""
    suites = [suite for suite in all_suites(os.path.abspath(folder), bench, cuda) if suite.name in names]
    for suite in suites:
        suite.by_run = by_run

    def one(suite):
        try:
            text, ok = judged(suite)
        except Exception as error:  # an error of one suite must not lose the results of the others
            text, ok = f"{type(error).__name__}: {error}", False
        log(f"{'ok' if ok else 'left out' if ok is None else 'DIFFERS'}: {suite.name}: {text[:600]}")
        return suite.name, text, ok

    with ThreadPoolExecutor(len(suites)) as pool:
        rows = list(pool.map(one, suites))
    page = ["", "## Other projects' own tests", "",
            f"Each is run without the library and {'by `tllmprof run`' if by_run else 'with everything switched on'}; what differs is run "
            "again both ways.", "",
            "| suite | got | ok |", "|---|---|---|"]
    for name, text, ok in rows:
        shown = {True: "yes", False: "**NO**", None: "left out"}[ok]
        page.append(f"| {name} | {text.replace('|', chr(92) + '|')} | {shown} |")
    found = [ok for _, _, ok in rows]
    return page, found.count(True), found.count(False), found.count(None)
