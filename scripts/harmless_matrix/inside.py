"""Runs one program and observes it: inside.py SPEC. If possible, this script is the first process of new namespaces,
so that everything that the program leaves (files, processes) can be found and then disappears. The starter keeps the
other end of this script's standard input open. If that end is closed, the starter has ended, and this script ends
together with the program.

SPEC is a JSON file. The result is written as JSON to the file that it names as `result`:
   status   exit status of the program, negative for a signal, or "time-out"
   out, err lines of the program's output
   files    a line for each file that the program has made
   left     the processes that outlive the program
   census   if SPEC asks for a census: a line for each descriptor and thread
   seconds  the duration"""
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time
import zlib  # no larger modules are imported, because a run is often shorter than their import

WORK = "/tmp/work"
SET_CHILD_SUBREAPER = 36
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "as": resource.RLIMIT_AS,
          "stack": resource.RLIMIT_STACK, "fsize": resource.RLIMIT_FSIZE}
# A file is compared up to this number of bytes, so that the comparison does not take too long.
LARGEST = 1 << 24
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, options=""):
    flags = 4096 | 16384 if kind == "rbind" else 0
    arguments = [a.encode() if a else None for a in (source, target, None if kind == "rbind" else kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def own_view(spec):
    """Mounts the unpacked packages over the machine's folders, and new, empty folders where programs write. All
    mounts disappear with the namespaces."""
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
    any_socket = libc.socket(2, 2, 0)  # the socket is only needed for the ioctl that turns on the loopback interface
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 1 | 0x40, b""))
    os.close(any_socket)


def listing(folder, name, skipped=()):
    """Returns a sorted line for each file and folder below `folder`. Leaves out the paths in `skipped`."""
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
                        checksum = zlib.crc32(file.read(LARGEST))
                    what = f" {about.st_size} bytes, {checksum:08x}"
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
        # Leaves out the mount points that this script has made, because the program did not create them.
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
    """Returns (pid, name) of this process's children."""
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


def left_over(patience):
    """Waits at most `patience` seconds until all processes that the program left have ended. Returns those that are
    still running."""
    until = time.monotonic() + patience
    while time.monotonic() < until and list(children()):
        time.sleep(0.01)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
    left = sorted(name for _, name in children())
    kill_all()
    return left


def kill_all():
    while True:
        running = [pid for pid, _ in children()]
        if not running:
            return
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def become(spec, out, err, failure):
    """Turns the forked child process into the program (exec). If that fails, writes the reason to `failure`."""
    try:
        os.setsid()
        for descriptor, at in ((os.open("/dev/null", os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(descriptor, at)
        os.chdir(spec["work"])
        # This Python ignores these signals, but the program must start with their default handling
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for name, value in spec["limits"].items():
            resource.setrlimit(LIMITS[name], (value, value))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(failure, str(error).encode())
    finally:
        os._exit(125)


def run(spec):
    """Runs the program. Returns (status, its output, seconds)."""
    began = time.monotonic()
    (out, out_end), (err, err_end), (failure, failure_end) = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        become(spec, out_end, err_end, failure_end)
    written = {out: [], err: [], failure: []}
    poll = select.poll()
    poll.register(0, 0)  # requests no input, so only the closing of standard input's other end is reported
    for descriptor, end in ((out, out_end), (err, err_end), (failure, failure_end)):
        os.close(end)
        poll.register(descriptor, select.POLLIN)
    reading, status, patience = set(written), None, spec["timeout"]
    while reading or status is None:
        left = began + patience - time.monotonic()
        if left <= 0 and status == "time-out":
            break  # the pipe stays open, because a process that holds it cannot be killed
        if left <= 0:
            for pid, _ in [*children(), (child, "")]:
                try:
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            status, patience = "time-out", patience + 10
            continue
        for descriptor, _ in poll.poll(left * 1000 if reading else 5):
            data = os.read(descriptor, 1 << 16) if descriptor else b""
            if not descriptor:
                kill_all()
                os._exit(1)
            elif data:
                written[descriptor].append(data)
            else:
                poll.unregister(descriptor)
                reading.remove(descriptor)
        if not reading and status is None:
            pid, ended = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(ended) if pid else None
    said, wrote, failed = (b"".join(written[descriptor]) for descriptor in (out, err, failure))
    if failed:
        return f"not started: {failed.decode(errors='replace')}", b"", b"", 0.0
    return status, said, wrote, time.monotonic() - began


def lines_of(data):
    text = data.decode(errors="backslashreplace")
    lines = text.split("\n")
    # If the last line has no newline, it gets a mark (`\`), so that it differs from the same line with a newline.
    return lines[:-1] if lines[-1] == "" else lines[:-1] + [lines[-1] + "\\"]


def main():
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    result_file = open(spec["result"], "w")  # opened now, because a new /tmp is mounted later and hides the file's path
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if spec["own_view"]:
        own_view(spec)
    os.makedirs(os.path.join(spec["work"], "home"), mode=0o700)
    os.makedirs(spec["records"], exist_ok=True)
    census = os.path.join(spec["records"], ".census")
    if spec["census"]:
        spec["argv"] = [spec["census"], census, *spec["argv"]]
    status, out, err, seconds = run(spec)
    result = {"status": status, "out": lines_of(out), "err": lines_of(err), "seconds": seconds, "left": left_over(spec["patience"]),
              "files": all_files(spec), "census": [], "records": sorted(os.listdir(spec["records"])), "trace": []}
    if spec["census"] and os.path.exists(census):
        with open(census, errors="backslashreplace") as file:
            # An open file without a name is shown as `#INODE (deleted)`. The number of the inode is removed,
            # because it differs between runs.
            result["census"] = sorted(re.sub(r"#\d+ \(deleted\)", "#(deleted)", file.read()).splitlines())
    trace = os.path.join(spec["records"], ".trace")
    if os.path.exists(trace):
        with open(trace, errors="replace") as file:
            result["trace"] = sorted({line.split("(")[0].split()[-1] for line in file if "(" in line})
    json.dump(result, result_file)
    result_file.close()
    if not spec["own_view"]:
        import shutil
        shutil.rmtree(spec["records"], ignore_errors=True)


main()
