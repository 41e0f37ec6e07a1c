"""Runs the programs under the recorder (recorder.c) and packs the streams that it writes."""
import argparse
import glob
import os
import shutil
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from gpu_check import child

from . import llama_cpp, pack
from .llama_cpp import must
from .programs import all_programs

SCRIPTS = os.path.dirname(os.path.abspath(__file__))


def arguments(usage):
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", default="streams", help="where NAME.csv.gz goes (%(default)s)")
    parser.add_argument("--only", metavar="NAME", action="append", help="this program; may be given more than once")
    parser.add_argument("--list", action="store_true", help="print the programs' names")
    parser.add_argument("--two-gpus", action="store_true", help="run what needs two GPUs, and nothing else")
    parser.add_argument("--llama", metavar="DIR", help="llama.cpp's source: it is built, and llama_loop with it")
    parser.add_argument("--jobs", type=int, default=4, help="programs at a time (%(default)s)")
    parser.add_argument("--limit", type=int, default=90, metavar="SECONDS", help="a program's (%(default)s)")
    parser.add_argument("--most", type=int, default=200_000, metavar="BYTES", help="a file's, packed (%(default)s)")
    return parser.parse_args()


def build_recorder(folder):
    library = os.path.join(folder, "librecorder.so")
    failed = must([os.environ.get("CC", "cc"), "-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden", "-o", library,
                   os.path.join(SCRIPTS, "recorder.c"), "-ldl", "-pthread"], 60)
    if failed:
        sys.exit(f"record-streams: the recorder was not built: {failed}")
    return library


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def marks(path):
    with open(path) as file:
        return sum(",mark," in line for line in file)


def collect(folder, name, options):
    """Packs the stream of the process that made the most marks, of all processes that the program started. Returns
    (path, description)."""
    files = glob.glob(os.path.join(folder, "*.csv"))
    if not files:
        return None, "nothing was recorded"
    best = max(files, key=marks)
    packed = pack.pack(best, options.most)
    if packed.iterations == 0:
        return None, f"{packed.calls} calls, and no mark"
    with open(os.path.join(options.out, f"{name}.csv.gz"), "wb") as file:
        file.write(packed.content)
    cut = ", cut" if packed.cut else ""
    return packed, f"{packed.iterations} iterations, {packed.calls} calls, {len(packed.content) // 1000} kB{cut}"


def run_rank(program, rank, port, folder, library, options):
    name = program.name if program.ranks == 1 else f"{program.name}_rank{rank}"
    into = os.path.join(folder, name)
    os.makedirs(into)
    more = dict(program.variables, LD_PRELOAD=library, STREAM_OUT=f"{into}/%p.csv", HF_HUB_OFFLINE="1",
                TOKENIZERS_PARALLELISM="false", TORCHINDUCTOR_CACHE_DIR=f"{into}/inductor",
                TORCHINDUCTOR_COMPILE_THREADS="4")
    if program.ranks > 1:
        more.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=program.ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                    # turns off NVLink multicast, which two ranks do not need, and which not every
                    # machine supports
                    NCCL_NVLS_ENABLE="0")
    began = time.monotonic()
    ended = child.run(program.command, child.variables(**more), options.limit)
    seconds = f"{time.monotonic() - began:.0f} s"
    packed, said = collect(into, name, options)
    shutil.rmtree(into, ignore_errors=True)
    if ended.status != 0:
        said += f"; {ended.why()}"
    print(f"{name}: {said}, {seconds}", flush=True)
    return packed is not None and ended.status == 0


def run_program(program, folder, library, options):
    port = free_port() if program.ranks > 1 else 0
    with ThreadPoolExecutor(program.ranks) as ranks:
        return all(ranks.map(lambda rank: run_rank(program, rank, port, folder, library, options),
                             range(program.ranks)))


def main(usage):
    options = arguments(usage)
    if options.list:
        for program in all_programs("", ""):
            print(program.name, *(["(two GPUs)"] if program.ranks > 1 else []))
        return 0
    unknown = set(options.only or ()) - {program.name for program in all_programs("", "")}
    if unknown:
        sys.exit(f"record-streams: no such program: {', '.join(sorted(unknown))} (--list prints them)")
    if options.llama is None and any(name.startswith("llamacpp") for name in options.only or ()):
        sys.exit("record-streams: llama.cpp's programs need --llama DIR")
    os.makedirs(options.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        library = build_recorder(folder)
        llama = None if options.llama is None else os.path.join(folder, "llama")

        def wanted(program):
            if options.only:
                return program.name in options.only
            return (program.ranks > 1) == options.two_gpus

        def run(program):
            return run_program(program, folder, library, options)

        programs = [program for program in all_programs(llama, f"{llama}/tiny.gguf") if wanted(program)]
        needs_llama = [program for program in programs if program.name.startswith("llamacpp")]
        others = [program for program in programs if program not in needs_llama]
        with ThreadPoolExecutor(1) as builder, ThreadPoolExecutor(max(options.jobs, 1)) as pool:
            building = builder.submit(llama_cpp.build, os.path.abspath(options.llama), llama) if needs_llama else None
            fine = list(pool.map(run, others))
            failed = building.result() if building else None
            if failed:
                print(f"llama.cpp: not built: {failed}", flush=True)
                fine.append(False)
            else:
                fine += pool.map(run, needs_llama)
    print(f"{sum(fine)} of {len(fine)} programs were recorded into {options.out}")
    return 0 if all(fine) else 1
