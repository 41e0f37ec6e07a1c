"""Makes the packages that are archives: .tar.gz, .deb, the wheel, and the container image. The same files always
give the same bytes."""
import base64
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import time
import zipfile

from .tree import GLIBC, LICENSES, ROOT, SUMMARY, File, compressed, read

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
AUTHORS = "The tllmprof authors <tllmprof@invalid>"
# The user id in the container image: a user without rights, whose number needs no entry in /etc/passwd.
NOBODY = 65532


def tarred(files, when, folder=""):
    """Makes a tar archive of the files. In the archive, they are below `folder`. `when`: the time of all files."""
    paths = {}
    for path, file in files.items():
        path = folder + path
        paths[path] = file
        while (path := os.path.dirname(path)) not in ("", "."):
            paths[path] = None
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(paths):
            entry, file = tarfile.TarInfo(path), paths[path]
            entry.mtime, entry.uname, entry.gname = when, "root", "root"
            if file is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size, entry.mode = len(file.content), file.mode
                tar.addfile(entry, io.BytesIO(file.content))
    return out.getvalue()


def tar(files, version, architecture, when):
    name = f"tllmprof-{version}-{architecture}-linux"
    return f"{name}.tar.gz", gzip.compress(tarred(files, when, name + "/"), 9, mtime=0)


def deb(files, version, architecture, when):
    # In Debian, zsh looks for the completions of packages in vendor-completions instead of site-functions.
    files = {"usr/" + path.replace("/site-functions/", "/vendor-completions/"): file for path, file in compressed(files).items()}
    licenses = b"\n\n".join(files.pop(f"usr/share/doc/tllmprof/{name}").content for name in LICENSES)
    files["usr/share/doc/tllmprof/copyright"] = File(b"tllmprof may be used under either of two licenses, MIT or Apache 2.0.\n\n" + licenses)
    size = sum(-(-len(file.content) // 1024) for file in files.values())
    control = f"""Package: tllmprof
Version: {version}
Architecture: {DEBIAN[architecture]}
Maintainer: {AUTHORS}
Installed-Size: {size}
Depends: libc6 (>= {GLIBC})
Section: devel
Priority: optional
Description: {SUMMARY}
 A preloaded library counts the iterations of an unmodified CUDA program, opens
 profilers for windows of them and records what happens there. The command runs
 programs with the library and reports on the records.
"""
    sums = "".join(f"{hashlib.md5(file.content).hexdigest()}  {path}\n" for path, file in sorted(files.items()))
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", lzma.compress(tarred({"control": File(control.encode()), "md5sums": File(sums.encode())}, when, "./"))),
        ("data.tar.xz", lzma.compress(tarred(files, when, "./"))),
    ]
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:16}{when:<12}{0:<6}{0:<6}{'100644':8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
    return f"tllmprof_{version}_{DEBIAN[architecture]}.deb", out


def wheel(files, version, architecture, when):
    # manylinux2014 is another name of the first platform, for older versions of pip. For AArch64, most wheels are for
    # manylinux_2_28, so this name is added.
    platforms = [f"manylinux_{GLIBC.replace('.', '_')}", "manylinux2014", *(["manylinux_2_28"] if architecture == "aarch64" else [])]
    tags = [f"{platform}_{architecture}" for platform in platforms]
    info, data = f"tllmprof-{version}.dist-info", f"tllmprof-{version}.data"
    here = os.path.join(ROOT, "scripts/packages/python")
    inside = {f"tllmprof/{name}": read(os.path.join(here, name)) for name in ("__init__.py", "__main__.py")}
    for path, file in files.items():
        # In the Python environment, these files are installed below libexec/ instead of lib/, because `pip install
        # --target` would leave out a folder named lib.
        path = path.replace("lib/", "libexec/", 1) if path.startswith("lib/") else path
        inside[f"{data}/scripts/{path[4:]}" if path.startswith("bin/") else f"{data}/data/{path}"] = file
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        inside[f"{info}/METADATA"] = File(f"""Metadata-Version: 2.4
Name: tllmprof
Version: {version}
Summary: {SUMMARY}
License-Expression: MIT OR Apache-2.0
{"".join(f"License-File: {name}" + chr(10) for name in LICENSES)}Requires-Python: >=3.8
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

{readme.read()}""".encode())
    for name in LICENSES:
        inside[f"{info}/licenses/{name}"] = read(os.path.join(ROOT, name))
    inside[f"{info}/WHEEL"] = File(("Wheel-Version: 1.0\nGenerator: tllmprof\nRoot-Is-Purelib: false\n" + "".join(f"Tag: py3-none-{tag}\n" for tag in tags)).encode())
    record = io.StringIO()
    lines = csv.writer(record, lineterminator="\n")
    for path, file in sorted(inside.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.content).digest()).rstrip(b"=").decode()
        lines.writerow([path, f"sha256={digest}", len(file.content)])
    lines.writerow([f"{info}/RECORD", "", ""])
    # The files of the info folder are at the end, as the format of wheels requires, and RECORD is the last of them.
    ordered = [*sorted(inside.items(), key=lambda item: (item[0].startswith(info), item[0])), (f"{info}/RECORD", File(record.getvalue().encode()))]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, file in ordered:
            # a zip file cannot contain times before 1980
            entry = zipfile.ZipInfo(path, time.gmtime(max(when, 315532800))[:6])
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, (0o100000 | file.mode) << 16
            archive.writestr(entry, file.content, compresslevel=9)
    return f"tllmprof-{version}-py3-none-{'.'.join(tags)}.whl", out.getvalue()


def image(layers, version, when):
    """Makes a container image in the OCI layout, as one tar archive. `layers`: {processor architecture: files}."""
    blobs = {}

    def blob(kind, content, **more):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = File(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content), **more}

    def as_json(value):
        return json.dumps(value, sort_keys=True).encode()

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    labels = {"org.opencontainers.image.title": "tllmprof", "org.opencontainers.image.version": version,
              "org.opencontainers.image.licenses": "MIT OR Apache-2.0", "org.opencontainers.image.description": SUMMARY}
    manifests = []
    for architecture, files in layers.items():
        layer = tarred(files, when)
        platform = {"architecture": DEBIAN[architecture], "os": "linux"}
        config = {**platform, "created": created, "config": {"User": f"{NOBODY}:{NOBODY}", "Entrypoint": ["/tllmprof/copy"], "Labels": labels},
                  "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
                  "history": [{"created": created, "comment": "scripts/package"}]}
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "config": blob("config.v1+json", as_json(config)),
                    "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))]}
        manifests.append(blob("manifest.v1+json", as_json(manifest), platform=platform))
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    top = {"schemaVersion": 2, "manifests": [blob("index.v1+json", as_json(index), annotations={"org.opencontainers.image.ref.name": version})]}
    layout = {"oci-layout": File(b'{"imageLayoutVersion": "1.0.0"}'), "index.json": File(as_json(top)), **blobs}
    return f"tllmprof-{version}-image.tar", tarred(layout, when)


def image_layer(folder):
    layer = {"tllmprof/copy": read(f"{folder}/copy", 0o755), "tllmprof/tllmprof": read(f"{folder}/tllmprof", 0o755),
             "tllmprof/libtllmprof.so": read(f"{folder}/libtllmprof.so")}
    layer.update({f"licenses/{name}": read(os.path.join(ROOT, name)) for name in LICENSES})
    return layer
