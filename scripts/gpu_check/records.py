"""Makes small records of real engines (`--records FILE`), with which the report is tested (crates/page/tests/corpus).

Each engine runs once with a window of some iterations, and records kernels in some of these. The compressed records of
all engines are put into one archive."""
import glob
import gzip
import io
import os
import shutil
import tarfile

from . import child, engines, ledger
from .kernels import Report

NAME = "records"
# Sizes of a record: (first iteration of the window, number of iterations, number of iterations with recorded
# kernels). If a record is larger than LARGEST bytes, the next size is tried.
SIZES = ((300, 20, 4), (300, 10, 2), (300, 4, 1))
LARGEST = 120_000
LOOPS = {"torch-graph": ("torch_graph", "auto", 400), "hf-generate": ("hf_generate", "auto", 400), "llama.cpp": ("llama.cpp", "auto", ("10",))}
TITLE = ("## Records of real engines", "", f"Compressed, at most {LARGEST} bytes.")


def settings(bench, folder, size):
    first, many, kernels = size
    return {"LD_PRELOAD": bench.shim, "TLLM_PROFILE_START_STOP": f"{first}-{first + many - 1}", "TLLMPROF_STEP": "auto",
            "TLLMPROF_KERNELS": kernels, "TLLM_PROFILE_RECORD_GC": 1, "TLLMPROF_TRACE": f"{folder}/%p.tllmprof"}


def packed(path):
    with open(path, "rb") as record:
        return gzip.compress(record.read(), 9, mtime=0)


def made(bench, report, what, run):
    """Makes a record with the function `run`, which runs an engine with the settings it is given. Returns the
    compressed record, or None if none is small enough."""
    folder = os.path.join(bench.folder, NAME)
    for size in SIZES:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        ended = run(settings(bench, folder, size))
        process, path = engines.largest(bench.command, glob.glob(f"{folder}/*.tllmprof"))
        if not process or not process["inside"]:
            report.raw(what, ended)
            report.check(what, f"no window in a record; the library said: {ended.said_by_shim()}", False)
            return None
        record = packed(path)
        iterations, kernels = process["inside"]["iterations"], process["kernel_window"]
        if len(record) <= LARGEST:
            report.check(f"{what}: ledger", *ledger.judge(process))
            report.check(what, f"{len(record)} bytes; {process['rule']}; {iterations} iterations, kernels in "
                         f"{kernels['iterations'] if kernels else 0}", True)
            return record
    report.check(what, f"{len(record)} bytes for {iterations} iterations", False)
    return None


def of_engine(bench, folder, name):
    """Yields (label, function) for each way to run the engine under its load. The function runs it with
    settings."""
    own = engines.Bench(bench, folder, name)
    for run in (run for run in own.engine.runs if run.is_load):
        yield f"{name}-{run.label}".replace(" ", "-"), lambda given, run=run: own.made(run, NAME, given).ended


def of_loops(bench):
    for what, (name, rule, steps) in LOOPS.items():
        program = bench.programs[name]
        if not program.missing:
            yield what, lambda given, program=program, steps=steps, rule=rule: child.run(
                program.words(None, *steps) if isinstance(steps, tuple) else program.words(steps), bench.variables(**{**given, "TLLMPROF_STEP": rule}))


def table(bench, folder, log, names, out):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report, found = Report(NAME, log), []

    def take(archive, what, run):
        record = made(bench, report, what, run)
        if record:
            entry = tarfile.TarInfo(f"{what}.tllmprof.gz")
            entry.size = len(record)
            archive.addfile(entry, io.BytesIO(record))
            archive.fileobj.flush()
            found.append(what)

    with open(out, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        for what, run in of_loops(bench):
            engines.guarded(report, what, take, archive, what, run)
        for name in names:
            for what, run in engines.guarded(report, name, lambda name=name: list(of_engine(bench, folder, name))) or ():
                engines.guarded(report, what, take, archive, what, run)
    log(f"{out}: {len(found)} records")
    return report.page(*TITLE)
