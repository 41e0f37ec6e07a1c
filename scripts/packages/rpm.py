"""Makes the .rpm with rpmbuild, because its header format is complicated."""
import os
import subprocess
import tempfile

from .tree import GLIBC, SUMMARY, compressed

SPEC = """
Name: tllmprof
Version: {version}
Release: 1
Summary: {summary}
License: MIT OR Apache-2.0
# The dependencies are listed here, because rpm on this machine would find wrong ones, such as the stand-in for CUDA.
AutoReqProv: no
Requires: libc.so.6({symbol})(64bit)

%description
A preloaded library counts the iterations of an unmodified CUDA program, opens
profilers for windows of them and records what happens there. The command runs
programs with the library and reports on the records.

%files
{files}
"""

MACROS = {
    "_buildhost": "localhost",
    "_build_id_links": "none",
    "_binary_payload": "w9.xzdio",  # xz, because older rpms cannot read zstd
    "_source_filedigest_algorithm": "8",
    "_binary_filedigest_algorithm": "8",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "__os_install_post": "%{nil}",  # rpmbuild must neither strip nor compress the files again
    "debug_package": "%{nil}",
}


def rpm(files, version, architecture, when):
    files = {f"/usr/{path}": file for path, file in compressed(files).items()}
    with tempfile.TemporaryDirectory() as top:
        root = os.path.join(top, "root")
        for path, file in files.items():
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            with open(root + path, "wb") as out:
                out.write(file.content)
            os.chmod(root + path, file.mode)
            os.utime(root + path, (when, when))
        kinds = {"/usr/share/doc/": "%doc ", "/usr/share/man/": "%doc "}
        lines = ["%dir %attr(0755,root,root) /usr/lib/tllmprof", "%dir %attr(0755,root,root) /usr/lib/tllmprof/demo",
                 "%dir %attr(0755,root,root) /usr/share/doc/tllmprof"]
        for path, file in sorted(files.items()):
            kind = next((kind for folder, kind in kinds.items() if path.startswith(folder)), "")
            lines.append(f"{kind}%attr({file.mode:04o},root,root) {path}")
        with open(os.path.join(top, "tllmprof.spec"), "w", encoding="utf-8") as spec:
            spec.write(SPEC.format(version=version, summary=SUMMARY, symbol=f"GLIBC_{GLIBC}", files="\n".join(lines)))
        command = ["rpmbuild", "-bb", "--quiet", "--target", f"{architecture}-linux", "--buildroot", root,
                   "--define", f"_topdir {top}", "--define", f"_rpmdir {top}/out", "--define", "_rpmfilename package.rpm",
                   "--define", "%__spec_install_pre %{nil}", "--define", "__spec_clean_pre %{nil}"]
        for name, value in MACROS.items():
            command += ["--define", f"{name} {value}"]
        subprocess.run([*command, f"{top}/tllmprof.spec"], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(when), "LC_ALL": "C"})
        with open(f"{top}/out/package.rpm", "rb") as package:
            return f"tllmprof-{version}-1.{architecture}.rpm", package.read()
