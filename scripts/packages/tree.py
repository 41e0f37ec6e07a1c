"""Collects the contents of a package: {path: file}. Paths are relative to the prefix, such as /usr, a virtual
environment, or an archive's top folder."""
import dataclasses
import gzip
import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ARCHITECTURES = ("x86_64", "aarch64")
# The oldest glibc version with which the packaged programs run.
GLIBC = "2.17"
SUMMARY = "Profile any CUDA program by iteration"
LICENSES = ("LICENSE-MIT", "LICENSE-APACHE")


@dataclasses.dataclass(frozen=True)
class File:
    content: bytes
    mode: int = 0o644


def read(path, mode=0o644):
    with open(path, "rb") as file:
        return File(file.read(), mode)


def version():
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as manifest:
        return re.search(r'^version = "(.*)"', manifest.read(), re.M)[1]


def epoch():
    """Returns the time that all files in packages get: SOURCE_DATE_EPOCH, or else the time of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return int(shown.stdout)


def portable(target, architecture):
    """Returns the folder into which scripts/build-portable writes the programs for this processor architecture."""
    own = architecture == os.uname().machine
    return os.path.join(target, "portable" if own else f"portable-{architecture}")


def programs(folder):
    return {
        "bin/tllmprof": read(f"{folder}/tllmprof", 0o755),
        "lib/tllmprof/libtllmprof.so": read(f"{folder}/libtllmprof.so"),
        "lib/tllmprof/demo/engine": read(f"{folder}/demo/engine", 0o755),
        "lib/tllmprof/demo/libcuda.so.1": read(f"{folder}/demo/libcuda.so.1"),
    }


def manual(command):
    """Runs the command to generate manual pages and shell completions. Returns them as files by path. `command`
    must run on this machine."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([command, "manual", folder], check=True)
        for page in sorted(os.listdir(folder)):
            files[f"share/man/man1/{page}"] = read(os.path.join(folder, page))
    for shell, path in {"bash": "share/bash-completion/completions/tllmprof",
                        "zsh": "share/zsh/site-functions/_tllmprof",
                        "fish": "share/fish/vendor_completions.d/tllmprof.fish"}.items():
        made = subprocess.run([command, "completions", shell], stdout=subprocess.PIPE, check=True)
        files[path] = File(made.stdout)
    return files


def documents(bill_of_materials):
    files = {f"share/doc/tllmprof/{name}": read(os.path.join(ROOT, name)) for name in ("README.md", "CHANGELOG.md", "SKILL.md", *LICENSES)}
    files["share/doc/tllmprof/gate.yml"] = read(os.path.join(ROOT, "examples", "gate.yml"))
    files["share/doc/tllmprof/tllmprof.cdx.json"] = File(bill_of_materials)
    return files


def compressed(files):
    """Returns the files with their manual pages compressed, as distributions have them."""
    return {
        path + ".gz" if path.startswith("share/man/") else path:
            File(gzip.compress(file.content, 9, mtime=0), file.mode) if path.startswith("share/man/") else file
        for path, file in files.items()
    }


def newest_glibc(path):
    """Returns (the newest glibc version that an ELF file requires, as text; its other requirements)."""
    # readelf is used because, unlike objdump, it also reads files for other processor architectures.
    shown = subprocess.run(["readelf", "-dVW", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([0-9.]+)", shown)}
    needed = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
              if not re.match(r"(libc|libm|libdl|libpthread|librt|libutil)\.so|ld-linux-", name)]
    return ".".join(map(str, max(versions, default=(0,)))), needed


def complaints(files):
    """Returns the reasons why programs or libraries among these files would not run on systems that the packages
    are for."""
    limit = tuple(map(int, GLIBC.split(".")))
    with tempfile.TemporaryDirectory() as folder:
        for path, file in sorted(files.items()):
            if not file.content.startswith(b"\x7fELF"):
                continue
            copy = os.path.join(folder, "elf")
            with open(copy, "wb") as out:
                out.write(file.content)
            newest, needed = newest_glibc(copy)
            if tuple(map(int, newest.split("."))) > limit:
                yield f"{path} needs glibc {newest}, more than {GLIBC}"
            if needed:
                yield f"{path} needs {', '.join(needed)}"
        for path, file in sorted(files.items()):
            for own in (ROOT, os.path.expanduser("~/.cargo")):
                if os.path.dirname(own) != "/" and own.encode() in file.content:
                    yield f"{path} has {own}, a path of this machine, in it"
