"""The command line of scripts/harmless. Decides the order of the runs, makes them, and writes the page."""
import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import cells, page, programs, surroundings
from .kept import Kept
from .packages import Packages
from .settings import PRELOADS, SETTINGS, USUAL, path_in

ROOT = programs.ROOT
PRELOADS_OF_HEAVY = ("jemalloc", "libfaketime")


def rank_of(program, position, number):
    """Returns the rank of a run; lower ranks run first. `position`: the surrounding's position in the program's own
    order. Quick programs pass through several surroundings while a heavy program passes through one. A slow program
    begins when quick programs have had about a quarter of their surroundings."""
    begin, step = (8, 6) if program.is_slow else (2, 4) if program.is_heavy else (0, 1)
    return begin + step * position, number


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def options(doc, arguments=None):
    parser = Parser(prog="harmless", description=doc.strip().split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute's part, with what is installed")
    parser.add_argument("--only", metavar="PROGRAM", action="append", default=[],
                        help="only programs with PROGRAM in their name; may be repeated (see --list)")
    parser.add_argument("--settings", metavar="LIST", default=",".join(USUAL),
                        help=f"of {', '.join(s.name for s in SETTINGS)} (default: %(default)s)")
    parser.add_argument("--in", dest="where", metavar="NAME", action="append", default=[],
                        help="only surroundings and other preloads of this name; may be repeated")
    parser.add_argument("--lib", metavar="FILE", default=os.path.join(ROOT, "target", "release", "libtllmprof.so"),
                        help="the library (default: target/release/libtllmprof.so)")
    parser.add_argument("--out", metavar="FILE", help="write the page there, too")
    parser.add_argument("--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)),
                        help="runs at a time (default: %(default)s)")
    parser.add_argument("--minutes", metavar="N", type=float, help="begin nothing after that long: the rest is left out")
    parser.add_argument("--continue", dest="kept", metavar="FILE",
                        help="add what is compared to FILE, and take from it what an earlier run has compared in the same way with "
                             "the same library")
    parser.add_argument("--list", action="store_true", help="print the programs, surroundings and preloads, and run nothing")
    given = parser.parse_args(arguments)
    names = {setting.name: setting for setting in SETTINGS}
    chosen = [name.strip() for name in given.settings.split(",")]
    for name in chosen:
        if name not in names:
            parser.error(f'--settings "{given.settings}": there is no setting "{name}" (wanted: a list of {", ".join(names)})')
    if given.jobs < 1:
        parser.error(f'--jobs "{given.jobs}": wanted a number from 1')
    if given.minutes is not None and given.minutes <= 0:
        parser.error(f'--minutes "{given.minutes:g}": wanted a number above 0')
    known = [s.name for s in surroundings.ALL] + [p.name for p in PRELOADS]
    for name in given.where:
        if name not in known:
            parser.error(f'--in "{name}": there is none of that name (wanted: one of {", ".join(known)})')
    given.settings = [names[name] for name in chosen]
    return given, parser


@dataclass
class Job:
    """The runs of one program in one surrounding."""
    program: programs.Program
    where: str
    rank: tuple      # lower ranks run first
    act: object      # function that makes the runs and returns their outcomes
    what: tuple = () # everything on which the outcomes depend, except the library

    def not_run(self, settings, why):
        return [cells.Outcome(self.program.name, self.where, setting.name, "left out", [why]) for setting in settings]


def jobs_of(bench, chosen, given, sanitized, preloads):
    """Yields a job for each program and surrounding. Each program first runs in the plain surrounding, and then in all
    others, in an order that starts at a different place for each program. So if the run is ended early, all programs and
    all surroundings have been used."""
    def is_wanted(name):
        return not given.where or name in given.where

    plain = surroundings.ALL[0]
    for number, program in enumerate(chosen):
        why = bench.lacks(program)
        if why:
            job = Job(program, plain.name, (0, number), None)
            job.act = lambda j=job, w=why: j.not_run(given.settings, w)
            yield job
            continue
        places = [(where.name, where, lambda p=program, w=where: surrounded(bench, p, w, given.settings, sanitized))
                  for where in surroundings.ALL
                  if is_wanted(where.name) and where.fits(program) and (where.is_quick or not given.quick)]
        places += [(other.name, other, lambda p=program, o=other, at=path: beside(bench, p, plain, o, at, given.settings))
                   for other, path in preloads
                   if is_wanted(other.name) and (not program.is_heavy or other.name in PRELOADS_OF_HEAVY) and
                   (program.is_direct or not given.quick)]
        is_first = [place[1] is plain or bool(getattr(place[1], "sanitizer", ())) for place in places]
        first = [place for place, is_first in zip(places, is_first) if is_first]
        others = [place for place, is_first in zip(places, is_first) if not is_first]
        turn = number * 5 % len(others) if others else 0
        for position, (name, where, act) in enumerate(first + others[turn:] + others[:turn]):
            yield Job(program, name, rank_of(program, position, number), act, (program, programs.text_of(program), where, given.settings))


def surrounded(bench, program, where, settings, sanitized):
    why = bench.cannot(where)
    if where.sanitizer and not why:
        program, why = surroundings.sanitized(program, where, sanitized)
    if why:
        return [cells.Outcome(program.name, where.name, setting.name, "left out", [why]) for setting in settings]
    return list(cells.outcomes(bench, program, where.name, where, settings, {where.name: bench.library}))


def beside(bench, program, plain, other, path, settings):
    if not path:
        why = bench.packages.why.get(other.package, f"no {os.path.basename(other.pattern)} in Debian's {other.package}")
        return [cells.Outcome(program.name, f"{other.name} first", setting.name, "left out", [why]) for setting in settings]
    orders = {f"{other.name} first": f"{path}:{bench.library}", f"{other.name} last": f"{bench.library}:{path}"}
    return list(cells.outcomes(bench, program, other.name, plain, settings, orders, path, other.variables, other.says))


def ends(number, _):
    sys.exit(128 + number)


def main(doc):
    given, parser = options(doc)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ends)
    began = time.monotonic()
    talking = threading.Lock()

    def log(text):
        with talking:
            print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    library = os.path.abspath(given.lib)
    if not os.path.isfile(library) and not given.list:
        parser.error(f'--lib "{given.lib}": there is no such file (build it with: cargo build --release -p tllmprof-shim)')
    cache = os.path.abspath(os.environ.get("TLLMPROF_CACHE") or os.path.join(ROOT, ".cache"))
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))
    standin = os.path.join(target, "standin")
    folder = tempfile.mkdtemp(prefix="tllmprof-harmless-")
    built = os.path.join(folder, "bin")
    try:
        table = programs.all_programs(cache, built, standin, given.quick)
        chosen = [program for program in table
                  if not given.only or any(only.lower() in program.name.lower() for only in given.only)]
        if not chosen:
            parser.error(f'--only "{given.only[0]}": no program has that in its name (see --list)')
        if given.quick:
            chosen = [program for program in chosen if program.is_quick]
        if given.list:
            for what, all_of in (("programs", chosen), ("surroundings", surroundings.ALL), ("preloads", PRELOADS)):
                print(f"{what}:", ", ".join(one.name for one in all_of))
            return 0
        packages = Packages(cache, log)
        if given.quick:
            packages.unpacked = ""
        else:
            wanted = {name: None for program in chosen for name in program.packages}
            wanted.update({preload.package: None for preload in PRELOADS})
            wanted.update({name: None for name in ("gdb", "strace", "valgrind", "rr", "clang-14", "libclang-rt-14-dev")})
            packages.get(list(wanted))
        if not os.path.exists(os.path.join(standin, "libcuda.so.1")):
            log("no stand-in for CUDA: make -C tests/standin")
        programs.build(built, log)
        sanitized = {} if given.quick else surroundings.build_sanitized(built, packages, log)
        preloads = [(preload, path_in(preload.pattern, packages.unpacked)) for preload in PRELOADS]
        if given.quick:
            preloads = [(preload, path) for preload, path in preloads if preload.name == "libasan" and path]
        keep = [path for path in (ROOT, cache, target, folder, os.path.dirname(library)) if os.path.isdir(path)]
        bench = cells.Bench(library, built, packages, keep, folder)
        if not bench.namespaces:
            log("no namespaces: runs share this machine's files and network, one at a time, and no packages are used")
            given.jobs, packages.unpacked = 1, ""
        jobs = sorted(jobs_of(bench, chosen, given, sanitized, preloads), key=lambda job: job.rank)
        log(f"{len(chosen)} programs, {len(jobs)} places")

        kept = Kept(given.kept, library) if given.kept else None
        reported = set()
        order = {program.name: number for number, program in enumerate(chosen)}

        def work(job):
            if bench.is_stopped:
                return []
            # The programs are built in a folder whose name differs from run to run. The name is removed from the key
            # under which the outcomes are stored, so that later runs find them.
            key = kept and kept.key(str(job.what).replace(folder, ""))
            done = kept.take(key) if kept else None
            if done:
                return done
            if given.minutes and time.monotonic() - began > given.minutes * 60:
                return job.not_run(given.settings, "no time was left")
            done = list(job.act())
            if bench.is_stopped:
                return []
            if kept:
                kept.add(key, done)
            for outcome in done:
                if outcome.verdict == "left out":
                    if (outcome.where, *outcome.why) not in reported:
                        reported.add((outcome.where, *outcome.why))
                        log(f"left out: {outcome.program}, {outcome.where}: {outcome.why[0]}")
                elif outcome.verdict != "same":
                    log("\n    ".join([f"{outcome.verdict.upper()}: {outcome.program}, {outcome.where}, {outcome.setting}",
                                       *outcome.why]))
            return done

        pool, results = ThreadPoolExecutor(given.jobs), []
        try:
            for number, done in enumerate(pool.map(work, jobs)):
                results += done
                if number % 50 == 49:
                    log(f"{number + 1} of {len(jobs)} places")
        finally:
            bench.stop()
            pool.shutdown(cancel_futures=True)
        hides = [(standin, "STAND-IN"), (built, "BUILT"), (folder, "FOLDER"), (cache, "CACHE"),
                 (target, "TARGET"), (ROOT, "REPOSITORY"), (os.path.expanduser("~"), "HOME")]
        results.sort(key=lambda result: order.get(result.program, 0))
        text = page.written(results, given, time.monotonic() - began, hides, kept.taken if kept else 0)
    finally:
        cells.remove(folder)
    if given.quick:
        print(page.summary(results))
    else:
        print(text)
    if given.out:
        with open(given.out, "w") as out:
            out.write(text)
    counts = page.counts(results)
    if not counts["same"]:
        return 1
    return 1 if counts["different"] else 0
