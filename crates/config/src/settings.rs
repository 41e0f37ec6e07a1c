//! The table of settings. Each row describes a setting: its variables, its option, and the help texts.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use crate::batch::BatchFunction;
use crate::condition::Condition;
use crate::control::Control;
use crate::environment::{Environment, Flag, FlagOrAuto, settings, settled};
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
/// Minimum value of `TLLMPROF_KEEP`, in bytes: enough for the first chunks of some threads and for one window.
const LEAST_KEPT: u64 = 1 << 20;
/// Number of iterations that are kept with `TLLMPROF_FLIGHT=1`.
const FLIGHT_STEPS: u64 = 100;
/// Number of recent iterations that are kept by default for a window with automatic length.
const LATEST_STEPS: u64 = 64;
const MOST_FLIGHT_STEPS: u64 = 100_000;

settings! {
table(env) {
    windows: Windows = ["TLLMPROF_START_STOP", "TLLM_PROFILE_START_STOP", "TLLM_GPTM_PROFILE_START_STOP"],
        Windows::parse, default "none" => "--window" {
        help: "Windows of iterations: A-B, N, A-, all, comma lists of these, steady[:N], auto, or none",
        more: "Iterations count from 0, and both ends are in the window. steady[:N] is N iterations (50 if not given) once \
               their time is steady; auto is then 50 iterations and 2 s without kernels (3 to 8 where one takes over 0.3 s), \
               and some with kernels where they are recorded",
        value: Named("W"), heading: Iterations,
        without: "auto", example: "2-3",
    }
    condition: Option<Condition> = ["TLLMPROF_WHERE"], Condition::parse,
        settle env.checked(variable::condition, knows_batches(condition, &rule(step.as_ref(), batch.as_ref())))? => "--where" {
        help: "Count only iterations whose batch satisfies EXPR, such as 'phase=decode and requests>=64'",
        more: "EXPR has comparisons of requests, tokens, prefill_tokens, decode_tokens and phase (prefill, decode, mixed, \
               idle, draft), joined by and, or, not and parentheses",
        value: Named("EXPR"), heading: Iterations, example: "phase=decode",
    }
    where_split: bool = ["TLLMPROF_WHERE_SPLIT"], Flag, default "0",
        settle env.checked(variable::where_split, splits(where_split, condition.as_ref()))? => "--where-split" {
        help: "With --where: close the window during iterations that do not count, at most once in 100 ms",
        heading: Iterations, example: "1",
    }
    when: Option<Trigger> = ["TLLMPROF_WHEN"], Condition::parse_with_times,
        settle env.checked(variable::when, knows_batches(when, &rule(step.as_ref(), batch.as_ref())))?
            .map(|condition| Trigger {
                condition,
                at_most: when_at_most.unwrap_or_default(),
                steps: when_steps.unwrap_or(trigger::STEPS),
            }) => "--when" {
        help: "Open a window after an iteration for which EXPR holds, such as 'iteration > 2*p50 or gc > 10ms'",
        more: "EXPR has comparisons of iteration, gc, gil and wait with times, and those of --where, joined by and, or, not \
               and parentheses. p50 is the median of iterations with alike batches",
        value: Named("EXPR"), heading: Iterations, example: "gc > 1ms",
    }
    when_at_most: Option<AtMost> = ["TLLMPROF_WHEN_AT_MOST"], AtMost::parse,
        settle env.checked(variable::when_at_most, of_trigger(when_at_most, when.as_ref()))? => "--at-most" {
        help: "With --when: open at most N windows in the time of --per",
        value: Named("N"), values: "N/TIME", heading: Iterations,
        default: "10/1h", without: "10", example: "1/1h",
    }
    per => "--per" {
        help: "With --when: the time in which --at-most windows open, such as 30m",
        value: Named("TIME"), heading: Iterations, without: "1h", example: "2h",
    }
    when_steps: Option<u64> = ["TLLMPROF_WHEN_STEPS"], trigger::parse_steps,
        settle env.checked(variable::when_steps, of_trigger(when_steps, when.as_ref()))? => "--when-steps" {
        help: "With --when: how many iterations such a window has",
        value: Named("N"), heading: Iterations, default: "50", example: "7",
    }
    flight: Option<u64> = ["TLLMPROF_FLIGHT"], parse_flight, default "0" => "--flight" {
        help: "Keep the latest 100 or STEPS iterations outside windows in the record at all times",
        more: "They are for a window by --when or one that is asked for with its past, and for when the process dies",
        value: Optional("STEPS"), heading: Iterations, example: "250",
    }
    batch: Option<BatchFunction> = ["TLLMPROF_BATCH"], BatchFunction::parse => "--batch" {
        help: "For an engine that is not known: the Python function whose arguments hold the batch, and formulas for what is in it",
        more: "The formulas are for requests and two of tokens, prefill_tokens and decode_tokens, such as \
               'my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new'. Without --step, \
               each call of the function is an iteration",
        value: Named("FUNCTION=FORMULAS"), heading: Iterations,
        example: "m:f=requests:1,tokens:1,decode_tokens:1",
    }
    step: Step = ["TLLMPROF_STEP"], Step::parse, settle rule(step.as_ref(), batch.as_ref()) => "--step" {
        help: "What an iteration is: auto, auto:inner, a CUDA call, sym:REGEX, py:MODULE:QUALNAME, or nvtx:REGEX",
        more: "cudaGraphLaunch counts each call, cudaGraphLaunch/4 every fourth; auto:inner counts the equal parts of what auto counts",
        value: Named("RULE"), heading: Iterations, default: "auto", example: "py:m:f",
        attach: Some("What an iteration is: auto, a CUDA call, sym:REGEX, or py:MODULE:QUALNAME"),
    }
    warmup: Warmup = ["TLLMPROF_WARMUP"], Warmup::parse, settle warmup.unwrap_or(match &step {
            step if step.is_learnt() => Warmup::Capture,
            _ => Warmup::Iterations(0),
        }) => "--warmup" {
        help: "Iterations to skip before counting starts: a number, or capture to restart the count after each stream capture",
        value: Named("W"), heading: Iterations,
        otherwise: "capture with --step auto, else 0", example: "3",
    }
    ranks: Option<Ranks> = ["TLLMPROF_RANKS"], Ranks::parse => "--ranks" {
        help: "Ranks that open windows, such as 0,2-3",
        value: Named("LIST"), heading: Iterations, otherwise: "all", example: "0,2-3",
    }
    // Parsed here only to report mistakes. The library reads the variable again when the first iteration opens.
    rank: Option<u64> = ["TLLMPROF_RANK"], parse_rank => {
        help: "The rank of this process; takes precedence over the launcher's variables",
        value: Named("N"), heading: Iterations, example: "3",
    }

    light => "--light" {
        help: "Without --window: record only times and calls, of 50 iterations, and add no measuring",
        more: "Else --stacks, --native-stacks, --gc, --gil and --kernels are auto",
        heading: Contents,
    }
    record_gc: bool = ["TLLM_PROFILE_RECORD_GC"], FlagOrAuto, default "0", settle record_gc || names(when.as_ref(), "gc") => "--gc" {
        help: "Record Python's garbage collections, also as NVTX ranges",
        values: "0, 1 or auto", heading: Contents, example: "1", attach: Some("Record Python's garbage collections"),
    }
    gil: bool = ["TLLMPROF_GIL"], FlagOrAuto, default "0", settle gil || names(when.as_ref(), "gil") => "--gil" {
        help: "Record waits for Python's GIL and holds of it, also as NVTX ranges",
        values: "0, 1 or auto", heading: Contents, example: "1", attach: Some("Record waits for Python's GIL and holds of it"),
    }
    gil_min_us: u64 = ["TLLMPROF_GIL_MIN_US"], parse_microseconds, default "100" => {
        help: "Shortest wait for the GIL, or hold of it, that the record keeps, in microseconds; shorter ones are counted",
        value: Named("N"), heading: Contents, example: "5",
    }
    stacks: Option<u64> = ["TLLMPROF_STACKS"], stacks::parse,
        settle stacks.unwrap_or((native_stacks == Some(true)).then_some(stacks::STACKS_RATE)) => "--stacks" {
        help: "Sample the Python stacks of the threads that make steps, inside windows, 200 or HZ times a second (up to 1000)",
        more: "auto is 1000 where there are stacks, and no warning elsewhere",
        value: Optional("HZ"), values: "0, 1, HZ or auto", heading: Contents, default: "0", example: "50",
        attach: Some(""),
    }
    native_stacks: bool = ["TLLMPROF_NATIVE_STACKS"], FlagOrAuto, default "0" => "--native-stacks" {
        help: "Sample native stacks, too, where the kernel permits it (perf_event_paranoid)",
        values: "0, 1 or auto", heading: Contents, example: "1",
    }
    gpu_times: GpuTimes = ["TLLMPROF_GPU_TIMES"], GpuTimes::parse, default "auto" => "--gpu-times" {
        help: "GPU times by CUDA events: auto, all (in each iteration), or off",
        more: "auto takes them in each iteration where that costs at most 0.25 % of its time, else in one block of eight in \
               so many",
        value: Named("WHEN"), heading: Contents, example: "all",
    }
    py_ranges: Vec<PyFunction> = ["TLLMPROF_PY_RANGES"], PyFunction::parse_list,
        settle with_scopes(py_ranges.unwrap_or_default(), scopes.as_deref()) => {
        help: "Further Python functions that are recorded, also as NVTX ranges: MODULE:QUALNAME or several with commas",
        value: Named("FUNCTIONS"), heading: Contents, example: "m:C.f",
    }
    layers: bool = ["TLLMPROF_LAYERS"], Flag, settle layers.unwrap_or(scopes.is_some()) => "--layers" {
        help: "Report GPU time by torch module, NVTX range and marked function, in CUDA graphs, too",
        more: "Records kernels as --kernels does, unless TLLMPROF_KERNELS is set",
        heading: Contents, default: "0", example: "1",
    }
    scopes: Vec<NativeFunctions> = ["TLLMPROF_SCOPES"], ScopeRule::parse_list,
        settle scopes.into_iter().flatten().filter_map(ScopeRule::native).collect() => "--scopes" {
        help: "Let each call of these functions be a scope of --layers, which this implies: RULE or several with commas",
        more: "A RULE is sym:REGEX[@LIBREGEX] or py:MODULE:QUALNAME",
        value: Named("RULES"), heading: Contents, example: "sym:^f$",
    }
    kernels: Option<Kernels> = ["TLLMPROF_KERNELS"], Kernels::parse,
        // Layers need kernels, so they enable them by default. If the variable is set to 0, there are no kernels
        // nevertheless.
        settle match kernels {
            None | Some(Some(Kernels::Auto)) if layers => Some(Kernels::FIRST),
            kernels => kernels.flatten(),
        } => "--kernels" {
        help: "Record each GPU kernel, by CUPTI, in the first 20 or STEPS iterations of each window",
        more: "STEPS@TIME, such as 20@60s: in so many iterations each TIME instead, for as long as the program runs. A window \
               auto has them at its end. auto: 20 iterations or 0.3 s there, where no other profiler has CUPTI",
        value: Optional("STEPS[@TIME]"), values: "0, 1, STEPS[@TIME] or auto", heading: Contents, default: "0", example: "7",
    }
    llmapi: bool = ["TLLM_LLMAPI_ENABLE_NVTX"], Flag, default "0" => "--llmapi" {
        help: "Record the API, scheduler and sampler functions of known Python engines, also as NVTX ranges",
        heading: Contents, example: "1",
    }
    nvtx: bool = ["TLLMPROF_NVTX"], Flag, default "1" => "--no-nvtx" {
        help: "Emit NVTX ranges for iterations and windows, and record the program's own",
        off: "Emit no NVTX ranges for iterations and windows",
        heading: Contents, example: "0",
    }
    nvtx_name: NvtxName = ["TLLMPROF_NVTX_NAME"], NvtxName::parse, default "iteration {n}" => {
        help: "Name of an iteration's NVTX range, in which {n} is its number",
        value: Named("NAME"), heading: Contents, example: "step {n}",
    }
    nvtx_debug: bool = ["TLLM_NVTX_DEBUG"], Flag, default "0" => "--nvtx-debug" {
        help: "Emit NVTX ranges for intercepted CUDA calls and for torch modules",
        heading: Contents, example: "1",
    }
    gpu_metrics => "--gpu-metrics" {
        help: "Sample the GPUs ten times a second, in another process, into a record beside the program's",
        more: "It has SMs, tensor cores, memory bandwidth, PCIe, NVLink, power, and clocks",
        heading: Contents,
    }
    torch_trace: Option<TracePath> = ["TLLM_TORCH_PROFILE_TRACE"], TracePath::parse => "--torch-trace" {
        help: "Run the PyTorch profiler in the windows and write its traces to PATH",
        more: "-rank-R and -window-K go before the extension of PATH",
        value: Named("PATH"), heading: Contents, example: "trace.json",
    }

    trace: Option<PathTemplate> = ["TLLMPROF_TRACE"], PathTemplate::parse,
        settle trace.or_else(|| on_demand(env, control.as_ref(), when.is_some() || flight.is_some() || samples(kernels))) => "--trace" {
        help: "Write the record to PATH",
        more: "%p is the process, %r the rank, %h the host, %q{NAME} a variable, and %% a percent sign",
        value: Named("PATH"), heading: Record,
        otherwise: "no record, but tllmprof run makes one",
        without: "tllmprof-RUN/tllmprof-%h-%r-%p.tllmprof with run, no record under nsys or ncu", example: "x-%p",
        attach: Some("Write the record here [default: tllmprof-HOST-RANK-PID.tllmprof in the folder of the process]"),
    }
    ring: Option<PathTemplate> = ["TLLMPROF_RING"], PathTemplate::parse => "--ring" {
        help: "Write the ring of the latest steps and collectives, which tllmprof hang reads, to PATH",
        more: "PATH is as in --trace; %r is 0, as the rank is not known yet",
        value: Named("PATH"), heading: Record,
        otherwise: "no ring, but tllmprof run makes one",
        without: "tllmprof-RUN/tllmprof-%h-%p.ring with run, where it makes that folder", example: "x-%p.ring",
    }
    no_trace => "--no-trace" {
        help: "Write no record",
        conflicts: &["--trace", "--keep"], heading: Record,
    }
    keep: Option<u64> = ["TLLMPROF_KEEP"], parse_keep => "--keep" {
        help: "Let the record of each process take SIZE at most, such as 500M or 2G: its oldest windows make room for later ones",
        value: Named("SIZE"), heading: Record,
        otherwise: "none of them go, and a record ends at TLLMPROF_TRACE_MAX",
        without: "none of them go, and a record ends at 1G", example: "2G",
    }
    trace_max: u64 = ["TLLMPROF_TRACE_MAX"], number::parse_bytes,
        settle trace_max.into_iter().chain(keep).min().unwrap_or(TRACE_MAX) => {
        help: "Largest size of the record, in bytes or with K, M or G; what does not fit is only counted",
        value: Named("SIZE"), heading: Record, default: "1G", example: "500M",
    }
    run: Option<RunId> = ["TLLMPROF_RUN"], RunId::parse, settle run.or_else(|| RunId::from_job(env.get)) => "--run" {
        help: "Identifier of the run, which all of its records have: letters, digits, ., _ and -",
        value: Named("ID"), heading: Record,
        otherwise: "the launcher's job", without: "the launcher's job, else a new one", example: "mine",
    }
    full_args: bool = ["TLLMPROF_ARGS"], parse_args, default "masked" => "--args" {
        help: "The program's arguments in the record: masked (secrets are ***) or full",
        value: Named("WHICH"), heading: Record, example: "full",
    }

    log: Level = ["TLLMPROF_LOG"], Level::parse, default "info" => "--log" {
        help: "Log level of the library: off, error, warn, info or debug",
        value: Named("LEVEL"), heading: Process, example: "debug",
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
    drain: bool = ["TLLMPROF_DRAIN"], Flag, default "1" => "--no-drain" {
        help: "Wait for the device to be idle before the profiler stops, unless a stream is being captured",
        off: "Do not wait for the device to be idle before the profiler stops",
        heading: Process, example: "0",
    }
    perfect_router: PerfectRouter = ["TLLMPROF_PERFECT_ROUTER", "ENABLE_PERFECT_ROUTER"], PerfectRouter::parse, default "0" => "--perfect-router" {
        help: "Balance the load of a mixture of experts: the output of the program is WRONG, its speed is that of even loads",
        more: "WHEN is window for windows only, and then the load of the learned routers is counted outside them",
        value: Optional("WHEN"), heading: Process, example: "window",
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
    /// The name of the variable that set the windows. `None` if none did.
    windows_from: Option<&'static str> = env.find(variable::windows, false).map(|(name, _)| name);
    /// True if the user set the warm-up, so that it is not just the default for the step rule.
    warmup_given: bool = env.has(variable::warmup);
    /// Number of recent iterations outside windows that the record keeps. For a window with automatic length, they
    /// are kept until the window opens.
    latest: Option<u64> = flight.or((windows.is_auto() && env.has(variable::trace)).then_some(LATEST_STEPS));
    /// Names of the variables whose value is `auto`. No warning is logged if they have no effect.
    auto: Vec<&'static str> = env.auto_ones([
        variable::stacks, variable::native_stacks, variable::record_gc, variable::gil, variable::kernels,
    ]);
    /// True if the user did not ask for a record, but a window may need one. The record then begins with the first
    /// window that is requested while the process runs.
    trace_on_demand: bool = trace.is_some() && !env.has(variable::trace) && flight.is_none();
}
}

/// Returns the names of the variables that the library reads. The variables in which launchers pass the rank are not
/// included; they are in [`crate::RANK_VARIABLES`].
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    NAMES.split_ascii_whitespace()
}

/// Returns each variable that an option of `run` sets, with that option.
pub fn options() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPTIONS
        .split_ascii_whitespace()
        .filter_map(|row| row.split_once('='))
        .filter(|(variable, option)| !variable.is_empty() && !option.is_empty())
}

/// Returns the names of the variables that are not read by the library itself, but by the command, by the project's
/// scripts, or by child processes of the library.
pub fn other_names() -> impl Iterator<Item = &'static str> {
    OTHER_NAMES.split_ascii_whitespace()
}

impl Settings {
    /// Returns true if the value of this variable is `auto`.
    #[must_use]
    pub fn is_auto(&self, variable: &str) -> bool {
        self.auto.contains(&variable)
    }

    /// Returns true if any window can open: a planned window, one that is requested while the process runs, or one
    /// that opens by itself.
    #[must_use]
    pub fn may_open_windows(&self) -> bool {
        self.may_open_unplanned_windows() || !self.windows.is_empty()
    }

    /// Returns true if a window can open that was not planned: one that is requested while the process runs, or one
    /// that opens by itself.
    #[must_use]
    pub fn may_open_unplanned_windows(&self) -> bool {
        self.when.is_some() || samples(self.kernels) || self.control.is_on()
    }

    /// Reads the settings from an environment.
    ///
    /// # Errors
    /// Returns an error for the first value that does not parse.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadValue> {
        Self::read(&Environment { get: &get })
    }
}

/// Returns the step rule. If there is none, the step is the function that gets the batch; if there is none either,
/// `auto`.
fn rule(step: Option<&Step>, batch: Option<&BatchFunction>) -> Step {
    let of_batch = |batch: &BatchFunction| Step::Python {
        function: batch.function.clone(),
        every: 1,
    };
    let step = step.cloned().or_else(|| batch.map(of_batch));
    step.unwrap_or(Step::Auto)
}

/// Returns the condition. Returns a problem if it depends on facts about the batch, and these are still unknown when
/// a step of this rule begins.
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
            "TLLMPROF_WHERE=EXPR as well",
        )),
        _ => Ok(where_split),
    }
}

fn of_trigger<T>(given: Option<T>, when: Option<&Trigger>) -> Result<Option<T>, Problem> {
    match when {
        None if given.is_some() => Err(Problem::new(
            "there is no condition that could open a window",
            "TLLMPROF_WHEN=EXPR as well",
        )),
        _ => Ok(given),
    }
}

/// Returns true if the condition that opens windows uses this name, so that the corresponding time has to be
/// recorded.
fn names(when: Option<&Trigger>, name: &str) -> bool {
    when.is_some_and(|when| when.condition.names(name))
}

/// Returns true if kernels are sampled in windows that open by themselves.
fn samples(kernels: Option<Kernels>) -> bool {
    kernels.and_then(Kernels::samples).is_some()
}

/// Returns the functions together with the Python functions of the scope rules, without duplicates.
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

/// Returns the path of the record for a process whose user has not named one. There is a record only if something can
/// open a window by itself (`asks` is true), or if the process listens for requests. A variable with an empty value
/// means that the user wants no record.
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
