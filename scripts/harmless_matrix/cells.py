"""Runs programs without and with the library, compares the results, and returns the outcomes."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

from . import compare
from .settings import RECORDS
from .surroundings import AFTER_A_SIGNAL, AT_FORK, LOADER

INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside.py")
STREAMS = ["out", "err", "files", "left", "census"]
OURS = "tllmprof:"
# Matches the descriptors that the library may open in a program: the control socket, and a file with a thread's
# scheduling times at descriptor 64 or above. The socket is matched at any number, because it is below 64 while it
# is being created. The compared programs that use CUDA have no sockets of their own.
DESCRIPTOR = re.compile(r"\d+=socket:|(?:6[4-9]|[7-9]\d|\d{3,})=/proc/\d+/task/\d+/schedstat")
# Matches the process ID of a child in gdb's output. The ID is masked before outputs are compared: processes and threads
# get their IDs from one sequence, so the library's threads change the IDs of children.
CHILD = re.compile(r"(?<=child process )\d+")
THREADS = {f"thread {name}" for name in ("tllmprof", "tllmprof-stacks", "tllmprof-live")}
BROKEN = ("command not found", "error while loading shared libraries", "No such file or directory: '/usr/lib",
          "cannot execute", "not started:")
# BASELINES: number of runs without the library with which each comparison begins. If a result then differs, up to
# MORE_BASELINES more runs without the library are made. A result that varies from run to run may have been the same in
# the first runs by chance.
BASELINES, MORE_BASELINES = 2, 6
# Maximum number of attempts to find out the system calls of a program, for a seccomp filter that allows only these.
FITS = 4
FOLDERS = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
NAMESPACES = [["unshare", "-rmpnf", "--mount-proc", "--kill-child"], []]


@dataclass
class Outcome:
    program: str
    # surrounding in which the program ran (such as "gdb"), or the order of the library and another
    # preloaded library
    where: str
    setting: str
    # "same"; "once" (different in one run, but not when repeated); "different"; or "left out"
    verdict: str
    why: list = field(default_factory=list)
    varies: tuple = ()
    seconds: tuple = ()          # durations in s: without and with the library


class Bench:
    """The library under test, and the folders with which programs are run."""

    def __init__(self, library, built, packages, keep, folder):
        self.library, self.built, self.packages, self.keep, self.folder = library, built, packages, keep, folder
        self.namespaces = next(way for way in NAMESPACES if not way or self.works(way))
        self.probed = {}
        self.patience = 2    # seconds to wait for the program's processes that are about to end
        self.changing, self.is_stopped = threading.Lock(), False
        self.held = set()    # this end of each run's standard input; a run ends when it is closed

    @staticmethod
    def works(way):
        try:
            return subprocess.run([*way, "true"], capture_output=True).returncode == 0
        except OSError:
            return False

    def stop(self):
        """Ends all runs, and starts no new ones."""
        with self.changing:
            self.is_stopped = True
            for held in self.held:
                held.close()

    def hold(self):
        """Makes a pipe for the standard input of a run. Returns (the run's end, this process's end). If this
        process ends, its end is closed, and the run ends, too."""
        theirs, ours = os.pipe()
        ours = os.fdopen(ours, "wb")
        with self.changing:
            self.held.add(ours)
            if self.is_stopped:
                ours.close()
        return theirs, ours

    @property
    def folders(self):
        rust = shutil.which("rustc")
        return FOLDERS + ([os.path.dirname(rust)] if rust else [])

    def lacks(self, program):
        """Returns the reason why a program cannot run on this machine, or an empty text."""
        if program.left_out:
            return program.left_out
        for name in program.commands():
            if not self.packages.which(name, self.folders):
                return next((self.packages.why[p] for p in program.packages if p in self.packages.why), f"no {name} here")
        return ""

    def cannot(self, surrounding):
        if surrounding.needs and not self.packages.which(surrounding.needs, self.folders):
            return self.packages.why.get(surrounding.needs, f"no {surrounding.needs} here")
        if surrounding.probe:
            if surrounding.name not in self.probed:
                self.probed[surrounding.name] = self.start(list(surrounding.probe), {})
            seen = self.probed[surrounding.name]
            if seen["status"] != 0:
                return "does not work here: " + " ".join(seen["err"])[:160]
        return ""

    def start(self, argv, variables, limits=(), census=False, timeout=120):
        """Runs a command once through inside.py, in new folders. Returns the result of inside.py."""
        scratch = tempfile.mkdtemp(prefix="run-", dir=self.folder)
        own_view = bool(self.namespaces)
        work = "/tmp/work" if own_view else os.path.join(self.folder, "work", "work")
        records = "/tmp/records" if own_view else os.path.join(self.folder, "work", "records")
        if not own_view:
            shutil.rmtree(os.path.dirname(work), ignore_errors=True)
        environment = {"PATH": ":".join(self.folders), "HOME": f"{work}/home", "LC_ALL": "C", "TERM": "dumb", "PWD": work,
                       "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "RUSTUP_HOME": os.path.expanduser("~/.rustup"),
                       **{name: value.replace(RECORDS, records) for name, value in variables.items()}}
        result = os.path.join(scratch, "result")
        spec = {"argv": [word.replace(RECORDS, records) for word in argv], "env": environment, "work": work, "records": records,
                "upper": os.path.join(scratch, "upper"), "own_view": own_view, "keep": self.keep,
                "packages": self.packages.unpacked,
                "limits": dict(limits), "timeout": timeout, "patience": self.patience, "result": result,
                "census": os.path.join(self.built, "census") if census else None}
        with open(os.path.join(scratch, "spec"), "w") as file:
            json.dump(spec, file)
        theirs, ours = self.hold()
        try:
            done = subprocess.run([*self.namespaces, sys.executable, "-I", "-S", INSIDE, os.path.join(scratch, "spec")],
                                  capture_output=True, text=True, errors="replace", stdin=theirs, timeout=timeout + 60,
                                  env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")})
            with open(result) as file:
                return json.load(file)
        except (OSError, ValueError):
            return unrun(f"not started: {done.stderr.strip().splitlines()[-1:]}")
        except subprocess.TimeoutExpired:
            return unrun("time-out")
        finally:
            os.close(theirs)
            ours.close()
            self.held.discard(ours)
            remove(scratch)


def unrun(why):
    return {"status": why, "seconds": 0.0, **{name: [] for name in (*STREAMS, "records", "trace")}}


def remove(folder):
    """Removes the folder of a run, or of all runs. A file system that was mounted over it may have left folders without
    rights, and may still be taken down after the run's last process has ended, so this is tried again for a while."""
    until = time.monotonic() + 20
    give_rights(folder)
    shutil.rmtree(folder, ignore_errors=True)
    while os.path.exists(folder) and time.monotonic() < until:
        time.sleep(0.1)
        give_rights(folder)
        shutil.rmtree(folder, ignore_errors=True)


def give_rights(folder):
    for at, folders, _ in os.walk(folder):
        for path in (os.path.join(at, name) for name in folders):
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)


def streams(seen, says=""):
    """Returns the parts of a run's result that are compared: {name: lines}. Leaves out lines on standard error that
    begin with `says`, which another preloaded library writes."""
    found = {"status": [str(seen["status"])], **{name: seen[name] for name in STREAMS}}
    if says:
        found["err"] = [line for line in found["err"] if not line.startswith(says)]
    return found


def without_ours(found, uses, setting, records="/records/"):
    """Removes from a run's result what the library may add. If the program uses CUDA or Python: the library's lines
    on standard error, its threads, and the descriptors of its record, its socket and a file of /proc. If the library
    has a bad value in its settings: its lines on standard error. In all other cases the library may add nothing."""
    if setting.name == "bare":
        return found
    found = dict(found)
    if uses or setting.name == "bad value":
        found["err"] = [line for line in found["err"] if not line.startswith(OURS)]
    if uses:
        found["census"] = [" ".join(word for word in line.split(" ")
                                    if records not in word and not DESCRIPTOR.fullmatch(word)) for line in found["census"]
                           if line not in THREADS]
    return found


class Group:
    """A program in one surrounding. Holds the results of the runs without the library, with which each run with the
    library is compared."""

    def __init__(self, bench, program, where, surrounding, others="", variables=(), says=""):
        self.bench, self.program, self.where, self.surrounding = bench, program, where, surrounding
        self.others, self.variables, self.says = others, dict(variables), says
        self.baselines, self.numbers = [], []

    def run(self, preload, setting):
        variables = {**self.program.variables, **dict(self.surrounding.variables), **self.variables}
        if preload:
            variables["LD_PRELOAD"] = preload
        if setting:
            variables.update(setting.environment(RECORDS))
        argv = [*self.surrounding.wrap, *self.program.argv()]
        if self.surrounding.filter:
            what = "kill" if not setting or setting.name == "bare" else "refuse"
            argv = [os.path.join(self.bench.built, "fit"), what, ",".join(map(str, self.numbers)), *argv]
        return self.bench.start(argv, variables, self.surrounding.limits, self.surrounding.census, self.program.timeout)

    def baseline(self):
        seen = self.run(self.others, None)
        self.baselines.append(seen)
        return seen

    def fit(self):
        """Traces the program without the library. Returns the system calls that it makes, and those that are always
        allowed."""
        names = {*LOADER, *AFTER_A_SIGNAL, *(AT_FORK if self.program.uses == "cuda" else ())}
        for _ in range(2):
            argv = ["strace", "-f", "-qq", "-o", f"{RECORDS}/.trace", *self.program.argv()]
            names.update(self.bench.start(argv, self.program.variables, timeout=self.program.timeout)["trace"])
        numbers = {number for number in map(numbers_of_calls().get, names) if number is not None}
        self.numbers = sorted(numbers.union(self.numbers))

    def begin(self):
        """Makes the first runs without the library. If they cannot be compared with, returns the reasons, else an
        empty list."""
        for _ in range(FITS if self.surrounding.filter else 1):
            if self.surrounding.filter:
                self.fit()
            self.baselines = []
            why = self.first_baselines()
            if why or not self.is_killed_by_the_filter():
                return why
        return ["a filter fits no two runs of it"]

    def is_killed_by_the_filter(self):
        return self.surrounding.filter and any(seen["status"] in (-31, 128 + 31) or "Bad system call" in "".join(seen["err"])
                                               for seen in self.baselines)

    def first_baselines(self):
        for _ in range(BASELINES):
            seen = self.baseline()
            said = [line for line in [str(seen["status"]), *seen["err"], *seen["out"]] if any(bad in line for bad in BROKEN)]
            if seen["status"] == "time-out":
                return ["does not end in time without the library"]
            if said and self.surrounding.name == "plain":
                return [f"does not run here without the library: {said[0][:200]}"]
            if str(seen["status"]).startswith("not started") or seen["status"] in (127, 125) and not self.program.is_direct:
                return [f"does not run here without the library: {said[0][:200] if said else seen['status']}"]
        return []

    def streams(self, seen):
        found = streams(seen, self.says)
        if self.surrounding.name == "gdb":
            found["out"] = [CHILD.sub("N", line) for line in found["out"]]
        if self.program.is_elastic:
            found["census"] = sorted(set(found["census"]))
        return found

    def compared(self, preload, setting):
        """Runs the program with the library and compares the result with the runs without it. If it differs, runs
        the program again, first without and then with the library. Returns the outcome."""
        uses = self.program.uses or self.surrounding.uses
        known = [self.streams(seen) for seen in self.baselines]
        first = self.run(preload, setting)
        found = compare.differences(known, without_ours(self.streams(first), uses, setting))
        verdict, why = "same", []
        for _ in range(MORE_BASELINES):
            if found:
                known.append(self.streams(self.baseline()))
                found = compare.differences(known, without_ours(self.streams(first), uses, setting))
        if found:
            again = self.run(preload, setting)
            repeated = compare.differences(known, without_ours(self.streams(again), uses, setting))
            verdict, why = ("different", compare.brief(repeated)) if repeated else ("once", compare.brief(found))
        return Outcome(self.program.name, self.where, setting.name, verdict, why, tuple(compare.varying(known)),
                       (min(seen["seconds"] for seen in self.baselines), first["seconds"]))


def outcomes(bench, program, where, surrounding, settings, orders, others="", variables=(), says=""):
    """Yields the outcomes for all settings of the library, for a program in one surrounding. `orders`: {name: the
    value of LD_PRELOAD}, with the library before or after another one."""
    group = Group(bench, program, where, surrounding, others, variables, says)
    why = group.begin()
    for name, preload in orders.items():
        group.where = name
        for setting in settings:
            yield Outcome(program.name, name, setting.name, "left out", why) if why else group.compared(preload, setting)


_NUMBERS = {}


def numbers_of_calls():
    """Returns {system call: number} from the C library's header."""
    if not _NUMBERS:
        source = "#include <sys/syscall.h>\n"
        done = subprocess.run(["gcc", "-E", "-dM", "-xc", "-"], input=source, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            words = line.split()
            if len(words) == 3 and words[1].startswith("__NR_") and words[2].isdigit():
                _NUMBERS[words[1][5:]] = int(words[2])
    return _NUMBERS
