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
        "windows of iterations: A-B, N, A-, all, and comma lists of them; or steady[:N], N (50) iterations \
         from where their time has settled; or none",
    ),
    variable(
        "TLLM_PROFILE_START_STOP",
        "the same, by TensorRT-LLM's name",
    ),
    variable(
        "TLLM_GPTM_PROFILE_START_STOP",
        "the same, by TensorRT-LLM's old name",
    ),
    variable(
        "TLLMPROF_WHERE",
        "only iterations whose batches fulfil it count for a window: phase=decode and requests>=64",
    ),
    variable(
        "TLLMPROF_STEP",
        "what an iteration is: CALL, CALL/N, sym:, py:, nvtx: or auto (default)",
    ),
    variable(
        "TLLMPROF_WHERE_SPLIT",
        "close a window by TLLMPROF_WHERE while it does not hold, at most once in 100 ms",
    ),
    variable(
        "TLLMPROF_BATCH",
        "where a function's arguments hold the batch: MODULE:QUALNAME=requests:FORMULA,tokens:FORMULA,decode_tokens:FORMULA",
    ),
    variable(
        "TLLMPROF_WARMUP",
        "iterations not counted: a number, or capture; default 0, and capture with auto",
    ),
    variable(
        "TLLMPROF_RANKS",
        "ranks that open windows: 0,2-3; default all",
    ),
    variable(
        "TLLMPROF_RANK",
        "the rank of this process, before what launchers set",
    ),
    variable(
        "TLLMPROF_DRAIN",
        "make the device idle before the profiler is stopped; default 1",
    ),
    variable(
        "TLLMPROF_NVTX",
        "NVTX ranges for windows and iterations; default 1",
    ),
    variable(
        "TLLMPROF_NVTX_NAME",
        "name of an iteration's range; default \"iteration {n}\"",
    ),
    variable(
        "TLLM_NVTX_DEBUG",
        "NVTX ranges for CUDA calls and torch modules",
    ),
    variable(
        "TLLM_LLMAPI_ENABLE_NVTX",
        "NVTX ranges on the engine's Python API",
    ),
    variable(
        "TLLMPROF_PY_RANGES",
        "Python functions to mark: module:Class.method,…",
    ),
    variable(
        "TLLM_PROFILE_RECORD_GC",
        "NVTX ranges for Python's garbage collections",
    ),
    variable(
        "TLLMPROF_GIL",
        "NVTX ranges for waiting for and holding the GIL",
    ),
    variable(
        "TLLMPROF_GIL_MIN_US",
        "shortest GIL range that the record keeps, in microseconds",
    ),
    variable(
        "TLLMPROF_STACKS",
        "sample the stacks of the threads that make steps inside windows: 1 (200 Hz) or 2 to 1000 Hz",
    ),
    variable(
        "TLLMPROF_NATIVE_STACKS",
        "sample native stacks, too, where the kernel permits it",
    ),
    variable(
        "TLLM_TORCH_PROFILE_TRACE",
        "where the PyTorch profiler writes its trace of the windows",
    ),
    variable(
        "TLLMPROF_PERFECT_ROUTER",
        "balanced MoE routing: 1, 0 or window",
    ),
    variable("ENABLE_PERFECT_ROUTER", "the same, by TensorRT-LLM's name"),
    variable(
        "TLLMPROF_TRACE",
        "where the built-in recorder writes: %p, %r, %h, %q{NAME}, %%",
    ),
    variable(
        "TLLMPROF_TRACE_MAX",
        "largest size of the record, in bytes or with K, M or G; default 1G",
    ),
    variable(
        "TLLMPROF_KERNELS",
        "record GPU kernels, by CUPTI, in the first 20 (or that many) iterations of each window",
    ),
    variable(
        "TLLMPROF_ARGS",
        "the program's arguments in the record: masked (default: secrets are ***) or full",
    ),
    variable(
        "TLLMPROF_RUN",
        "identifier of the run, which its records have in common; default the launcher's job",
    ),
    variable(
        "TLLMPROF_CONTROL",
        "listen to tllmprof ps, capture and stop: 1, the folder of the socket, or 0 (default; 1 with tllmprof run)",
    ),
    variable(
        "TLLMPROF_LOG",
        "log level on standard error: off, error, warn, info (default) or debug",
    ),
];
