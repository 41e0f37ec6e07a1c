"""Runs one program where it can be watched: inside.py SPEC. It is the first process of namespaces of its own, where it gets
them, so that whatever the program leaves (files, processes) can be found, and nothing of it stays on the machine.

SPEC is a JSON object; what was found is written as JSON to its `result`:
    status   exit status, negative for a signal, or "time-out"
    out, err lines of what it wrote
    files    a line for each file that is there afterwards and was not before
    left     the processes that outlive it
    census   with a census: descriptors and threads, one line each
    seconds  how long it took
"""
import ctypes
import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

WORK = "/tmp/work"
SET_CHILD_SUBREAPER = 36
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "as": resource.RLIMIT_AS,
          "stack": resource.RLIMIT_STACK, "fsize": resource.RLIMIT_FSIZE}
# What keeps a result from differing by more than the machine's load: no file is compared deeper than this.
LARGEST = 1 << 24
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, options=""):
    flags = 4096 | 16384 if kind == "rbind" else 0
    arguments = [a.encode() if a else None for a in (source, target, None if kind == "rbind" else kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def own_view(spec):
    """Packages over the machine's folders, and folders of our own for what programs write; all gone afterwards."""
    upper = spec["upper"]
    for name in ("usr", "etc", "var", "opt"):
        over, work = os.path.join(upper, name), os.path.join(upper, f".{name}")
        os.makedirs(over)
        os.makedirs(work)
        layers = [os.path.join(spec["packages"], name)] if spec["packages"] else []
        lower = ":".join([layer for layer in layers if os.path.isdir(layer)] + [f"/{name}"])
        mount("overlay", f"/{name}", "overlay", f"userxattr,lowerdir={lower},upperdir={over},workdir={work}")
    kept = [(path, os.open(path, os.O_PATH)) for path in spec["keep"] if path.startswith(("/tmp/", "/run/"))]
    for folder in ("/tmp", "/run", "/dev/shm"):
        if os.path.isdir(folder):
            mount("tmpfs", folder, "tmpfs", "mode=1777")
    for path, descriptor in kept:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w"):
                pass
        mount(f"/proc/self/fd/{descriptor}", path, "rbind")
        os.close(descriptor)
    with socket.socket() as any_socket:  # lo, up
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 1 | 0x40, b""))


def listing(folder, name, skipped=()):
    """A line for each thing below a folder, sorted."""
    lines = []
    for at, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if os.path.join(at, one) not in skipped]
        for one in folders + files:
            path = os.path.join(at, one)
            try:
                about = os.lstat(path)
                shown = name + path[len(folder):]
                what = ""
                if stat.S_ISLNK(about.st_mode):
                    what = " -> " + os.readlink(path)
                elif stat.S_ISREG(about.st_mode):
                    with open(path, "rb") as file:
                        digest = hashlib.sha256(file.read(LARGEST)).hexdigest()[:12]
                    what = f" {about.st_size} bytes, {digest}"
                lines.append(f"{shown} {stat.filemode(about.st_mode)}{what}")
            except OSError as error:
                lines.append(f"{name}{path[len(folder):]} {error.strerror}")
    return sorted(lines)


def all_files(spec):
    skipped = set(spec["keep"]) | {spec["records"]}
    if not spec["own_view"]:
        return listing(spec["work"], "", skipped)
    lines = []
    for folder in ("/tmp", "/run", "/dev/shm"):
        # The mount points of what is kept are ours.
        ours = {path for kept in skipped for path in ancestors(kept)}
        lines += [line for line in listing(folder, folder, skipped) if line.split(" ")[0] not in ours]
    for name in ("usr", "etc", "var", "opt"):
        lines += listing(os.path.join(spec["upper"], name), f"/{name}")
    return lines


def ancestors(path):
    while path not in ("/", ""):
        yield path
        path = os.path.dirname(path)


def children():
    """(pid, name) of the processes that are ours to reap."""
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children") as file:
        for pid in file.read().split():
            try:
                with open(f"/proc/{pid}/stat") as about:
                    name, rest = about.read().rsplit(")", 1)
                if rest.split()[0] != "Z":
                    yield int(pid), name.split("(", 1)[1]
            except OSError:
                pass


def left_over():
    """What still runs a moment after the program ended. A process that is about to end is none."""
    patience = time.monotonic() + 2
    while time.monotonic() < patience and list(children()):
        time.sleep(0.05)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
    left = sorted(name for _, name in children())
    while True:
        running = [pid for pid, _ in children()]
        if not running:
            return left
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def prepare(spec):
    def before_exec():
        for name, value in spec["limits"].items():
            resource.setrlimit(LIMITS[name], (value, value))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return before_exec


def run(spec):
    began = time.monotonic()
    child = subprocess.Popen(spec["argv"], env=spec["env"], cwd=spec["work"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare(spec),
                             start_new_session=True, restore_signals=True)
    try:
        out, err = child.communicate(timeout=spec["timeout"])
        status = child.returncode
    except subprocess.TimeoutExpired:
        for pid, _ in list(children()) + [(child.pid, "")]:
            try:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            out, err = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            out = err = b""
        status = "time-out"
    return status, out, err, time.monotonic() - began


def lines_of(data):
    text = data.decode(errors="backslashreplace")
    lines = text.split("\n")
    # A last line without an end is another than one with it.
    return lines[:-1] if lines[-1] == "" else lines[:-1] + [lines[-1] + "\\"]


def main():
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    result_file = open(spec["result"], "w")  # before /tmp is another
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if spec["own_view"]:
        own_view(spec)
    os.makedirs(os.path.join(spec["work"], "home"), mode=0o700)
    os.makedirs(spec["records"], exist_ok=True)
    census = os.path.join(spec["records"], ".census")
    if spec["census"]:
        spec["argv"] = [spec["census"], census, *spec["argv"]]
    try:
        status, out, err, seconds = run(spec)
    except (OSError, subprocess.SubprocessError) as error:
        status, out, err, seconds = f"not started: {error}", b"", b"", 0.0
    result = {"status": status, "out": lines_of(out), "err": lines_of(err), "seconds": seconds, "left": left_over(),
              "files": all_files(spec), "census": [], "records": sorted(os.listdir(spec["records"])), "trace": []}
    if spec["census"] and os.path.exists(census):
        with open(census, errors="backslashreplace") as file:
            result["census"] = sorted(file.read().splitlines())
    trace = os.path.join(spec["records"], ".trace")
    if os.path.exists(trace):
        with open(trace, errors="replace") as file:
            result["trace"] = sorted({line.split("(")[0].split()[-1] for line in file if "(" in line})
    json.dump(result, result_file)
    result_file.close()
    if not spec["own_view"]:
        shutil.rmtree(spec["records"], ignore_errors=True)


main()
