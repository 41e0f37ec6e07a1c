"""Runs a program under nsys, and returns the traces that nsys made."""
import contextlib
import glob
import os
import re
import shutil
import sqlite3

from . import child
from .trace import Trace


class Failed(Exception):
    """nsys made no trace; the text has the reason."""


def profile_arguments(base, capture_end, graph_trace):
    arguments = ["-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", f"--cuda-graph-trace={graph_trace}",
                 "--force-overwrite=true", "-o", base]
    if capture_end:
        arguments += ["-c", "cudaProfilerApi", f"--capture-range-end={capture_end}"]
    return arguments


def report_base(folder, name):
    """Returns the path in a new, empty folder with which the names of a check's nsys reports begin."""
    own = os.path.join(folder, "reports", re.sub(r"[^\w.-]+", "-", name))
    shutil.rmtree(own, ignore_errors=True)
    os.makedirs(own)
    return os.path.join(own, "report")


def traces(nsys, command, environment, folder, name, capture_end="stop", graph_trace="graph", expect=True):
    """Runs a program under nsys and reads the reports. Returns (how the program ended, its traces in order). With
    capture_end None, nsys records the whole run instead of the library's windows."""
    base = report_base(folder, name)
    ended = child.run([nsys, "profile", *profile_arguments(base, capture_end, graph_trace), *command], environment)
    return ended, read(nsys, base, ended, expect)


def read(nsys, base, ended, expect=True):
    """Exports the nsys reports whose names begin with `base`. Returns their traces in order."""
    if ended.status == "time-out":
        raise Failed(ended.why())
    number = lambda path: [int(n) for n in re.findall(r"\d+", path[len(base):])]  # noqa: E731
    reports = sorted(glob.glob(glob.escape(base) + "*.nsys-rep"), key=number)
    if not reports:
        if glob.glob(glob.escape(base) + "*.qdstrm"):
            raise Failed("nsys could not import its own record (are libdw.so.1 and libelf.so.1 installed?): "
                         + ended.why())
        if expect:
            raise Failed(f"no report: {ended.why()}; the shim said: {ended.said_by_shim()}")
        return []
    result = []
    for report in reports:
        database = report.removesuffix(".nsys-rep") + ".sqlite"
        exported = child.run([nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", report],
                             child.variables())
        if exported.status != 0 or not os.path.exists(database):
            raise Failed("nsys export: " + exported.why())
        result.append(Trace(database))
    return result


def kernels_named(base, name):
    """Returns the number of kernels with `name` in their names, in the exports whose names begin with `base`."""
    found = 0
    for database in glob.glob(glob.escape(base) + "*.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            found += db.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
                                "WHERE s.value LIKE ?", (f"%{name}%",)).fetchone()[0]
    return found
