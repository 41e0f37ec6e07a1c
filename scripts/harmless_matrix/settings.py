"""The settings with which the library runs, and other libraries that are preloaded together with it."""
import glob
import os
from dataclasses import dataclass

RECORDS = "%RECORDS%"


@dataclass(frozen=True)
class Setting:
    name: str
    about: str
    variables: dict

    def environment(self, records):
        return {name: value.replace(RECORDS, records) for name, value in self.variables.items()}


# Turns on most of the library's features at the same time. ENABLE_PERFECT_ROUTER is left out, because its purpose is to
# change results.
EVERYTHING = {
    "TLLMPROF_START_STOP": "2-5,8-",
    "TLLMPROF_STEP": "auto",
    "TLLMPROF_NVTX": "1",
    "TLLM_NVTX_DEBUG": "1",
    "TLLM_LLMAPI_ENABLE_NVTX": "1",
    "TLLMPROF_PY_RANGES": "threading:Thread.run,json:loads,subprocess:run,argparse:ArgumentParser.parse_args",
    "TLLM_PROFILE_RECORD_GC": "1",
    "TLLMPROF_GIL": "1",
    "TLLM_TORCH_PROFILE_TRACE": f"{RECORDS}/torch.json",
    "TLLMPROF_TRACE": f"{RECORDS}/%p.tllmprof",
    "TLLMPROF_KERNELS": "20",
    "TLLMPROF_DRAIN": "1",
    "TLLMPROF_STACKS": "1000",
    "TLLMPROF_CONTROL": f"{RECORDS}/control",
    "TLLMPROF_FLIGHT": "1",
    "TLLMPROF_WHEN": "iteration > 3*p50",
    "TLLMPROF_LOG": "debug",
}
SETTINGS = [
    Setting("bare", "preloaded, and nothing is asked for", {}),
    Setting("everything", "whatever can be switched on at once without changing results: two windows, steps by `auto`, "
            "the record, kernels, NVTX ranges, CUDA calls as ranges, Python functions, collections, the GIL, sampled "
            "stacks, torch's profiler, the control socket, a trigger, the flight recorder, log level `debug`", EVERYTHING),
    Setting("native", "the same, but steps are calls of a native function, so each look-up of a symbol is thought about",
            {**EVERYTHING, "TLLMPROF_STEP": "sym:^(qsort|cudaGraphLaunch|ZSTD_compress.*)$"}),
    Setting("bad value", "a value that does not parse: one line, and the library stays out of the way",
            {"TLLMPROF_START_STOP": "one-two"}),
]
USUAL = ["bare", "everything"]


@dataclass(frozen=True)
class Preload:
    name: str
    package: str  # the Debian package that contains it
    pattern: str
    about: str
    variables: tuple = ()
    # The beginning of lines that this preloaded library writes to standard error. These lines are not compared, because
    # timing decides which processes write them.
    says: str = ""


LIB = "/usr/lib/x86_64-linux-gnu"
PRELOADS = [
    Preload("jemalloc", "libjemalloc2", f"{LIB}/libjemalloc.so.2", "an allocator"),
    Preload("tcmalloc", "libtcmalloc-minimal4", f"{LIB}/libtcmalloc_minimal.so.4", "an allocator"),
    Preload("mimalloc", "libmimalloc2.0", f"{LIB}/libmimalloc.so.2.0", "an allocator"),
    # libfaketime's clock starts at this time and runs. With a stopped clock, timers would wait forever.
    Preload("libfaketime", "libfaketime", f"{LIB}/faketime/libfaketime.so.1", "another clock",
            (("FAKETIME", "@2024-02-29 12:00:00"),)),
    Preload("libeatmydata", "libeatmydata1", f"{LIB}/libeatmydata.so", "no fsync"),
    Preload("libasan", "libasan8", f"{LIB}/libasan.so.8", "AddressSanitizer's allocator and hooks",
            (("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0"),)),
    Preload("libprofiler", "libgoogle-perftools4", f"{LIB}/libprofiler.so.0", "gperftools' CPU profiler, running",
            (("CPUPROFILE", f"{RECORDS}/cpu"), ("CPUPROFILE_FREQUENCY", "50")), says="PROFILE: "),
    # The heap profiler of libtcmalloc is off, because it would count the library's allocations, too.
    Preload("libtcmalloc", "libgoogle-perftools4", f"{LIB}/libtcmalloc.so.4", "an allocator that can profile the heap"),
    Preload("heaptrack", "libheaptrack", "/usr/lib/heaptrack/libheaptrack_preload.so",
            "heaptrack's recorder: allocations, dlopen", (("DUMP_HEAPTRACK_OUTPUT", f"{RECORDS}/heaptrack.$$"),)),
    Preload("electric-fence", "electric-fence", "/usr/lib/libefence.so.0*", "an allocator that guards each block",
            (("EF_DISABLE_BANNER", "1"), ("EF_ALLOW_MALLOC_0", "1"))),
    Preload("snoopy", "snoopy", f"{LIB}/libsnoopy.so*", "logs every exec"),
    Preload("stdbuf", "coreutils", "/usr/libexec/coreutils/libstdbuf.so", "line-buffered output", (("_STDBUF_O", "L"),)),
    Preload("libpcprofile", "libc-devtools", f"{LIB}/libpcprofile.so", "glibc's profiler"),
]


def path_in(pattern, packages):
    """Returns the path of a library that matches the pattern, on this machine or among the unpacked packages. It is
    the path under which a run sees the library."""
    for root in ("", packages or ""):
        found = sorted(path for path in glob.glob(root + pattern) if os.path.isfile(path))
        if found:
            return found[0][len(root):]
    return None
