"""Defines the surroundings in which programs run: under a tool such as gdb, with limits, with a system call filter,
or built with a sanitizer."""
import dataclasses
import os
import shutil
import subprocess
from dataclasses import dataclass

from .programs import SOURCES, SOURCES_TO_BUILD, compiler

# Names of programs that run under valgrind although a shell starts them. valgrind then checks the shell and all
# programs that the shell starts.
UNDER_VALGRIND = {"perl", "jq", "SQLite", "Lua", "zstd"}
# The system calls of the dynamic loader. A filter allows them for any dynamically linked program.
LOADER = ["openat", "read", "pread64", "mmap", "mprotect", "munmap", "close", "fstat", "newfstatat", "brk"]
# System calls that the kernel makes only if a signal interrupts the program. This depends on timing, so a filter
# always allows them.
AFTER_A_SIGNAL = ["rt_sigreturn", "restart_syscall"]
# System calls that the library makes when a program that uses CUDA forks, also if none of the library's variables is
# set (src/lib.rs). A filter for such a program allows them.
AT_FORK = ["gettid", "getpid", "futex"]


@dataclass(frozen=True)
class Surrounding:
    name: str
    about: str
    wrap: tuple = ()                 # command line in front of the program
    needs: str = ""                  # the command that must exist
    limits: tuple = ()
    census: bool = False
    filter: bool = False
    for_heavy: bool = False
    is_quick: bool = False
    # True if the tool follows only one process, so that it cannot follow the programs that a script
    # starts
    direct_only: bool = False
    sanitizer: tuple = ()            # compiler options; with these, the program's source is built for this surrounding
    variables: tuple = ()
    uses: str = ""                   # "cuda" or "python" if the tool itself uses it
    probe: tuple = ()                # a command that exits with 0 if the tool works on this machine

    def fits(self, program):
        if self.sanitizer:
            return bool(program.source)
        if program.is_heavy and not self.for_heavy:
            return False
        if self.name == "valgrind":
            return (program.is_direct and program.uses != "python") or program.name in UNDER_VALGRIND
        return program.is_direct or not self.direct_only


# Lets gdb stop only at a crash. At other stops, such as at SIGTERM, gdb would print addresses and the list of
# threads. These differ from run to run, so outputs could not be compared.
GDB = ("gdb", "-nx", "-q", "-batch", "-return-child-result", "-ex", "set print thread-events off",
       "-ex", "set startup-with-shell off", "-ex", "handle SIGTERM nostop noprint pass", "-ex", "run", "-ex", "bt", "--args")
ALL = [
    Surrounding("plain", "by itself", for_heavy=True, is_quick=True),
    Surrounding("census", "with each process's descriptors at its end, and all its threads, counted by ptrace", census=True,
                for_heavy=True, is_quick=True),
    Surrounding("strace", "under `strace -f`", ("strace", "-f", "-qq", "-o", "/dev/null"), "strace", for_heavy=True),
    Surrounding("gdb", "under gdb, which has the library, too, and Python in it",
        GDB, "gdb", direct_only=True, uses="python"),
    Surrounding("valgrind", "under valgrind's memcheck",
                ("valgrind", "-q", "--error-exitcode=99", "--trace-children=yes", "--vgdb=no"), "valgrind"),
    Surrounding("rr", "recorded by rr", ("rr", "record", "-n", "-o", "%RECORDS%/rr"), "rr",
                direct_only=True, probe=("rr", "record", "-n", "-o", "%RECORDS%/rr", "/bin/true")),
    Surrounding("user namespace", "`unshare -Ur`", ("unshare", "-Ur"), "unshare", for_heavy=True),
    Surrounding("seccomp", "behind a filter of the system calls that the program and the loader make, rt_sigreturn and "
                           "restart_syscall (with CUDA also gettid, getpid and futex, which "
                "the library makes at a fork): any other kills (bare), or fails with EPERM",
                filter=True, is_quick=True, needs="strace"),
    Surrounding("ulimit -n", "64 descriptors", limits=(("nofile", 64),)),
    Surrounding("ulimit -u", "200 processes and threads", limits=(("nproc", 200),)),
    Surrounding("ulimit -v", "1 GiB of addresses", limits=(("as", 1 << 30),)),
    Surrounding("ulimit -s", "stacks of 256 KiB", limits=(("stack", 256 << 10),)),
    Surrounding("ulimit -f 0", "no file may grow", limits=(("fsize", 0),), is_quick=True),
    Surrounding("TSan", "built with ThreadSanitizer (gcc)", sanitizer=("gcc", "-fsanitize=thread"),
                variables=(("TSAN_OPTIONS", "die_after_fork=0"),)),
    Surrounding("ASan", "built with AddressSanitizer and LeakSanitizer (gcc)", sanitizer=("gcc", "-fsanitize=address"),
                variables=(("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=1"),)),
    Surrounding("ASan, static", "the same, its runtime linked into the program",
        sanitizer=("gcc", "-fsanitize=address", "-static-libasan")),
    Surrounding("UBSan", "built with UndefinedBehaviorSanitizer (gcc)", sanitizer=("gcc", "-fsanitize=undefined")),
    Surrounding("LSan", "built with LeakSanitizer (gcc)", sanitizer=("gcc", "-fsanitize=leak")),
    Surrounding("MSan", "built with MemorySanitizer (clang 14)", sanitizer=("clang", "-fsanitize=memory"),
                variables=(("MSAN_OPTIONS", "halt_on_error=1"),)),
]


CLANG_HEADERS = "/usr/lib/llvm-14/lib/clang/14.0.6/include"


def clang(packages):
    """Returns clang's C compiler with its sanitizers, as (command, environment)."""
    for root in ("", packages.unpacked):
        path = f"{root}/usr/lib/llvm-14/bin/clang"
        if os.path.exists(path):
            libraries = f"{root}/usr/lib/x86_64-linux-gnu:{root}/usr/lib/llvm-14/lib"
            return path, {**os.environ, "LD_LIBRARY_PATH": libraries} if root else dict(os.environ)
    return None, None


def build_sanitized(folder, packages, log):
    """Builds the programs' sources with each sanitizer. Returns {(sanitizer's name, source): (path, None) or (None,
    the reason why it cannot be built)}."""
    built = {}
    clang_path, clang_environment = clang(packages)
    for surrounding in ALL:
        if not surrounding.sanitizer:
            continue
        for _, source, more, _ in SOURCES_TO_BUILD:
            kind, *options = surrounding.sanitizer
            key, environment = (surrounding.name, source), None
            command = compiler(source)
            if kind == "clang":
                if not clang_path:
                    built[key] = (None, "no clang 14")
                    continue
                command, environment = clang_path, clang_environment
                # clang's own headers are in a separate package, which is either installed on the machine or
                # unpacked.
                options += [option for root in ("", packages.unpacked) for option in ("-idirafter", root + CLANG_HEADERS)]
                if source.endswith(".cpp"):
                    built[key] = (None, "needs a C++ library that is built with MSan")
                    continue
            path = os.path.join(folder, f"{source.split('.')[0]}-{surrounding.name.replace(', ', '-')}")
            arguments = [command, "-O1", "-g", "-pthread", *more, *options, os.path.join(SOURCES, source), "-o", path,
                         "-ldl", "-lm"]
            done = subprocess.run(arguments, capture_output=True, text=True, env=environment) if shutil.which(command) else None
            if done is None or done.returncode:
                said = (done.stderr.strip().splitlines() or ["nothing said"])[-1] if done else f"no {command}"
                built[key] = (None, f"cannot be built: {said}")
                log(f"{source} with {surrounding.name} {built[key][1]}")
            else:
                built[key] = (path, "")
    return built


def sanitized(program, surrounding, built):
    path, why = built.get((surrounding.name, program.source), (None, "not built"))
    return (dataclasses.replace(program, run=[path, *program.run[1:]]), "") if path else (program, why)
