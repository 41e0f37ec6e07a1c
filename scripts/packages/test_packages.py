"""Tests the packages, with programs that do nothing: python3 -m unittest discover -s scripts/packages -t scripts"""
import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
import venv
import zipfile

from . import archives, bill, tree
from .tree import File

WHEN = 1_700_000_000
COMMAND = b'#!/bin/sh\ncase $1 in --lib) echo "$(dirname "$(dirname "$(readlink -f "$0")")")"/lib*/tllmprof/libtllmprof.so ;; *) echo "$@" ;; esac\n'


def some():
    files = {
        "bin/tllmprof": File(COMMAND, 0o755),
        "lib/tllmprof/libtllmprof.so": File(b"library"),
        "lib/tllmprof/demo/engine": File(b"engine", 0o755),
        "share/man/man1/tllmprof.1": File(b".TH tllmprof 1\n"),
        "share/zsh/site-functions/_tllmprof": File(b"#compdef tllmprof\n"),
    }
    files.update({f"share/doc/tllmprof/{name}": tree.read(os.path.join(tree.ROOT, name)) for name in tree.LICENSES})
    return files


def backwards(files):
    return dict(reversed(files.items()))


class Packages(unittest.TestCase):
    def test_the_same_files_give_the_same_bytes(self):
        for make in (archives.tar, archives.deb, archives.wheel):
            first = make(some(), "1.2", "x86_64", WHEN)
            self.assertEqual(first, make(backwards(some()), "1.2", "x86_64", WHEN))
            self.assertNotEqual(first[1], make({**some(), "x": File(b"")}, "1.2", "x86_64", WHEN)[1])
        self.assertEqual(bill.bill("1.2"), bill.bill("1.2"))

    def test_documents_are_those_of_the_repository(self):
        files = tree.documents(b"bill")
        for name in ("README.md", "CHANGELOG.md", "SKILL.md", *tree.LICENSES):
            with open(os.path.join(tree.ROOT, name), "rb") as file:
                self.assertEqual(files[f"share/doc/tllmprof/{name}"].content, file.read())
        with open(os.path.join(tree.ROOT, "examples", "gate.yml"), "rb") as file:
            self.assertEqual(files["share/doc/tllmprof/gate.yml"].content, file.read())
        skill = files["share/doc/tllmprof/SKILL.md"].content.decode()
        self.assertTrue(skill.startswith("---\nname: tllmprof\ndescription: "))
        self.assertEqual(files["share/doc/tllmprof/tllmprof.cdx.json"], File(b"bill"))

    def test_a_tar_holds_one_folder_of_nobody(self):
        name, content = archives.tar(some(), "1.2", "x86_64", WHEN)
        self.assertEqual(name, "tllmprof-1.2-x86_64-linux.tar.gz")
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            entries = archive.getmembers()
        self.assertEqual({entry.name.split("/")[0] for entry in entries}, {"tllmprof-1.2-x86_64-linux"})
        self.assertEqual({(entry.uid, entry.mtime) for entry in entries}, {(0, WHEN)})
        modes = {entry.name.partition("/")[2]: entry.mode for entry in entries}
        self.assertEqual((modes["bin/tllmprof"], modes["lib/tllmprof/libtllmprof.so"], modes["bin"]), (0o755, 0o644, 0o755))


class Wheel(unittest.TestCase):
    def setUp(self):
        self.name, content = archives.wheel(some(), "1.2", "x86_64", WHEN)
        self.content = content
        self.archive = zipfile.ZipFile(io.BytesIO(content))

    def test_the_name_and_the_tags_agree(self):
        about = self.archive.read("tllmprof-1.2.dist-info/WHEEL").decode()
        platforms = re.findall(r"^Tag: py3-none-(\S+)$", about, re.M)
        self.assertEqual(self.name, f"tllmprof-1.2-py3-none-{'.'.join(platforms)}.whl")
        self.assertEqual(platforms, ["manylinux_2_17_x86_64", "manylinux2014_x86_64"])
        self.assertIn("Root-Is-Purelib: false\n", about)
        self.assertEqual(archives.wheel(some(), "1.2", "aarch64", WHEN)[0], "tllmprof-1.2-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.manylinux_2_28_aarch64.whl")

    def test_the_record_lists_every_file(self):
        record = "tllmprof-1.2.dist-info/RECORD"
        lines = {path: (digest, size) for path, digest, size in csv.reader(self.archive.read(record).decode().splitlines())}
        self.assertEqual(lines.pop(record), ("", ""))
        self.assertEqual({*lines, record}, set(self.archive.namelist()))
        self.assertEqual(self.archive.namelist()[-1], record)
        for path, (digest, size) in lines.items():
            content = self.archive.read(path)
            wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, int(size)), (f"sha256={wanted}", len(content)))

    def test_pip_installs_it(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel, home = os.path.join(folder, self.name), os.path.join(folder, "home")
            with open(wheel, "wb") as out:
                out.write(self.content)
            venv.create(home, with_pip=False)
            python = os.path.join(home, "bin/python")
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel]
            subprocess.run(pip, check=True)
            library = os.path.join(os.path.realpath(home), "libexec/tllmprof/libtllmprof.so")
            for command in ([os.path.join(home, "bin/tllmprof")], [python, "-m", "tllmprof"]):
                self.assertEqual(subprocess.check_output([*command, "--lib"], text=True).strip(), library)
                self.assertEqual(subprocess.check_output([*command, "run", "a b"], text=True), "run a b\n")
            self.assertTrue(os.path.isfile(library))
            self.assertTrue(os.stat(os.path.join(home, "libexec/tllmprof/demo/engine")).st_mode & stat.S_IXUSR)

    def test_pip_installs_it_into_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel, home = os.path.join(folder, self.name), os.path.join(folder, "home")
            with open(wheel, "wb") as out:
                out.write(self.content)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--target", home, wheel]
            subprocess.run(pip, check=True)
            said = subprocess.check_output([os.path.join(home, "bin/tllmprof"), "--lib"], text=True).strip()
            self.assertEqual(said, os.path.join(os.path.realpath(home), "libexec/tllmprof/libtllmprof.so"))
            self.assertTrue(os.path.isfile(said))


class Deb(unittest.TestCase):
    def test_its_members(self):
        name, content = archives.deb(some(), "1.2", "aarch64", WHEN)
        self.assertEqual(name, "tllmprof_1.2_arm64.deb")
        self.assertTrue(content.startswith(b"!<arch>\ndebian-binary "))
        at, members = 8, {}
        while at < len(content):
            header = content[at:at + 60].decode()
            size = int(header[48:58])
            self.assertEqual(header[58:], "`\n")
            members[header[:16].strip()] = content[at + 60:at + 60 + size]
            at += 60 + size + size % 2
        self.assertEqual([*members], ["debian-binary", "control.tar.xz", "data.tar.xz"])
        with tarfile.open(fileobj=io.BytesIO(members["control.tar.xz"])) as control:
            self.assertIn(b"Depends: libc6 (>= 2.17)\n", control.extractfile("./control").read())
            sums = control.extractfile("./md5sums").read().decode()
        with tarfile.open(fileobj=io.BytesIO(members["data.tar.xz"])) as data:
            files = {entry.name[2:]: data.extractfile(entry).read() for entry in data if entry.isfile()}
        self.assertEqual(sums, "".join(f"{hashlib.md5(files[path]).hexdigest()}  {path}\n" for path in sorted(files)))
        self.assertEqual(gzip.decompress(files["usr/share/man/man1/tllmprof.1.gz"]), b".TH tllmprof 1\n")
        self.assertIn("usr/share/zsh/vendor-completions/_tllmprof", files)
        self.assertIn(b"Apache License", files["usr/share/doc/tllmprof/copyright"])


class Image(unittest.TestCase):
    def test_every_digest_is_that_of_its_blob(self):
        layers = {"x86_64": {"tllmprof/copy": File(b"x", 0o755)}, "aarch64": {"tllmprof/copy": File(b"a", 0o755)}}
        _, content = archives.image(layers, "1.2", WHEN)
        with tarfile.open(fileobj=io.BytesIO(content)) as layout:
            files = {entry.name: layout.extractfile(entry).read() for entry in layout if entry.isfile()}
        seen = []

        def follow(descriptor):
            blob = files[f"blobs/sha256/{descriptor['digest'].partition(':')[2]}"]
            self.assertEqual((hashlib.sha256(blob).hexdigest(), len(blob)), (descriptor["digest"][7:], descriptor["size"]))
            seen.append(descriptor["mediaType"].rpartition("image.")[2])
            if descriptor["mediaType"].endswith("json"):
                inside = json.loads(blob)
                for more in [*inside.get("manifests", ()), *inside.get("layers", ()), *([inside["config"]] if "digest" in inside.get("config", {}) else ())]:
                    follow(more)
            return blob

        for top in json.loads(files["index.json"])["manifests"]:
            self.assertEqual(top["annotations"]["org.opencontainers.image.ref.name"], "1.2")
            follow(top)
        self.assertEqual(sorted(seen), sorted(["index.v1+json"] + 2 * ["manifest.v1+json", "config.v1+json", "layer.v1.tar+gzip"]))


class Bill(unittest.TestCase):
    def test_it_has_what_is_linked_and_nothing_else(self):
        content = json.loads(bill.bill("1.2"))
        names = {component["name"] for component in content["components"]}
        self.assertLessEqual({"tllmprof-shim", "tllmprof-cli", "libc", "clap", "rusqlite", "uplot"}, names)
        # these packages are used only for tests and by the build, so the list must not contain them
        self.assertFalse(names & {"rcgen", "bindgen", "playwright-core"})
        references = {component["bom-ref"] for component in content["components"]} | {"tllmprof"}
        self.assertEqual(references, {entry["ref"] for entry in content["dependencies"]})
        for entry in content["dependencies"]:
            self.assertLessEqual(set(entry["dependsOn"]), references)


class Glibc(unittest.TestCase):
    def test_what_needs_too_much_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "new.so")
            source = "int pthread_create(void); int f(void) { return pthread_create(); }"
            subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", path, "-Wl,-z,defs"], input=source, text=True, check=True)
            newest, needed = tree.newest_glibc(path)
            self.assertEqual(needed, [])
            with open(path, "rb") as file:
                files = {"lib/new.so": File(file.read())}
        if tuple(map(int, newest.split("."))) <= (2, 17):
            self.skipTest("this machine's C library is old")
        self.assertIn(f"lib/new.so needs glibc {newest}, more than 2.17", [*tree.complaints(files)])


if __name__ == "__main__":
    unittest.main()
