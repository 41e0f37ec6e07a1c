"""Unpacks Debian packages into a separate folder, so that nothing is installed on the machine. Fetches only packages
that are not installed on the machine."""
import fcntl
import glob
import os
import re
import shutil
import subprocess

UNPACKED = "unpacked"
# Links that the install scripts of the packages would make: (path, target).
LINKS = [("usr/lib/x86_64-linux-gnu/libblas.so.3", "blas/libblas.so.3"),
         ("usr/lib/x86_64-linux-gnu/liblapack.so.3", "lapack/liblapack.so.3")]


class Packages:
    def __init__(self, cache, log):
        self.folder, self.log = os.path.join(cache, "harmless"), log
        self.unpacked = os.path.join(self.folder, UNPACKED)
        self.why = {}

    def apt(self, tool, *arguments):
        lists, archives = os.path.join(self.folder, "lists"), os.path.join(self.folder, "archives")
        command = [tool, "-q", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={self.folder}",
                   "-o", f"Dir::Cache::archives={archives}", "-o", "Dir::Cache::pkgcache=pkgcache.bin",
                   "-o", "Dir::Cache::srcpkgcache=srcpkgcache.bin", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=",
                   "-o", "Acquire::Languages=none", "-o", "APT::Keep-Downloaded-Packages=true", *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})

    def get(self, names):
        """Fetches and unpacks packages. Puts the reason for each package that is not available into self.why."""
        for part in ("lists/partial", "archives/partial", f"{UNPACKED}/usr/lib", f"{UNPACKED}/.have"):
            os.makedirs(os.path.join(self.folder, part), exist_ok=True)
        with open(os.path.join(self.folder, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
                self.why.update((name, "this machine has no apt") for name in names)
                return
            if not glob.glob(os.path.join(self.folder, "lists", "*Packages*")):
                self.apt("apt-get", "update")
            self.get_all([name for name in names if not os.path.exists(self.marker(name))])
            self.link()

    def marker(self, name):
        return os.path.join(self.unpacked, ".have", name)

    def get_all(self, names):
        """Fetches all packages with one call of apt, because apt takes long to start. If a package is not available,
        leaves it out and requests the others again."""
        while names:
            self.log(f"fetching {' '.join(names)}")
            asked = self.apt("apt-get", "install", "-s", "--no-install-recommends", *names)
            if asked.returncode == 0:
                break
            missing = {name: line[3:] for line in asked.stderr.splitlines() if line.startswith("E:")
                       for name in names if re.search(rf"(^|['\s]){re.escape(name)}($|['\s])", line)}
            if not missing:
                missing = {name: asked.stderr.strip().splitlines()[-1:] for name in names}
            for name, why in missing.items():
                self.why[name] = f"package {name}: {why}"
            names = [name for name in names if name not in missing]
        if not names:
            return
        fetched = self.apt("apt-get", "install", "-y", "--download-only", "--no-install-recommends", *names)
        if fetched.returncode:
            self.why.update((name, "packages cannot be downloaded") for name in names)
            return
        for line in asked.stdout.splitlines():
            if line.startswith("Inst "):
                package = line.split()[1].split(":")[0]
                for archive in glob.glob(os.path.join(self.folder, "archives", f"{package}_*.deb")):
                    self.unpack(archive)
        for name in names:
            open(self.marker(name), "w").close()

    def unpack(self, archive):
        marker = os.path.join(self.unpacked, ".have", os.path.basename(archive))
        if os.path.exists(marker):
            return
        for name in ("bin", "sbin", "lib", "lib64"):
            os.makedirs(os.path.join(self.unpacked, "usr", name), exist_ok=True)
            if not os.path.islink(os.path.join(self.unpacked, name)):
                os.symlink(f"usr/{name}", os.path.join(self.unpacked, name))
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as unpacker:
            subprocess.run(["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", self.unpacked],
                           stdin=unpacker.stdout, check=True, stderr=subprocess.DEVNULL)
        open(marker, "w").close()

    def link(self):
        for at, to in LINKS:
            path = os.path.join(self.unpacked, at)
            if os.path.exists(os.path.join(os.path.dirname(path), to)) and not os.path.lexists(path):
                os.symlink(to, path)

    def has(self, path):
        """Returns True if the path exists on the machine or among the unpacked packages."""
        return os.path.exists(path) or os.path.exists(self.unpacked + path)

    def which(self, command, folders):
        if command.startswith("/"):
            return command if self.has(command) else None
        return next((f"{folder}/{command}" for folder in folders if self.has(f"{folder}/{command}")), None)
