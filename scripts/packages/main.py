"""Builds the programs with scripts/build-portable and writes the requested packages (scripts/package)."""
import argparse
import hashlib
import os
import subprocess
import sys

from . import archives, bill, rpm, tree

KINDS = {"wheel": archives.wheel, "deb": archives.deb, "rpm": rpm.rpm, "tar": archives.tar}


def say(text):
    print(f"package: {text}", file=sys.stderr)


def fail(text):
    say(text)
    sys.exit(1)


def main(about):
    parser = argparse.ArgumentParser(prog="package", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join([*KINDS, 'image'])}, or all (default)")
    parser.add_argument("--arch", action="append", choices=tree.ARCHITECTURES, help="default: both")
    parser.add_argument("--dist", default=os.path.join(tree.ROOT, "dist"), help="the folder of the packages (dist)")
    parser.add_argument("--no-build", action="store_true", help="package what scripts/build-portable --command has built")
    arguments = parser.parse_args()
    kinds = set(arguments.kinds) or {"all"}
    if unknown := kinds - {*KINDS, "image", "all"}:
        fail(f"{sorted(unknown)[0]}: there is no such kind (wanted: {', '.join([*KINDS, 'image', 'all'])})")
    if "all" in kinds:
        kinds = {*KINDS, "image"}
    architectures = arguments.arch or list(tree.ARCHITECTURES)
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(tree.ROOT, "target"))
    own = os.uname().machine

    if not arguments.no_build:
        for architecture in {own, *architectures}:
            build = [os.path.join(tree.ROOT, "scripts/build-portable"), "--command", "--arch", architecture, tree.GLIBC]
            if subprocess.run(build, check=False).returncode != 0:
                fail(f"scripts/build-portable failed for {architecture}")
    version, when = tree.version(), tree.epoch()
    materials = bill.bill(version)
    texts = {**tree.manual(os.path.join(tree.portable(target, own), "tllmprof")), **tree.documents(materials)}

    made = {f"tllmprof-{version}.cdx.json": materials}
    layers = {}
    for architecture in architectures:
        folder = tree.portable(target, architecture)
        files = {**tree.programs(folder), **texts}
        layers[architecture] = archives.image_layer(folder)
        if wrong := [*tree.complaints({**files, **layers[architecture]})]:
            fail("; ".join(wrong))
        for kind in sorted(kinds & KINDS.keys()):
            name, content = KINDS[kind](files, version, architecture, when)
            made[name] = content
    if "image" in kinds:
        name, content = archives.image(layers, version, when)
        made[name] = content

    os.makedirs(arguments.dist, exist_ok=True)
    for old in os.listdir(arguments.dist):
        if old.startswith(("tllmprof", "SHA256SUMS")):
            os.remove(os.path.join(arguments.dist, old))
    made["SHA256SUMS"] = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(made.items())).encode()
    for name, content in sorted(made.items()):
        with open(os.path.join(arguments.dist, name), "wb") as out:
            out.write(content)
        print(f"{len(content):>10}  {os.path.relpath(os.path.join(arguments.dist, name))}")
    return 0
