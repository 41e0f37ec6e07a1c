"""The command line of scripts/soak. Runs the loads, reads their resources at intervals, and writes the page."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch

from . import judge, loads, watch

SAMPLES = 400
# maximum size of the records of a load in bytes (TLLMPROF_TRACE_MAX), for each load by name; ""
# stands for all other loads
MOST_DISK = {"": 256 << 20, "auto": 2 << 20}
# Maximum size of the record of a child process in bytes. crates/recorder/src/space.rs reserves the header and one
# chunk, and then 16 more chunks, which are enough for a child. The header and each chunk have 64 KiB.
CHILDS_DISK = (64 << 10) * (1 + 1 + 16)

# Bytes by which memory may grow for each captured window without being a leak. The library keeps an entry for each
# window (crates/steps/src/window.rs, Taken) until it logs the windows at exit. The memory is reserved when the list of
# windows is parsed. But the kernel counts each page only from its first use, so the memory of the process seems to
# grow.
KEPT = 48


def positive(text):
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f'"{text}": a number above 0 is wanted')
    return number


def options(doc, arguments):
    parser = argparse.ArgumentParser(prog="soak", description=doc.strip().split("\n")[0])
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--hours", type=positive, metavar="N", help="how long the programs run (default: 1 hour)")
    how_long.add_argument("--minutes", type=positive, metavar="N")
    how_long.add_argument("--seconds", type=positive, metavar="N")
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(loads.ROOT, "target"))
    parser.add_argument("--lib", default=os.environ.get("TLLMPROF_LIB", os.path.join(target, "release", "libtllmprof.so")),
                        help="the library (default: TLLMPROF_LIB, or target/release/libtllmprof.so)")
    parser.add_argument("--standin", default=os.path.join(target, "standin"), help=argparse.SUPPRESS)
    parser.add_argument("--out", metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--only", metavar="LOAD", action="append", default=[], 
                        help="only those of this name, a pattern such as python*; may be repeated")
    given = parser.parse_args(arguments)
    given.time = (given.seconds or (given.minutes or 0) * 60 or (given.hours or 1) * 3600)
    return given


class Watched:
    """A running load, with the readings of its resources so far."""

    def __init__(self, load, given, folder):
        self.load, self.folder = load, folder
        self.said = os.path.join(folder, f"{load.name}.log")
        self.begin = time.monotonic()
        self.points = {kind: [] for kind in watch.KINDS}
        self.most_disk = 0
        self.records = 0
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen(load.command(), env=load.environment(given.lib, folder, given.standin), cwd=folder,
                                            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)

    def look(self):
        if self.process.poll() is not None:
            return
        self.look_at_disk()
        reading = watch.read(self.process.pid)
        if reading is not None and time.monotonic() - self.begin <= self.load.seconds:
            for kind, value in reading.items():
                self.points[kind].append((time.monotonic() - self.begin, value))

    def look_at_disk(self):
        """Reads the sizes of this load's records. Removes the records of child processes that have ended, as a user
        would."""
        for entry in os.scandir(self.folder):
            if not entry.name.startswith(f"{self.load.name}-") or not entry.name.endswith(".tllmprof"):
                continue
            pid = re.search(r"-(\d+)(-\d+)?\.tllmprof$", entry.name)
            try:
                self.most_disk = max(self.most_disk, watch.disk(entry.path))
            except FileNotFoundError:
                continue  # the library has renamed it since the folder was listed
            if self.load.has_children and not os.path.exists(f"/proc/{pid[1]}"):
                os.unlink(entry.path)
                self.records += 1

    def wrong(self, beside):
        """Yields a line for each error of the load: a bad exit status, growth, or missing windows. `beside`: the
        load without the library that it is compared with, or None."""
        name = self.load.name
        if self.process.returncode != 0:
            yield f"{name} ended with status {self.process.returncode}: {self.last_line()}"
            return
        if self.load.is_plain:
            return
        for kind in watch.KINDS:
            points = self.points[kind] if beside is None else judge.difference(self.points[kind], beside.points[kind])
            if len(points) < 4 * judge.LEAST:
                yield (f"{name} was looked at {len(points)} times in its {self.load.seconds:g} s: too few to be judged "
                       f"(at least {4 * judge.LEAST} are wanted)")
                return
            growth = judge.growth(points)
            bound = kind.bound if beside is None else kind.bound + judge.blur(beside.points[kind])
            if kind.unit:
                bound += KEPT * self.captured() / 2 / 1024
            if growth.exceeds(bound):
                than = "" if beside is None else " more than without the library"
                yield (f"{name}: {kind.name} grew by {growth.third:.0f}{kind.unit} in the third quarter and by "
                       f"{growth.last:.0f}{kind.unit} in the last{than} (at most {bound / 2:.0f}{kind.unit} each)")
        for line in self.lines():
            if "internal error" in line:
                yield f"{name}: {line}"
        most = CHILDS_DISK if self.load.has_children else MOST_DISK.get(name, MOST_DISK[""])
        if self.most_disk > most:
            yield f"{name}: a record had {self.most_disk} bytes (at most {most})"
        if self.load.has_children and self.records < self.load.tickets:
            yield f"{name}: {self.load.tickets} children left {self.records} records"
        never = self.never_opened()
        if self.load.expected and self.captured() + never != self.load.expected:
            yield (f"{name}: of {self.load.expected} windows {self.captured()} were captured and {never} were said never to have "
                   f"opened: {self.last_line()}")
        # On a busy machine, the iterations of a window may pass before the previous window is closed. A few missing
        # windows are allowed.
        if self.load.expected and never > self.load.expected // 50:
            yield f"{name}: {never} of {self.load.expected} windows never opened (at most one in 50)"
        if not self.load.expected and name == "auto" and self.captured() == 0:
            yield f"{name}: no window was captured: {self.last_line()}"

    def lines(self):
        with open(self.said, errors="replace") as said:
            return said.read().splitlines()

    def last_line(self):
        return next(reversed(self.lines()), "it said nothing")

    def never_opened(self):
        """Returns the number of windows that never opened, from the line that the library logs at exit. The line
        lists up to eight windows, or gives their number."""
        lines = [line for line in self.lines() if " never opened" in line]
        if not lines:
            return 0
        listed = re.search(r"windows? ([^;]*?)(?: \((\d+) in all\))? never opened", lines[-1].split("; ")[-1])
        return int(listed[2]) if listed[2] else listed[1].count(",") + 1

    def captured(self):
        return sum(" closed: " in line for line in self.lines())

    def row(self):
        cells = [self.load.name, str(self.captured() or "")]
        for kind in watch.KINDS:
            points = self.points[kind]
            if not points:
                cells.append("")
                continue
            half = points[len(points) // 2:]
            cells.append(f"{half[0][1]} → {half[-1][1]} (most {max(value for _, value in points)})")
        cells.append(f"{self.most_disk / (1 << 20):.1f}")
        return "| " + " | ".join(cells) + " |"


def soak(given, folder):
    shop = loads.Workshop(folder, given.standin)
    patterns = given.only or ["*"]
    wanted = [load for load in loads.loads(shop, given.time) if any(fnmatch(load.name, pattern) for pattern in patterns)]
    if not wanted:
        raise loads.CannotRun(f"--only {' '.join(given.only)}: there is no such load")
    interval = max(0.05, given.time / SAMPLES)
    running = [Watched(load, given, folder) for load in wanted]
    try:
        # Each load ends at its own time limit (tests/soak/pace.h). A load that is still running at this later time is
        # killed.
        deadline = time.monotonic() + 4 * given.time + 180
        while any(one.process.poll() is None for one in running) and time.monotonic() < deadline:
            for one in running:
                one.look()
            time.sleep(interval)
    finally:
        for one in running:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
    for one in running:
        one.look_at_disk()
    by_name = {one.load.name: one for one in running}
    wrong = [line for one in running for line in one.wrong(by_name.get(one.load.beside))]
    head = ["load", "windows", *(f"{kind.name}{',' if kind.unit else ''}{kind.unit}" for kind in watch.KINDS), "record, MiB"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *(one.row() for one in running)]
    return table, wrong, sum(one.captured() for one in running)


def main(doc, arguments=None):
    given = options(doc, arguments)
    if not os.path.isfile(given.lib):
        print(f"soak: --lib {given.lib}: there is no such file; run `cargo build --release` first", file=sys.stderr)
        return 2
    given.lib = os.path.realpath(given.lib)
    folder = tempfile.mkdtemp(prefix="tllmprof-soak-")
    try:
        table, wrong, windows = soak(given, folder)
    except (loads.CannotRun, OSError) as why:
        print(f"soak: {why}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    page = "\n".join([*table, "", f"{given.time:g} s, {windows} windows"])
    print(page)
    if given.out:
        with open(given.out, "w") as out:
            out.write(page + "\n")
    for line in wrong:
        print(f"soak: {line}")
    return 1 if wrong else 0
