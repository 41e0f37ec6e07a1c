"""Runs the commands of README.md and docs/."""
import argparse
import glob
import os
import shutil
import subprocess
import tempfile
import time

from .blocks import Unmarked, blocks, handled, missing, options_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 120
# The library's path in the documentation. In commands, it is replaced by the path of the built library.
INSTALLED = "/opt/tllmprof/libtllmprof.so"
# A replacement for nsys that only runs the program to profile.
STUB = """#!/bin/sh
export NSYS_PROFILING_SESSION_ID=1
while [ $# -gt 0 ]; do
    case $1 in ./*|python3) exec "$@" ;; esac
    shift
done
"""
# A replacement for an inference server: it makes 300 steps of the example engine and then ends.
SERVER = """#!/bin/sh
exec "$(dirname "$0")/engine" --steps 300
"""


class Place:
    """A temporary folder in which the commands of one page run."""

    def __init__(self, on_gpu):
        self.folder = tempfile.mkdtemp(prefix="tllmprof-docs-")
        target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
        self.command = os.path.abspath(os.environ.get("TLLMPROF_COMMAND") or os.path.join(target, "release", "tllmprof"))
        self.library = os.path.abspath(os.environ.get("TLLMPROF_LIB") or os.path.join(target, "release", "libtllmprof.so"))
        standin = os.environ.get("TLLMPROF_STANDIN") or os.path.join(target, "standin")
        tools = os.path.join(self.folder, ".bin")
        os.mkdir(tools)
        os.symlink(self.command, os.path.join(tools, "tllmprof"))
        keep = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") if name in os.environ}
        self.env = keep | {
            "PATH": tools + ":" + keep.get("PATH", "/usr/bin:/bin"), "HOME": self.folder, "LC_ALL": "C.UTF-8",
            "TLLMPROF_LIB": self.library, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb",
        }
        engine = os.path.join(self.folder, "engine")
        if on_gpu:
            for name in ("TLLMPROF_NSYS", "TLLMPROF_NCU"):
                if name in os.environ:
                    self.env[name] = os.environ[name]
                    self.env["PATH"] += ":" + os.path.dirname(os.environ[name])
            subprocess.run(["cc", "-O2", "-o", engine, os.path.join(ROOT, "examples", "engine.c"), "-ldl"], check=True)
        else:
            os.symlink(os.path.join(standin, "bin", "engine"), engine)
            self.env |= {"LD_LIBRARY_PATH": standin, "STANDIN_WAIT_US": "1000"}
        for name in ("nsys", "ncu"):
            if not (on_gpu and shutil.which(name, path=self.env["PATH"])):
                self.script(os.path.join(".bin", name), STUB)
        self.env["TLLMPROF_ENGINE"] = engine
        self.script("server", SERVER)
        for name in ("serve.py", "slow", "engine.c"):
            os.symlink(os.path.join(ROOT, "examples", name), os.path.join(self.folder, name))
        os.symlink(os.path.join(ROOT, "scripts"), os.path.join(self.folder, "scripts"))
        os.symlink(os.path.join(ROOT, "examples"), os.path.join(self.folder, "examples"))

    def script(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as out:
            out.write(text)
        os.chmod(path, 0o755)

    def run(self, command):
        """Runs a command of a page. Returns (status, output)."""
        command = command.replace(INSTALLED, self.library)
        try:
            done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.env, timeout=PATIENCE,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired as late:
            return -1, (late.output or b"").decode(errors="replace") + f"\nnot done in {PATIENCE} s"
        return done.returncode, done.stdout.decode(errors="replace")

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def there(command):
    """Checks that a command of the repository, such as a script, exists. Returns None if it does, else the reason
    why not."""
    name = command.split()[0]
    if name.startswith("scripts/") and not os.access(os.path.join(ROOT, name), os.X_OK):
        return f"there is no {name}"
    return None


def parses(place, command):
    """Checks the options of a command that cannot run here. Returns None if tllmprof accepts them, else the reason why
    not."""
    for checked in options_of(command):
        status, output = place.run(checked)
        if status != 0:
            return f"{checked}\n{output}"
    return None


def pages():
    named = [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "examples", "README.md")]
    return named + sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))


def check(block, place, on_gpu):
    """Runs or checks the commands of a block. Returns (number of commands that ran, number of skipped commands,
    errors)."""
    ran, skipped, wrong = 0, 0, []
    done = handled(block.needs, on_gpu)
    for command, shown in block.commands:
        where = f"{os.path.relpath(block.page, ROOT)}:{block.line}: $ {command}"
        if done == "there":
            problem = there(command)
        elif done == "options":
            problem, skipped = parses(place, command), skipped + 1
        else:
            status, output = place.run(command)
            ran += 1
            absent = missing(shown, output)
            problem = f"status {status}\n{output}" if status else None
            if absent:
                problem = f"it does not print\n{absent[0]}\nbut\n{output}"
        if problem:
            wrong.append(f"{where}\n{problem}")
    return ran, skipped, wrong


def run(files, on_gpu, log):
    """Runs or checks the commands of these pages. Returns (number of commands that ran, number of skipped commands,
    errors)."""
    total, left, failed = 0, 0, []
    for page in map(os.path.abspath, files):
        began, name = time.monotonic(), os.path.relpath(page, ROOT)
        try:
            found = of_page(page)
        except Unmarked as mistake:
            failed.append(str(mistake))
            continue
        if not found:
            continue
        place = Place(on_gpu)
        try:
            for block in found:
                ran, skipped, wrong = check(block, place, on_gpu)
                total, left, failed = total + ran, left + skipped, failed + wrong
        finally:
            place.close()
        log(f"{name}: {time.monotonic() - began:.1f} s")
    return total, left, failed


def of_page(page):
    with open(page) as text:
        return blocks(os.path.relpath(page, ROOT), text.read())


def main(doc, arguments):
    parser = argparse.ArgumentParser(prog="doc-commands", description=doc.strip().split("\n")[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args(arguments)
    files = given.files or pages()
    if given.list:
        for block in (block for page in files for block in of_page(os.path.abspath(page))):
            for command, _ in block.commands:
                print(f"{block.page}:{block.line}: {handled(block.needs, given.gpu)}: {command}")
        return 0
    ran, left, failed = run(files, given.gpu, lambda line: print(line, flush=True))
    for problem in failed:
        print(f"FAILED {problem}\n")
    print(f"{ran} commands ran, {left} need what is not here, {len(failed)} failed")
    return 1 if failed else 0
