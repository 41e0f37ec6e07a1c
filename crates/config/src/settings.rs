//! The table of settings: each row is a variable of the library, and what help texts and pages say about it and its
//! option.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use crate::batch::BatchFunction;
use crate::condition::Condition;
use crate::control::Control;
use crate::environment::{Environment, Flag, settings, settled};
use crate::error::{BadValue, Problem, shown};
use crate::function::PyFunction;
use crate::gpu_times::GpuTimes;
use crate::kernels::Kernels;
use crate::level::Level;
use crate::nvtx_name::NvtxName;
use crate::range::Windows;
use crate::ranks::Ranks;
use crate::router::PerfectRouter;
use crate::run::RunId;
use crate::scope::{NativeFunctions, ScopeRule};
use crate::setting::Heading::{Contents, Iterations, Process, Record};
use crate::setting::Value::{Named, Optional};
use crate::setting::{Reader, Setting};
use crate::step::Step;
use crate::template::PathTemplate;
use crate::torch_trace::TracePath;
use crate::trigger::{self, AtMost, Trigger};
use crate::warmup::Warmup;
use crate::{flag, number, stacks};

const TRACE_MAX: u64 = 1 << 30;
/// What `TLLMPROF_KEEP` may be at least: the first chunks of some threads, and a window.
const LEAST_KEPT: u64 = 1 << 20;
/// Iterations that `TLLMPROF_FLIGHT=1` keeps, and that it may keep.
const FLIGHT_STEPS: u64 = 100;
const MOST_FLIGHT_STEPS: u64 = 100_000;

settings! {
table(env) {
    windows: Windows = ["TLLMPROF_START_STOP", "TLLM_PROFILE_START_STOP", "TLLM_GPTM_PROFILE_START_STOP"],
        Windows::parse, default "none" => {
        help: "Windows of iterations: A-B, N, A-, all, comma lists of these, steady[:N], or none",
        more: "Iterations count from 0, and both ends are in the window. steady[:N] is N iterations (50 if not given) once \
               their time is steady",
        option: "--window", value: Named("W"), takes_dashes: true, heading: Iterations,
        without: "steady", example: "2-3",
    }
    condition: Option<Condition> = ["TLLMPROF_WHERE"], Condition::parse,
        settle env.checked(variable::condition, knows_batches(condition, &rule(step.as_ref(), batch.as_ref())))? => {
        help: "Count only iterations whose batch satisfies EXPR, such as 'phase=decode and requests>=64'",
        more: "EXPR has comparisons of requests, tokens, prefill_tokens, decode_tokens and phase (prefill, decode, mixed, \
               idle, draft), joined by and, or, not and parentheses",
        option: "--where", value: Named("EXPR"), heading: Iterations, example: "phase=decode",
    }
    where_split: bool = ["TLLMPROF_WHERE_SPLIT"], Flag, default "0",
        settle env.checked(variable::where_split, splits(where_split, condition.as_ref()))? => {
        help: "With --where: close the window during iterations that do not count, at most once in 100 ms",
        option: "--where-split", heading: Iterations, example: "1",
    }
    when: Option<Trigger> = ["TLLMPROF_WHEN"], Condition::parse_with_times,
        settle env.checked(variable::when, knows_batches(when, &rule(step.as_ref(), batch.as_ref())))?
            .map(|condition| Trigger {
                condition,
                at_most: when_at_most.unwrap_or_default(),
                steps: when_steps.unwrap_or(trigger::STEPS),
            }) => {
        help: "Open a window after an iteration for which EXPR holds, such as 'iteration > 2*p50 or gc > 10ms'",
        more: "EXPR has comparisons of iteration, gc, gil and wait with times, and those of --where, joined by and, or, not \
               and parentheses. p50 is the median of iterations with alike batches",
        option: "--when", value: Named("EXPR"), heading: Iterations, example: "gc > 1ms",
    }
    when_at_most: Option<AtMost> = ["TLLMPROF_WHEN_AT_MOST"], AtMost::parse,
        settle env.checked(variable::when_at_most, of_trigger(when_at_most, when.as_ref()))? => {
        help: "With --when: open at most N windows in the time of --per",
        option: "--at-most", value: Named("N"), values: "N/TIME", heading: Iterations,
        default: "10/1h", without: "10", example: "1/1h",
    }
    per => {
        help: "With --when: the time in which --at-most windows open, such as 30m",
        option: "--per", value: Named("TIME"), heading: Iterations, without: "1h", example: "2h",
    }
    when_steps: Option<u64> = ["TLLMPROF_WHEN_STEPS"], trigger::parse_steps,
        settle env.checked(variable::when_steps, of_trigger(when_steps, when.as_ref()))? => {
        help: "With --when: how many iterations such a window has",
        option: "--when-steps", value: Named("N"), heading: Iterations, default: "50", example: "7",
    }
    flight: Option<u64> = ["TLLMPROF_FLIGHT"], parse_flight, default "0" => {
        help: "Keep the latest 100 or STEPS iterations outside windows in the record at all times",
        more: "They are for a window by --when or one that is asked for with its past, and for when the process dies",
        option: "--flight", value: Optional("STEPS"), heading: Iterations, example: "250",
    }
    batch: Option<BatchFunction> = ["TLLMPROF_BATCH"], BatchFunction::parse => {
        help: "For an engine that is not known: the Python function whose arguments hold the batch, and formulas for what is in it",
        more: "The formulas are for requests and two of tokens, prefill_tokens and decode_tokens, such as \
               'my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new'. Without --step, \
               each call of the function is an iteration",
        option: "--batch", value: Named("FUNCTION=FORMULAS"), heading: Iterations,
        example: "m:f=requests:1,tokens:1,decode_tokens:1",
    }
    step: Step = ["TLLMPROF_STEP"], Step::parse, settle rule(step.as_ref(), batch.as_ref()) => {
        help: "What an iteration is: auto, a CUDA call, sym:REGEX, py:MODULE:QUALNAME, or nvtx:REGEX",
        more: "cudaGraphLaunch counts each call, cudaGraphLaunch/4 every fourth",
        option: "--step", value: Named("RULE"), heading: Iterations, default: "auto", example: "py:m:f",
        attach: Some("What an iteration is: auto, a CUDA call, sym:REGEX, or py:MODULE:QUALNAME"),
    }
    warmup: Warmup = ["TLLMPROF_WARMUP"], Warmup::parse, settle warmup.unwrap_or(match step {
            Step::Auto => Warmup::Capture,
            _ => Warmup::Iterations(0),
        }) => {
        help: "Iterations to skip before counting starts: a number, or capture to restart the count after each stream capture",
        option: "--warmup", value: Named("W"), heading: Iterations,
        otherwise: "capture with --step auto, else 0", example: "3",
    }
    ranks: Option<Ranks> = ["TLLMPROF_RANKS"], Ranks::parse => {
        help: "Ranks that open windows, such as 0,2-3",
        option: "--ranks", value: Named("LIST"), heading: Iterations, otherwise: "all", example: "0,2-3",
    }
    // Only checked, so that a mistake is reported: it is read again when the first iteration opens.
    rank: Option<u64> = ["TLLMPROF_RANK"], parse_rank => {
        help: "The rank of this process; takes precedence over the launcher's variables",
        value: Named("N"), heading: Iterations, example: "3",
    }

    record_gc: bool = ["TLLM_PROFILE_RECORD_GC"], Flag, default "0", settle record_gc || names(when.as_ref(), "gc") => {
        help: "Record Python's garbage collections, also as NVTX ranges",
        option: "--gc", heading: Contents, example: "1", attach: Some("Record Python's garbage collections"),
    }
    gil: bool = ["TLLMPROF_GIL"], Flag, default "0", settle gil || names(when.as_ref(), "gil") => {
        help: "Record waits for Python's GIL and holds of it, also as NVTX ranges",
        option: "--gil", heading: Contents, example: "1", attach: Some("Record waits for Python's GIL and holds of it"),
    }
    gil_min_us: u64 = ["TLLMPROF_GIL_MIN_US"], parse_microseconds, default "100" => {
        help: "Shortest wait for the GIL, or hold of it, that the record keeps, in microseconds; shorter ones are counted",
        value: Named("N"), heading: Contents, example: "5",
    }
    stacks: Option<u64> = ["TLLMPROF_STACKS"], stacks::parse,
        settle stacks.unwrap_or((native_stacks == Some(true)).then_some(stacks::STACKS_RATE)) => {
        help: "Sample the Python stacks of the threads that make steps, inside windows, 200 or HZ times a second (up to 1000)",
        option: "--stacks", value: Optional("HZ"), heading: Contents, default: "0", example: "50",
        attach: Some(""),
    }
    native_stacks: bool = ["TLLMPROF_NATIVE_STACKS"], Flag, default "0" => {
        help: "Sample native stacks, too, where the kernel permits it (perf_event_paranoid)",
        option: "--native-stacks", heading: Contents, example: "1",
    }
    gpu_times: GpuTimes = ["TLLMPROF_GPU_TIMES"], GpuTimes::parse, default "auto" => {
        help: "GPU times by CUDA events: auto, all (in each iteration), or off",
        more: "auto takes them in each iteration where that costs at most 0.25 % of its time, else in one block of eight in \
               so many",
        option: "--gpu-times", value: Named("WHEN"), heading: Contents, example: "all",
    }
    py_ranges: Vec<PyFunction> = ["TLLMPROF_PY_RANGES"], PyFunction::parse_list,
        settle with_scopes(py_ranges.unwrap_or_default(), scopes.as_deref()) => {
        help: "Further Python functions that are recorded, also as NVTX ranges: MODULE:QUALNAME or several with commas",
        value: Named("FUNCTIONS"), heading: Contents, example: "m:C.f",
    }
    layers: bool = ["TLLMPROF_LAYERS"], Flag, settle layers.unwrap_or(scopes.is_some()) => {
        help: "Report GPU time by torch module, NVTX range and marked function, in CUDA graphs, too",
        more: "Records kernels as --kernels does, unless TLLMPROF_KERNELS is set",
        option: "--layers", heading: Contents, default: "0", example: "1",
    }
    scopes: Vec<NativeFunctions> = ["TLLMPROF_SCOPES"], ScopeRule::parse_list,
        settle scopes.into_iter().flatten().filter_map(ScopeRule::native).collect() => {
        help: "Let each call of these functions be a scope of --layers, which this implies: RULE or several with commas",
        more: "A RULE is sym:REGEX[@LIBREGEX] or py:MODULE:QUALNAME",
        option: "--scopes", value: Named("RULES"), heading: Contents, example: "sym:^f$",
    }
    kernels: Option<Kernels> = ["TLLMPROF_KERNELS"], Kernels::parse,
        // Layers are made of kernels. One that is set to 0 says that there are to be none.
        settle kernels.unwrap_or_else(|| layers.then_some(Kernels::FIRST)) => {
        help: "Record each GPU kernel, by CUPTI, in the first 20 or STEPS iterations of each window",
        more: "STEPS@TIME, such as 20@60s: in so many iterations each TIME instead, for as long as the program runs",
        option: "--kernels", value: Optional("STEPS[@TIME]"), heading: Contents, default: "0", example: "7",
    }
    llmapi: bool = ["TLLM_LLMAPI_ENABLE_NVTX"], Flag, default "0" => {
        help: "Record the API, scheduler and sampler functions of known Python engines, also as NVTX ranges",
        option: "--llmapi", heading: Contents, example: "1",
    }
    nvtx: bool = ["TLLMPROF_NVTX"], Flag, default "1" => {
        help: "Emit NVTX ranges for iterations and windows, and record the program's own",
        off: "Emit no NVTX ranges for iterations and windows",
        option: "--no-nvtx", heading: Contents, example: "0",
    }
    nvtx_name: NvtxName = ["TLLMPROF_NVTX_NAME"], NvtxName::parse, default "iteration {n}" => {
        help: "Name of an iteration's NVTX range, in which {n} is its number",
        value: Named("NAME"), heading: Contents, example: "step {n}",
    }
    nvtx_debug: bool = ["TLLM_NVTX_DEBUG"], Flag, default "0" => {
        help: "Emit NVTX ranges for intercepted CUDA calls and for torch modules",
        option: "--nvtx-debug", heading: Contents, example: "1",
    }
    gpu_metrics => {
        help: "Sample the GPUs ten times a second, in another process, into a record beside the program's",
        more: "It has SMs, tensor cores, memory bandwidth, PCIe, NVLink, power, and clocks",
        option: "--gpu-metrics", heading: Contents,
    }
    torch_trace: Option<TracePath> = ["TLLM_TORCH_PROFILE_TRACE"], TracePath::parse => {
        help: "Run the PyTorch profiler in the windows and write its traces to PATH",
        more: "-rank-R and -window-K go before the extension of PATH",
        option: "--torch-trace", value: Named("PATH"), heading: Contents, example: "trace.json",
    }

    trace: Option<PathTemplate> = ["TLLMPROF_TRACE"], PathTemplate::parse,
        settle trace.or_else(|| on_demand(env, control.as_ref(), when.is_some() || flight.is_some() || samples(kernels))) => {
        help: "Write the record to PATH",
        more: "%p is the process, %r the rank, %h the host, %q{NAME} a variable, and %% a percent sign",
        option: "--trace", value: Named("PATH"), heading: Record,
        otherwise: "no record, but tllmprof run makes one",
        without: "tllmprof-RUN/tllmprof-%h-%r-%p.tllmprof with run, no record under nsys or ncu", example: "x-%p",
        attach: Some("Write the record here [default: tllmprof-HOST-RANK-PID.tllmprof in the folder of the process]"),
    }
    no_trace => {
        help: "Write no record",
        option: "--no-trace", conflicts: &["--trace", "--keep"], heading: Record,
    }
    keep: Option<u64> = ["TLLMPROF_KEEP"], parse_keep => {
        help: "Let the record of each process take SIZE at most, such as 500M or 2G: its oldest windows make room for later ones",
        option: "--keep", value: Named("SIZE"), heading: Record,
        otherwise: "none of them go, and a record ends at TLLMPROF_TRACE_MAX",
        without: "none of them go, and a record ends at 1G", example: "2G",
    }
    trace_max: u64 = ["TLLMPROF_TRACE_MAX"], number::parse_bytes,
        settle trace_max.into_iter().chain(keep).min().unwrap_or(TRACE_MAX) => {
        help: "Largest size of the record, in bytes or with K, M or G; what does not fit is only counted",
        value: Named("SIZE"), heading: Record, default: "1G", example: "500M",
    }
    run: Option<RunId> = ["TLLMPROF_RUN"], RunId::parse, settle run.or_else(|| RunId::of_job(env.get)) => {
        help: "Identifier of the run, which all of its records have: letters, digits, ., _ and -",
        option: "--run", value: Named("ID"), heading: Record,
        otherwise: "the launcher's job", without: "the launcher's job, else a new one", example: "mine",
    }
    full_args: bool = ["TLLMPROF_ARGS"], parse_args, default "masked" => {
        help: "The program's arguments in the record: masked (secrets are ***) or full",
        option: "--args", value: Named("WHICH"), heading: Record, example: "full",
    }

    log: Level = ["TLLMPROF_LOG"], Level::parse, default "info" => {
        help: "Log level of the library: off, error, warn, info or debug",
        option: "--log", value: Named("LEVEL"), heading: Process, example: "debug",
    }
    control: Control = ["TLLMPROF_CONTROL"], Control::parse, default "0" => {
        help: "Listen to tllmprof ps, capture and stop: 1, or the folder of the socket; 1 with tllmprof run",
        value: Optional("FOLDER"), heading: Process, example: "/tmp",
    }
    after_seccomp: bool = ["TLLMPROF_AFTER_SECCOMP"], Flag, default "0" => {
        help: "Open windows also once the program has installed a filter for system calls (seccomp) that allows what they need",
        more: "With 0 the library makes no system call from then on",
        heading: Process, example: "1",
    }
    drain: bool = ["TLLMPROF_DRAIN"], Flag, default "1" => {
        help: "Wait for the device to be idle before the profiler stops, unless a stream is being captured",
        off: "Do not wait for the device to be idle before the profiler stops",
        option: "--no-drain", heading: Process, example: "0",
    }
    perfect_router: PerfectRouter = ["TLLMPROF_PERFECT_ROUTER", "ENABLE_PERFECT_ROUTER"], PerfectRouter::parse, default "0" => {
        help: "Balance the load of a mixture of experts: the output of the program is WRONG, its speed is that of even loads",
        more: "WHEN is window for windows only, and then the load of the learned routers is counted outside them",
        option: "--perfect-router", value: Optional("WHEN"), heading: Process, example: "window",
    }

    library = ["TLLMPROF_LIB"] => {
        help: "Path of libtllmprof.so",
        value: Named("PATH"), otherwise: "beside the command, or in ../lib",
    }
    nsys = ["TLLMPROF_NSYS"] => {
        help: "Path of nsys",
        value: Named("PATH"), otherwise: "PATH, then /opt/nvidia",
    }
    ncu = ["TLLMPROF_NCU"] => {
        help: "Path of ncu",
        value: Named("PATH"), otherwise: "PATH, then /opt/nvidia",
    }
    engine = ["TLLMPROF_ENGINE"] => {
        help: "Path of the example that tllmprof demo runs",
        value: Named("PATH"),
    }
    nvtx_chain = ["TLLMPROF_NVTX_CHAIN"] => {
        help: "The NVTX tool that was set before the library, for the children of a process",
        reader: Reader::Project,
    }
    cache = ["TLLMPROF_CACHE"] => {
        help: "Folder of what the scripts download",
        reader: Reader::Project,
    }
}
derived {
    /// The variable that gave the windows, if one did.
    windows_from: Option<&'static str> = env.find(variable::windows, false).map(|(name, _)| name);
    /// The warm-up was asked for, and is not what the rule has by itself.
    warmup_given: bool = env.has(variable::warmup);
    /// Nobody has asked for that record: it begins with the first window that is asked for while the process runs.
    trace_on_demand: bool = trace.is_some() && !env.has(variable::trace) && flight.is_none();
}
}

/// Names of the variables that the library reads. Launchers' names for the rank are in [`crate::RANK_VARIABLES`].
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    NAMES.split_ascii_whitespace()
}

/// Names of variables that the command, the project's scripts or children of the library read.
pub fn other_names() -> impl Iterator<Item = &'static str> {
    OTHER_NAMES.split_ascii_whitespace()
}

impl Settings {
    /// Whether any window may open: one that is planned, is asked for or opens by itself.
    #[must_use]
    pub fn may_open_windows(&self) -> bool {
        self.may_open_unplanned_windows() || !self.windows.is_empty()
    }

    /// Whether any may open that is asked for while the process runs or opens by itself.
    #[must_use]
    pub fn may_open_unplanned_windows(&self) -> bool {
        self.when.is_some() || samples(self.kernels) || self.control.is_on()
    }

    /// The settings that an environment gives.
    ///
    /// # Errors
    /// The first value that does not parse.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadValue> {
        Self::read(&Environment { get: &get })
    }
}

/// The rule for iterations: without one, the function that has the batch.
fn rule(step: Option<&Step>, batch: Option<&BatchFunction>) -> Step {
    let of_batch = |batch: &BatchFunction| Step::Python {
        function: batch.function.clone(),
        every: 1,
    };
    let step = step.cloned().or_else(|| batch.map(of_batch));
    step.unwrap_or(Step::Auto)
}

/// The condition, if what it names of batches is known where steps by this rule begin.
fn knows_batches(condition: Option<Condition>, step: &Step) -> Result<Option<Condition>, Problem> {
    match step {
        Step::Auto | Step::Python { .. } => Ok(condition),
        other if condition.as_ref().is_some_and(Condition::names_batch) => Err(Problem::new(
            format!(
                "a step by {} begins before its batch is known",
                shown(OsStr::new(&other.to_string()))
            ),
            "a step that is a Python function: TLLMPROF_BATCH without TLLMPROF_STEP, or a known engine's",
        )),
        _ => Ok(condition),
    }
}

fn splits(where_split: bool, condition: Option<&Condition>) -> Result<bool, Problem> {
    match condition {
        None if where_split => Err(Problem::new(
            "there is no condition that a window could be split by",
            "--where EXPR or TLLMPROF_WHERE beside it",
        )),
        _ => Ok(where_split),
    }
}

fn of_trigger<T>(given: Option<T>, when: Option<&Trigger>) -> Result<Option<T>, Problem> {
    match when {
        None if given.is_some() => Err(Problem::new(
            "there is no condition that could open a window",
            "--when EXPR or TLLMPROF_WHEN beside it",
        )),
        _ => Ok(given),
    }
}

/// Whether the condition that opens windows names this, which then has to be recorded.
fn names(when: Option<&Trigger>, name: &str) -> bool {
    when.is_some_and(|when| when.condition.names(name))
}

/// Whether kernels open windows of their own.
fn samples(kernels: Option<Kernels>) -> bool {
    kernels.and_then(Kernels::samples).is_some()
}

/// The functions, and those that are scopes, each once.
fn with_scopes(mut functions: Vec<PyFunction>, rules: Option<&[ScopeRule]>) -> Vec<PyFunction> {
    for rule in rules.unwrap_or_default() {
        if let ScopeRule::Python(function) = rule
            && !functions.contains(function)
        {
            functions.push(function.clone());
        }
    }
    functions
}

/// The record that a process has where none is named: what opens a window by itself (`asks`) has it recorded, and so has
/// who asks for one. A variable that is set to nothing says that there is to be none.
fn on_demand(env: &Environment<'_>, control: Option<&Control>, asks: bool) -> Option<PathTemplate> {
    let control = match control {
        None | Some(Control::Off) if asks => &Control::On,
        control => control?,
    };
    let is_named = env.find(variable::trace, true).is_some();
    PathTemplate::on_demand(control).filter(|_| !is_named)
}

fn parse_rank(text: &str) -> Result<u64, Problem> {
    number::parse(text, "the number of this rank")
}

fn parse_microseconds(text: &str) -> Result<u64, Problem> {
    number::parse(text, "a number of microseconds")
}

fn parse_args(text: &str) -> Result<bool, Problem> {
    match text.trim() {
        "masked" => Ok(false),
        "full" => Ok(true),
        _ => Err(Problem::new("it is neither", "masked or full")),
    }
}

fn parse_keep(text: &str) -> Result<u64, Problem> {
    const WANTED: &str = "a number of bytes from 1M on, such as 500M or 2G";
    match number::parse_bytes(text)? {
        bytes if bytes < LEAST_KEPT => Err(Problem::new("it is less than 1M", WANTED)),
        bytes => Ok(bytes),
    }
}

fn parse_flight(text: &str) -> Result<Option<u64>, Problem> {
    const WANTED: &str = "1, 0, or a number of iterations, at most 100000";
    match flag::recognised(text) {
        Some(is_on) => Ok(is_on.then_some(FLIGHT_STEPS)),
        None => match number::parse(text, WANTED)? {
            0 => Ok(None),
            steps if steps > MOST_FLIGHT_STEPS => {
                Err(Problem::new(format!("{steps} are too many"), WANTED))
            }
            steps => Ok(Some(steps)),
        },
    }
}
