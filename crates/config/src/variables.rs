//! Every variable that is read, for help texts, `doctor` and tests.

/// One variable and what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
}

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning }
}

/// Names of the windows, in the order in which they win.
pub const WINDOW_VARIABLES: [&str; 3] = [
    "TLLMPROF_START_STOP",
    "TLLM_PROFILE_START_STOP",
    "TLLM_GPTM_PROFILE_START_STOP",
];

/// Names of the perfect router, in the order in which they win.
pub const ROUTER_VARIABLES: [&str; 2] = ["TLLMPROF_PERFECT_ROUTER", "ENABLE_PERFECT_ROUTER"];

/// Every variable that [`crate::Settings::from_env`] reads. Launchers' names for the rank are in
/// [`crate::RANK_VARIABLES`].
pub const VARIABLES: &[Variable] = &[
    variable(
        "TLLMPROF_START_STOP",
        "windows of iterations: A-B, N, A-, all, and comma lists of these, both ends inclusive, counted from 0; \
         steady[:N]: N iterations (default 50) once their time is steady; none",
    ),
    variable(
        "TLLM_PROFILE_START_STOP",
        "the same, by TensorRT-LLM's name; TLLMPROF_START_STOP takes precedence",
    ),
    variable(
        "TLLM_GPTM_PROFILE_START_STOP",
        "the same, by TensorRT-LLM's old name",
    ),
    variable(
        "TLLMPROF_WHERE",
        "only iterations whose batch satisfies this condition count for a window: phase=decode and requests>=64",
    ),
    variable(
        "TLLMPROF_STEP",
        "what an iteration is: CALL, CALL/N, sym:, py:, nvtx: or auto; default auto",
    ),
    variable(
        "TLLMPROF_WHERE_SPLIT",
        "close the window while TLLMPROF_WHERE does not hold, at most once in 100 ms",
    ),
    variable(
        "TLLMPROF_WHEN",
        "open a window behind an iteration for which this condition holds: iteration > 2*p50 or gc > 10ms",
    ),
    variable(
        "TLLMPROF_WHEN_AT_MOST",
        "how many windows TLLMPROF_WHEN opens at most: N/TIME; default 10/1h",
    ),
    variable(
        "TLLMPROF_WHEN_STEPS",
        "how many iterations a window by TLLMPROF_WHEN has; default 50",
    ),
    variable(
        "TLLMPROF_FLIGHT",
        "1 or a number: keep the latest 100 or so many iterations outside windows in the record; default 0",
    ),
    variable(
        "TLLMPROF_BATCH",
        "where the arguments of a Python function hold the batch: \
         MODULE:QUALNAME=requests:FORMULA,tokens:FORMULA,decode_tokens:FORMULA",
    ),
    variable(
        "TLLMPROF_WARMUP",
        "iterations to skip before counting starts: a number, or capture to restart the count after each stream \
         capture; default capture with auto, else 0",
    ),
    variable(
        "TLLMPROF_RANKS",
        "ranks that open windows, such as 0,2-3; default all",
    ),
    variable(
        "TLLMPROF_RANK",
        "the rank of this process; takes precedence over the launcher's variables",
    ),
    variable(
        "TLLMPROF_DRAIN",
        "1: wait for the device to be idle before the profiler stops, unless a stream is being captured; default 1",
    ),
    variable(
        "TLLMPROF_NVTX",
        "1: NVTX ranges for windows and iterations; 0: none, and the program's own ranges are not recorded; default 1",
    ),
    variable(
        "TLLMPROF_NVTX_NAME",
        "name of an iteration's NVTX range; default \"iteration {n}\"",
    ),
    variable(
        "TLLM_NVTX_DEBUG",
        "1: NVTX ranges for intercepted CUDA calls and for torch modules; default 0",
    ),
    variable(
        "TLLM_LLMAPI_ENABLE_NVTX",
        "1: ranges for the API, scheduler and sampler functions of known Python engines; default 0",
    ),
    variable(
        "TLLMPROF_PY_RANGES",
        "more Python functions that get ranges: module:Class.method,module:function,…",
    ),
    variable(
        "TLLM_PROFILE_RECORD_GC",
        "1: ranges for Python's garbage collections; default 0",
    ),
    variable(
        "TLLMPROF_GIL",
        "1: ranges for waits for the GIL and holds of it, by thread; default 0",
    ),
    variable(
        "TLLMPROF_GIL_MIN_US",
        "shortest wait for the GIL, or hold of it, that the record keeps, in microseconds; default 100",
    ),
    variable(
        "TLLMPROF_STACKS",
        "samples of the Python stacks of the threads that make steps, inside windows: 1 (200 Hz), or 2 to 1000 Hz; default 0",
    ),
    variable(
        "TLLMPROF_NATIVE_STACKS",
        "1: samples of native stacks, too, where the kernel permits it (perf_event_paranoid); default 0",
    ),
    variable(
        "TLLMPROF_GPU_TIMES",
        "GPU times by CUDA events: auto takes them in each iteration where that costs at most 0.25 % of its time, else in one block of \
         eight in so many; all: in each; off: none; default auto",
    ),
    variable(
        "TLLM_TORCH_PROFILE_TRACE",
        "path of the PyTorch profiler's traces of the windows; -rank-R and -window-K go before its extension",
    ),
    variable(
        "TLLMPROF_PERFECT_ROUTER",
        "1: balanced routing in mixtures of experts, so that the output is WRONG; window: in windows only; default 0",
    ),
    variable(
        "ENABLE_PERFECT_ROUTER",
        "the same, by TensorRT-LLM's name; TLLMPROF_PERFECT_ROUTER takes precedence",
    ),
    variable(
        "TLLMPROF_TRACE",
        "path of the record: %p is the process, %r the rank, %h the host, %q{NAME} a variable, %% a percent sign; \
         default: no record, but tllmprof run makes one",
    ),
    variable(
        "TLLMPROF_TRACE_MAX",
        "largest size of the record, in bytes or with K, M or G; default 1G",
    ),
    variable(
        "TLLMPROF_KEEP",
        "largest size of the record, in bytes or with K, M or G (1M or more), where its oldest windows make room for later ones; \
         default: none of them go, and what does not fit into TLLMPROF_TRACE_MAX is only counted",
    ),
    variable(
        "TLLMPROF_LAYERS",
        "1: the GPU's time by torch module, NVTX range and marked function, in CUDA graphs, too; records kernels as \
         TLLMPROF_KERNELS=1 does, unless that is set; default 0",
    ),
    variable(
        "TLLMPROF_SCOPES",
        "functions each of whose calls is a scope of the layers: sym:REGEX[@LIBREGEX],py:module:function,…; sets TLLMPROF_LAYERS=1, \
         unless that is set",
    ),
    variable(
        "TLLMPROF_KERNELS",
        "1 or a number: record each GPU kernel, by CUPTI, in the first 20 (or that many) iterations of each window; \
         20@60s: in 20 iterations each 60 seconds instead, for as long as the process runs; default 0",
    ),
    variable(
        "TLLMPROF_ARGS",
        "the program's arguments in the record: masked (secrets are ***) or full; default masked",
    ),
    variable(
        "TLLMPROF_RUN",
        "identifier of the run, which all of its records have; default the launcher's job",
    ),
    variable(
        "TLLMPROF_CONTROL",
        "listen to tllmprof ps, capture and stop: 1, the folder of the socket, or 0 (default; 1 with tllmprof run)",
    ),
    variable(
        "TLLMPROF_AFTER_SECCOMP",
        "1: windows open, too, once the program has installed a filter for system calls (seccomp) that allows what they need; \
         default 0: the library makes no system call from then on",
    ),
    variable(
        "TLLMPROF_LOG",
        "log level on standard error: off, error, warn, info or debug; default info",
    ),
];
