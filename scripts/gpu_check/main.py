"""gpu-check's command line and main function: runs the checks in order and writes the page."""
import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from doc_commands import main as documentation

from . import (answers, armed, attach, busy, calls, captures, child, consumers, counting, diagnosis, eight, engine_router, engines, first, healthy, host, inside, kernels, layers, pairs, programs, record, records,
               sampled, sources, suites, throughput)
from .checks import Bench, Row
from .plan import all_checks

SHIM = os.path.join(programs.ROOT, "target", "release", "libtllmprof.so")
BLOCK_SECONDS = 0.06
LLAMA = "llama.cpp"
ENGINES = (*engines.ENGINES, LLAMA, "all")
COMMAND = os.path.join(programs.ROOT, "target", "release", "tllmprof")


def options(doc):
    parser = argparse.ArgumentParser(prog="gpu-check", description=doc.strip().split("\n")[0])
    parser.add_argument("--out", metavar="FILE", help="also write the page to FILE")
    parser.add_argument("--only", metavar="NAME", action="append", default=[],
                        help="only checks whose name contains NAME, speeds if it begins with `throughput`, what recording "
                             "costs if it is `record`, the first answer to programs that are run with no option if it is `first` or "
                             "`first: NAME`; may be repeated (see --list)")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)),
                        help="checks that run at a time (default: %(default)s)")
    parser.add_argument("--lib", default=SHIM, help="the shim (default: target/release/libtllmprof.so)")
    parser.add_argument("--graph-trace", choices=("graph", "node"), default="graph",
                        help="how nsys records CUDA graphs (default: %(default)s)")
    parser.add_argument("--llama", metavar="DIR", help="llama.cpp's source, to be built and checked, too")
    parser.add_argument("--suites", metavar="DIR", help="other projects' own tests, too, which get-suites put into DIR; each "
                        "with and without the shim")
    parser.add_argument("--by-run", action="store_true", help="start the tests of --suites by `tllmprof run` instead of with most of the "
                        "library's features on")
    parser.add_argument("--engine", metavar="NAME", action="append", default=[], choices=ENGINES,
                        help="this inference engine, plain and with the shim, and nothing else that --only does not name, which also "
                             f"chooses among its runs (`vllm, offline`); may be repeated: {', '.join(ENGINES)}")
    parser.add_argument("--engines", metavar="DIR", default=os.path.join(programs.ROOT, ".cache", "engines"),
                        help="where pack-engine has put engines (default: .cache/engines), and llama.cpp's source as llama.cpp; what is "
                             "not there is fetched")
    parser.add_argument("--records", metavar="FILE", help="a small record of each engine that --engine names, and of the loops that are "
                        "there, as an archive in FILE; nothing else is run that --only does not name")
    parser.add_argument("--docs", action="store_true", help="the commands of README.md and docs/, on this GPU, and nothing else that "
                        "--only does not name")
    parser.add_argument("--keep", metavar="FOLDER", help="leave reports and exports in FOLDER")
    parser.add_argument("--no-throughput", action="store_true", help="captures only")
    parser.add_argument("--rounds", type=int, default=24,
                        help="rounds of the throughput part for each start (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of the checks and run none")
    given = parser.parse_args()
    given.runs = list(given.only)
    if "all" in given.engine:
        given.engine = [*engines.ENGINES, LLAMA]
    if LLAMA in given.engine:
        given.llama = given.llama or os.path.join(given.engines, LLAMA)
        given.only.append(LLAMA)
    if given.engine or given.records or given.docs:
        # With these options, only their own checks run. No check has `--engine` in its name, so this value of --only
        # excludes all other checks.
        given.only = given.only or ["--engine"]
        given.no_throughput = True
    return given


def wanted(given, name):
    """Returns True if a program's speed is to be measured. --only must then begin with "throughput"; a program's
    name is not enough."""
    return not given.no_throughput and (not given.only or any(
        only in name for only in given.only if only.startswith("throughput")))


def recording(given):
    """Returns True if the cost of recording is to be measured."""
    return not given.no_throughput and (not given.only or record.NAME in given.only)


def wants(given, name):
    return not given.only or any(only in name for only in given.only)


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def line(row):
    ok = {True: "yes", False: "**NO**", None: "skipped"}[row.ok]
    return "| " + " | ".join(cell(c) for c in (row.program, row.linkage, row.rule, row.wanted, row.got, ok)) + " |"


def guarded(check, bench, log):
    began = time.monotonic()
    try:
        row = check.run(bench)
    except Exception as error:  # an error of one check must not lose the results of the others
        row = Row(check.name, check.program.linkage, check.rule_text, check.wanted,
                  f"{type(error).__name__}: {error}", False)
    said = "ok" if row.ok else f"skipped: {row.got}" if row.ok is None else f"DIFFERS: {row.got}"
    log(f"{row.program} ({row.rule}), {time.monotonic() - began:.0f} s: {said}")
    return row


def measured(table):
    """Returns a table's lines. If the table cannot be made, returns a line with the error, so that the results so
    far are not lost."""
    try:
        return list(table())
    except Exception as error:
        return [f"Not measured: {type(error).__name__}: {error}"]


def documented(nsys, ncu, shim, log):
    """Runs the commands in the documentation. Returns (lines, numbers of commands that succeeded, failed, and were
    skipped)."""
    os.environ.update({"TLLMPROF_NSYS": nsys, "TLLMPROF_LIB": shim, "TLLMPROF_COMMAND": COMMAND} |
                      ({"TLLMPROF_NCU": ncu} if ncu else {}))
    ran, skipped, failed = documentation.run(documentation.pages(), True, log)
    lines = ["", "## The documentation's commands", "", f"{ran} ran, {skipped} need what is not here, {len(failed)} failed."]
    for problem in failed:
        lines += ["", "```text", problem.strip(), "```"]
    return lines, ran - len(failed), len(failed), skipped


def main(doc):
    given = options(doc)
    child.end_with_us()
    began = time.monotonic()
    talking = threading.Lock()

    def log(text):
        with talking:
            print(f"[{time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    if given.list:
        table = programs.all_programs("", {})
        for check in all_checks(table):
            print(f"{check.name} ({check.rule_text})")
        print("\n".join([kernels.NAME, layers.NAME, consumers.NAME, diagnosis.NAME, busy.NAME, answers.NAME, captures.NAME, attach.NAME, counting.NAME, healthy.NAME, inside.NAME, armed.NAME, sampled.NAME, sources.NAME, pairs.NAME] + [f"suite {name}" for name in suites.NAMES] +
                        [f"{first.NAME}: {one.name}" for one in first.table_of_programs()] + [f"{eight.NAME}: {part}" for part in eight.PARTS] +
                        [loop.name for loop in throughput.loops(table)] + [calls.NAME, f"{record.NAME} (what it costs)"]))
        return 0
    cuda, nsys, ncu, gpus = host.find_cuda(), host.find_nsys(), host.find_ncu(), host.gpus()
    shim = os.path.abspath(given.lib)
    for what, there in ((f"{shim} (build it with: cargo build --release)", os.path.exists(shim)),
                        ("an NVIDIA GPU that nvidia-smi lists", gpus), ("CUDA's compiler: nvcc", cuda),
                        ("nsys (TLLMPROF_NSYS, PATH, /opt/nvidia)", nsys)):
        if not there:
            print(f"gpu-check: it needs {what}", file=sys.stderr)
            return 2
    folder = os.path.abspath(given.keep) if given.keep else tempfile.mkdtemp(prefix="tllmprof-gpu-check-")
    try:
        os.makedirs(folder, exist_ok=True)
        log("building the programs")
        built = os.path.join(folder, "bin")
        failed = programs.build(cuda, built)
        failed.update(programs.build_llama(given.llama, cuda, built))
        table = programs.all_programs(built, failed)
        bench = Bench(nsys, ncu, shim, COMMAND if os.access(COMMAND, os.X_OK) else None, folder, table, len(gpus),
                      given.graph_trace)
        checks = [check for check in all_checks(table) if not given.only or
                  any(name in check.name for name in given.only)]
        loops = [loop for loop in throughput.loops(table) if wanted(given, loop.name)]
        recorded = [loop for loop in record.loops(table) if recording(given)]
        wants_suites = [name for name in suites.NAMES if given.suites and (
            wants(given, f"suite {name}"))]
        packed = [name for name in given.engine if name != LLAMA]
        parts = [part for part in (consumers, kernels, layers, diagnosis, busy, answers, captures, attach, counting, sources, *(() if given.no_throughput else (healthy, inside, armed, sampled, pairs)))
                 if wants(given, part.NAME)]
        parts += first.parts(given.only)
        of_eight = eight.parts(given.only)
        if not (packed or of_eight or given.records or given.docs or checks or loops or recorded or parts or wants_suites
                or wanted(given, calls.NAME)):
            print(f"gpu-check: no check has {' or '.join(given.only)} in its name (see --list)", file=sys.stderr)
            return 2
        together = [check for check in checks if not check.apart]
        with ThreadPoolExecutor(given.jobs) as pool:
            rows = dict(zip(together, pool.map(lambda check: guarded(check, bench, log), together)))
        for check in checks:
            if check.apart:
                rows[check] = guarded(check, bench, log)
        page = ["# Captured on a real GPU", "", time.strftime("%Y-%m-%d"), "", "| what | version |", "|---|---|"]
        page += [f"| {what} | {cell(version)} |" for what, version in host.versions(cuda, nsys, ncu)]
        page += ["", "## What the windows held", "", "| program | linkage | rule, window | wanted | got | ok |",
                 "|---|---|---|---|---|---|"]
        page += [line(rows[check]) for check in checks]
        more_right = more_wrong = left_out = 0
        for part in parts:
            log(part.NAME)
            lines, right, wrong = part.table(bench, cuda, log)
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        if given.docs:
            log("the documentation's commands")
            lines, right, wrong, left_out = documented(nsys, ncu, shim, log)
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        if given.records:
            log(records.NAME)
            lines, right, wrong = records.table(bench, os.path.abspath(given.engines), log, packed, given.records)
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        elif packed:
            log(engines.NAME)
            lines, right, wrong = engines.table(bench, os.path.abspath(given.engines), log, packed, given.runs, engine_router.check)
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        if of_eight:
            log(eight.NAME)
            lines, right, wrong = eight.table(bench, os.path.abspath(given.engines), log, given.only)
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        if wants_suites:
            log("other projects' own tests")
            lines, right, wrong, more_left_out = suites.table(given.suites, bench, cuda, log, wants_suites, given.by_run)
            left_out += more_left_out
            page, more_right, more_wrong = page + lines, more_right + right, more_wrong + wrong
        if loops:
            log("throughput")  # the measurements of speed come last, because nothing else may run at the same time
            page += ["", "## Throughput", ""]
            page += measured(lambda: throughput.table(loops, bench, given.rounds, BLOCK_SECONDS))
        if recorded:
            log("what recording costs")
            page += ["", "## Recording", ""]
            page += measured(lambda: record.cost(recorded, bench, given.rounds // 2, BLOCK_SECONDS))
        if wanted(given, calls.NAME):
            log("a call's cost")
            page += ["", "## A call", ""]
            page += measured(lambda: calls.table(shim, folder))
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    wrong = [row for row in rows.values() if row.ok is False]
    skipped = left_out + sum(row.ok is None for row in rows.values())
    right = more_right + sum(row.ok is True for row in rows.values())
    page += ["", f"{right} as wanted, {more_wrong + len(wrong)} different, {skipped} skipped, "
             f"in {time.monotonic() - began:.0f} s.", ""]
    text = "\n".join(page)
    print(text)
    if given.out:
        with open(given.out, "w") as out:
            out.write(text)
    return 1 if wrong or more_wrong else 0
