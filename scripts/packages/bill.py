"""Makes the software bill of materials in the format CycloneDX: a list of everything that is linked into the
library and the command."""
import json
import os
import re
import subprocess
import uuid

from .tree import ROOT

SHIPPED = ("tllmprof-shim", "tllmprof-cli")


def metadata(architecture):
    shown = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", f"{architecture}-unknown-linux-gnu"],
                           cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(shown.stdout)


def linked(metadata):
    """Returns ({identifier: package}, {identifier: identifiers of the packages that it uses}) for all crates that are
    linked into the shipped library and command."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    uses, todo = {}, [key for key, package in packages.items() if package["name"] in SHIPPED]
    while todo:
        if (key := todo.pop()) in uses:
            continue
        uses[key] = sorted(dep["pkg"] for dep in nodes[key]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
        todo += uses[key]
    return {key: packages[key] for key in uses}, uses


def checksums():
    with open(os.path.join(ROOT, "Cargo.lock"), encoding="utf-8") as lock:
        entries = lock.read().split("[[package]]")
    found = (re.search(r'name = "(.*)"\nversion = "(.*)"\n(?:.*\n)*?checksum = "(.*)"', entry) for entry in entries)
    return {(match[1], match[2]): match[3] for match in found if match}


def bill(version):
    packages, uses = {}, {}
    for architecture in ("x86_64", "aarch64"):
        more, of = linked(metadata(architecture))
        packages.update(more)
        for key, used in of.items():
            uses[key] = sorted({*uses.get(key, ()), *used})
    sums = checksums()

    def name(key):
        return f"pkg:cargo/{packages[key]['name']}@{packages[key]['version']}"

    components = []
    for key in sorted(packages, key=name):
        package = packages[key]
        component = {"type": "library", "bom-ref": name(key), "name": package["name"], "version": package["version"], "purl": name(key)}
        if package["license"]:
            # Older crates separate licenses by a slash, which means OR in SPDX expressions.
            component["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
        if checksum := sums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    scripts = []
    with open(os.path.join(ROOT, "crates/page/web/package-lock.json"), encoding="utf-8") as lock:
        for path, package in sorted(json.load(lock)["packages"].items()):
            # npm modules that are not only for development: they are part of the page that the
            # command writes
            if path and not package.get("dev"):
                module = path.rpartition("node_modules/")[2]
                purl = f"pkg:npm/{module}@{package['version']}"
                scripts.append(purl)
                components.append({"type": "library", "bom-ref": purl, "name": module, "version": package["version"], "purl": purl,
                                   "licenses": [{"expression": package["license"]}]})
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "tllmprof", "name": "tllmprof", "version": version,
                                   "licenses": [{"expression": "MIT OR Apache-2.0"}]}},
        "components": components,
        "dependencies": [{"ref": "tllmprof", "dependsOn": sorted([*scripts, *(name(key) for key in packages if packages[key]["name"] in SHIPPED)])}]
        + [{"ref": purl, "dependsOn": []} for purl in scripts]
        + [{"ref": name(key), "dependsOn": sorted({name(used) for used in uses[key]})} for key in sorted(packages, key=name)],
    }
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))}"
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
