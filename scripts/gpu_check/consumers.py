"""Checks programs with another profiler that uses CUPTI. The profiler must get the same results as without the
library, whether the library or the profiler is the first to use CUPTI."""
import os
import shutil
import subprocess
import sys

from . import child
from .kernels import Report, environment
from .programs import HERE, ROOT
from .record_file import Record

NAME = "consumers"
STEPS, WINDOW, INNER = 100, "20-80", 60
# (FROM, TO) for each case: the program's own profiler runs from step FROM until before step TO.
# DURING: it begins while the library uses CUPTI. BEFORE: it begins before the library wants to use
# CUPTI. AFTER: it begins after the library has detached CUPTI.
DURING, BEFORE, AFTER = (40, 50), (5, 90), (90, 95)
YIELDED = "another profiler in this process takes CUPTI: no kernels from here"
REFUSED = "no kernels: another profiler has CUPTI"
TITLE = ("## Other users of CUPTI", "", "Each program without the library and with it.")


def build(cuda, folder):
    """Builds the programs and the profiler. Returns ({the way in which the profiler loads CUPTI: its program}, the
    folder of CUPTI's library)."""
    folders = [os.path.join(cuda, *parts) for parts in (("extras", "CUPTI", "lib64"), ("lib64",))]
    cupti = next((one for one in folders if os.path.exists(os.path.join(one, "libcupti.so.13"))), None)
    if not cupti:
        raise RuntimeError(f"no libcupti.so.13 in {folders}")
    made = {}
    for how, options in (("linked", []), ("looked up", ["-DLOOKED_UP"])):
        name = os.path.join(folder, "consumer-" + how.replace(" ", "-"))
        for command in (["cc", "-O1", "-c", "-o", f"{name}.o", *options, os.path.join(ROOT, "tests/kernels/profiler.c")],
                        [os.path.join(cuda, "bin", "nvcc"), "-O2", "-arch=native", "-o", name, f"{name}.o",
                         os.path.join(HERE, "consumer.cu"), "-ldl",
                         *([] if options else ["-Xlinker", os.path.join(cupti, "libcupti.so.13")])]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
            if done.returncode:
                raise RuntimeError(done.stderr[-1000:])
        made[how] = name
    return made, cupti


def compare(bench, report, what, command, line, windows=None, **more):
    """Runs a program without and with the library and compares its output. `line`: the message by which the library
    reports that it gives CUPTI up. `windows`: the iterations whose kernels the library must have recorded."""
    plain = child.run(command, bench.variables(**more))
    trace, variables = environment(bench, "consumer", WINDOW, INNER, TLLM_PROFILE_RECORD_GC=1, TLLMPROF_GIL=1, **more)
    armed = child.run(command, variables)
    report.raw(f"{what}, without the library", plain)
    report.raw(f"{what}, with it", armed)
    record = Record(bench.command, trace) if os.path.exists(trace) else None
    inner = record.inner if record else "no record"
    is_logged = line is None or line in armed.err
    report.check(what, f"status {plain.status}, {armed.status}; {' / '.join(plain.out.split(chr(10))[-4:])}; with it "
                 f"{' / '.join(armed.out.split(chr(10))[-4:])}; kernels taken in {inner}; "
                 f"{'logged' if is_logged else 'NOT logged: ' + str(line)}",
                 plain.status == armed.status == 0 and plain.out == armed.out and is_logged
                 and (windows is None or inner == windows))


def programs_own(bench, report, cuda, folder):
    made, cupti = build(cuda, folder)
    for how, program in made.items():
        for use in ("both", "buffers", "subscription"):
            # In the first case (DURING), the recorded window ends with the iteration before the one in which the
            # program's profiler begins.
            for when, (first, last), line, windows in (
                    ("comes during", DURING, YIELDED, [(20, DURING[0] - 1)]), ("was there before", BEFORE, REFUSED, []),
                    ("comes after", AFTER, None, [(20, 79)])):
                compare(bench, report, f"C, {how}, {use}: {when}", [program, use, str(first), str(last), str(STEPS)], line,
                        windows, LD_LIBRARY_PATH=":".join(filter(None, (cupti, os.environ.get("LD_LIBRARY_PATH")))))
    return made["looked up"]


def profilers_of_frameworks(bench, report):
    if bench.programs["torch_graph"].missing is None:
        for when, (first, last), line in (("during", DURING, YIELDED), ("before", BEFORE, REFUSED)):
            compare(bench, report, f"the PyTorch profiler, which comes {when}",
                    [sys.executable, os.path.join(HERE, "kernels_torch.py"), "inside", str(first), str(last), str(STEPS)], line)
    if bench.programs["jax_jit"].missing is None:
        compare(bench, report, "JAX's profiler, which comes during",
                [sys.executable, os.path.join(HERE, "jax_profiled.py"), *map(str, DURING), str(STEPS)], None)


def under_ncu(bench, report, program):
    if not bench.ncu:
        return report.check("ncu", "there is none", None)
    command = [bench.ncu, "--launch-count", "3", "--section", "LaunchStats", program, "none", "0", "0", "30"]
    plain = child.run(command, bench.variables())
    _, variables = environment(bench, "ncu", "5-20", 10)
    armed = child.run(command, variables)
    profiled = [sum("LaunchStats" in line or line.startswith("==PROF== Profiling") for line in ended.out.splitlines())
                for ended in (plain, armed)]
    report.raw("ncu with the library", armed)
    report.check("ncu: as many kernels, the same result", f"status {plain.status}, {armed.status}; {profiled}",
                 plain.status == armed.status and profiled[0] == profiled[1] > 0
                 and ("result:" in armed.out) == ("result:" in plain.out))
    return None


def table(bench, cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check(NAME, "skipped: no tllmprof command built", None)
        return report.page(*TITLE)
    folder = os.path.join(bench.folder, NAME)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)

    program = report.guarded(programs_own, bench, cuda, folder)
    report.guarded(profilers_of_frameworks, bench)
    if program:
        report.guarded(under_ncu, bench, program)
    return report.page(*TITLE)
