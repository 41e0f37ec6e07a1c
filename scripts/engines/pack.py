"""Makes FOLDER/NAME.tar.xz: an inference engine for a GPU host without a network, cut to what an sm_90 GPU needs.

    pack-engine NAME FOLDER

    NAME   vllm, sglang, lmdeploy, onnxruntime, ctranslate2, transformers (its server's requirements)

Downloads the wheels of scripts/engines/versions.txt with pip, drops what is not needed there, and packs the rest.
`gpu-check --engine NAME --engines FOLDER` unpacks and runs it. FOLDER/NAME.sha256 has the archive's checksum. Needs pip, 2.5 GB of
memory, cc for lmdeploy and ctranslate2, strip for vllm; no GPU. Any Python from 3.9 on will do: the wheels are for CPython 3.12.
Exit status: 0 done, 1 failed, 2 wrong arguments.
"""
import fnmatch
import glob
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

from .slim import slim

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON, GLIBC_MINOR, ARCH = "3.12", 39, 90

# Rules to make each engine's files smaller or usable. drop: removes files that match (a folder with `folder/*`, at any
# depth). slim: removes the device code for all processors but sm_ARCH, with the options of slim.slim. strip: removes
# debug symbols from all libraries except the engine's own. move: {from: to}, moves files. cublas12: adds a
# libcublas.so.12 that calls CUDA 13's libcublas, and an empty libcublasLt.so.12. stubs: adds the packages in stubs/.
RULES = {
    "vllm": dict(
        drop=[
            "bin/*",
            "vllm/vllm-rs",  # front end in Rust, not needed with VLLM_USE_RUST_FRONTEND=0
            "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # 305 MB, not needed: sm_90 uses FlashAttention 3
            "vllm/_qutlass_C.abi3.so",
            # sources for DeepGEMM's compiler at run time, not needed with VLLM_USE_DEEP_GEMM=0
            "vllm/third_party/deep_gemm/include/*",
            "vllm/third_party/deep_gemm/_C.cpython-310-*",
            "vllm/third_party/deep_gemm/_C.cpython-311-*",
            "vllm/third_party/deep_gemm/_C.cpython-313-*",
            "vllm/third_party/deep_gemm/_C.cpython-314-*",
            "vllm/third_party/fmha_sm100/cutlass/*",
            "mistral_common/data/*", "pycountry/locales/*",
            "dill/tests/*", "jsonschema/tests/*", "pycountry/tests/*", "supervisor/tests/*", "zmq/tests/*",
        ],
        slim={"vllm/_C_stable_libtorch.abi3.so": {}, "vllm/_moe_C_stable_libtorch.abi3.so": dict(ptx=False)},
        strip=True,
    ),
    "sglang": dict(
        drop=[
            "bin/*", "share/*", "tools/*", "*.pyi", "xgrammar/lib/*",
            "sgl_kernel/flash_ops.abi3.so",  # FlashAttention, 1.1 GB, not needed with --attention-backend triton
            "sgl_kernel/flashmla_ops.abi3.so", "sgl_kernel/infllm_ops.*", "sgl_kernel/sm100/*",
        ],
        slim={"sgl_kernel/sm90/common_ops.abi3.so": {}},
        stubs=True,
    ),
    "lmdeploy": dict(
        drop=["bin/*", "*.pyi", "yapftests/*", "lmdeploy-*.dist-info/*", "lmdeploy/turbomind/include/*",
              "lmdeploy/turbomind/lib64/*", "nvidia/*", "nvidia_*.dist-info/*"],
        move={"nvidia/cuda_runtime/lib/libcudart.so.12": "nv12/libcudart.so.12"},
        slim={"lmdeploy/turbomind/_turbomind.*.so": {}},
        cublas12=True,
    ),
    "onnxruntime": dict(
        drop=["bin/*", "*.dist-info/*", "onnxruntime/ThirdPartyNotices.txt", "onnxruntime/capi/libonnxruntime.so.*",
              "onnxruntime/capi/libonnxruntime_providers_tensorrt.so", "onnxruntime/quantization/*",
              "onnxruntime/tools/*", "onnxruntime/transformers/*"],
        slim={"onnxruntime/capi/libonnxruntime_providers_cuda.so": {}},
    ),
    "ctranslate2": dict(
        drop=["bin/*", "*.dist-info/*", "*.pyi"],
        slim={"ctranslate2.libs/libctranslate2-*": {}},
        cublas12=True,
    ),
    "transformers": dict(drop=["bin/*", "*.pyi"]),
}


def versions(name):
    """Returns the lines of the engine's section in versions.txt."""
    found, section = [], None
    with open(os.path.join(HERE, "versions.txt")) as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if line.startswith("["):
                section = line.strip("[]")
            elif line and section == name:
                found.append(line)
    return found


def install(name, site):
    platforms = ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "linux_x86_64"]
    platforms += [f"manylinux_2_{minor}_x86_64" for minor in range(5, GLIBC_MINOR + 1)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:",
               "--implementation", "cp", "--python-version", PYTHON, "--target", site]
    for platform in reversed(platforms):
        command += ["--platform", platform]
    quiet = dict(os.environ, PIP_ROOT_USER_ACTION="ignore", PIP_DISABLE_PIP_VERSION_CHECK="1")
    subprocess.run(command + versions(name), check=True, env=quiet)


def files(site):
    return sorted(os.path.relpath(os.path.join(d, f), site) for d, _, names in os.walk(site) for f in names)


def add_cublas12(site):
    out = os.path.join(site, "nv12")
    os.makedirs(out, exist_ok=True)
    cc = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC"]
    subprocess.run(cc + [f"-Wl,-soname,libcublas.so.12,--version-script,{HERE}/cublas12.map", f"{HERE}/cublas12.c",
                         "-ldl", "-o", f"{out}/libcublas.so.12"], check=True)
    # TurboMind is linked to libcublasLt.so.12 but calls none of its functions, so an empty library is enough.
    subprocess.run(cc + ["-Wl,-soname,libcublasLt.so.12", "-x", "c", "-", "-o", f"{out}/libcublasLt.so.12"],
                   input=b"void cublasLt12_stub(void) {}\n", check=True)


def trim(name, site):
    rule = RULES[name]
    for source, target in rule.get("move", {}).items():
        os.makedirs(os.path.dirname(os.path.join(site, target)), exist_ok=True)
        os.rename(os.path.join(site, source), os.path.join(site, target))
    unused = set(rule["drop"])
    for file in files(site):
        hits = [p for p in rule["drop"] if fnmatch.fnmatchcase(file, p)]
        unused -= set(hits)
        if hits:
            os.remove(os.path.join(site, file))
    if unused - {"bin/*", "*.pyi"}:
        print("pack-engine: nothing to drop for", *sorted(unused), file=sys.stderr)
    for pattern, options in rule.get("slim", {}).items():
        for path in glob.glob(os.path.join(site, pattern)):
            print(slim(path, ARCH, **options), file=sys.stderr)
    if rule.get("strip"):
        libraries = [f for f in files(site) if (f.endswith(".so") or ".so." in f) and not f.startswith(name + "/")]
        subprocess.run(["strip", "-g", *libraries], cwd=site, check=True)
    if rule.get("cublas12"):
        add_cublas12(site)
    if rule.get("stubs"):
        shutil.copytree(os.path.join(HERE, "stubs"), site, dirs_exist_ok=True)


def plain(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def compress(site, target):
    # Sorts files by extension, so that similar files follow each other. The compressor's window (192 MiB) covers
    # many of them.
    order = sorted(files(site), key=lambda f: (os.path.splitext(f)[1], f))
    filters = [dict(id=lzma.FILTER_LZMA2, preset=6, dict_size=192 << 20)]
    with lzma.open(target, "wb", filters=filters) as xz, tarfile.open(fileobj=xz, mode="w|") as tar:
        for file in order:
            tar.add(os.path.join(site, file), file, recursive=False, filter=plain)


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def main(words):
    if len(words) != 2 or words[0] not in RULES:
        what = f"NAME \"{words[0]}\" is not one of {', '.join(RULES)}" if len(words) == 2 else "it needs NAME and FOLDER"
        print(f"pack-engine: {what}\nusage: pack-engine NAME FOLDER", file=sys.stderr)
        return 2
    name, out = words
    os.makedirs(out, exist_ok=True)
    target = os.path.join(out, f"{name}.tar.xz")
    try:
        with tempfile.TemporaryDirectory(prefix=f"pack-engine-{name}-") as site:
            install(name, site)
            trim(name, site)
            size = sum(os.path.getsize(os.path.join(site, f)) for f in files(site))
            compress(site, target)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"pack-engine: {name}: {error}", file=sys.stderr)
        return 1
    with open(os.path.join(out, f"{name}.sha256"), "w") as sums:
        print(checksum(target), "", f"{name}.tar.xz", file=sums)
    print(f"{target}: {size / 1e6:.0f} MB, packed {os.path.getsize(target) / 1e6:.1f} MB")
    return 0
