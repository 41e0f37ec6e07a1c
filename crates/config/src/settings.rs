//! The table of settings. Each row describes a setting: its environment variables, its option, and the help texts.

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
use crate::kernels::KernelSelection;
use crate::level::Level;
use crate::nvtx_name::NvtxName;
use crate::range::WindowList;
use crate::ranks::Ranks;
use crate::router::PerfectRouter;
use crate::run::RunId;
use crate::scope::{NativeFunctions, ScopeRule};
use crate::setting::Heading::{Contents, Iterations, Process, Record};
use crate::setting::ValueForm::{Named, Optional};
use crate::setting::{Reader, Setting};
use crate::step::Step;
use crate::template::PathTemplate;
use crate::torch_trace::TracePath;
use crate::trigger::{self, AtMost, Trigger};
use crate::warmup::Warmup;
use crate::{flag, number, stacks};

const TRACE_MAX: u64 = 1 << 30;
/// Minimum value of `TLLMPROF_KEEP` (the record's size limit), in bytes. A record of this size has room for one
/// window and for the first chunks of a few threads.
const LEAST_KEPT: u64 = 1 << 20;
/// Number of latest iterations that the record keeps with `TLLMPROF_FLIGHT=1`.
const FLIGHT_STEPS: u64 = 100;
/// Number of latest iterations that the record keeps by default, until a window with an automatic length opens.
const LATEST_STEPS: u64 = 64;
const MOST_FLIGHT_STEPS: u64 = 100_000;

settings! {
table(env) {
    windows: WindowList = ["TLLMPROF_START_STOP", "TLLM_PROFILE_START_STOP", "TLLM_GPTM_PROFILE_START_STOP"],
        WindowList::parse, default "none" => "--window" {
        help: "Capture these windows of iterations: A-B, N, A-, all, comma-separated lists of these, steady[:N], \
               auto, or none",
        more: "Iterations count from 0, and a window includes both ends. steady[:N] captures N iterations (default: \
               50) once step times have settled. auto also waits until step times have settled: it captures at least \
               50 iterations and 2 s without kernels (3 to 8 iterations if one takes over 0.3 s), then some \
               iterations with kernels if kernels are recorded",
        value: Named("W"), heading: Iterations,
        without: "auto", example: "2-3",
    }
    condition: Option<Condition> = ["TLLMPROF_WHERE"], Condition::parse,
        settle env.checked(variable::condition, knows_batches(condition, &rule(step.as_ref(), batch.as_ref())))? => "--where" {
        help: "Count only iterations whose batch satisfies EXPR, such as 'phase=decode and requests>=64'",
        more: "EXPR compares requests, tokens, prefill_tokens, decode_tokens and phase (prefill, decode, mixed, idle, \
               draft). Comparisons are joined by and, or, not and parentheses",
        value: Named("EXPR"), heading: Iterations, example: "phase=decode",
    }
    where_split: bool = ["TLLMPROF_WHERE_SPLIT"], Flag, default "0",
        settle env.checked(variable::where_split, splits(where_split, condition.as_ref()))? => "--where-split" {
        help: "With --where: close the window during iterations that do not satisfy EXPR, at most once every 100 ms",
        heading: Iterations, example: "1",
    }
    when: Option<Trigger> = ["TLLMPROF_WHEN"], Condition::parse_with_times,
        settle env.checked(variable::when, knows_batches(when, &rule(step.as_ref(), batch.as_ref())))?
            .filter(Condition::names_iterations)
            .map(|condition| Trigger {
                condition,
                at_most: when_at_most.unwrap_or_default(),
                steps: when_steps.unwrap_or(trigger::STEPS),
            }) => "--when" {
        help: "Open a window after an iteration that satisfies EXPR, such as 'iteration > 2*p50 or gc > 10ms'",
        more: "EXPR compares iteration (its duration), gc, gil and wait (times spent in them) with times, and may use \
               the comparisons of --where. Comparisons are joined by and, or, not and parentheses. p50 is the median \
               duration of iterations with similar batches. stuck > TIME opens no window: tllmprof run writes the verdict \
               of tllmprof hang once a process has been stuck for that time",
        value: Named("EXPR"), heading: Iterations, example: "gc > 1ms",
    }
    when_at_most: Option<AtMost> = ["TLLMPROF_WHEN_AT_MOST"], AtMost::parse,
        settle env.checked(variable::when_at_most, of_trigger(when_at_most, when.as_ref()))? => "--at-most" {
        help: "With --when: open at most N windows in the time that --per sets",
        value: Named("N"), values: "N/TIME", heading: Iterations,
        default: "10/1h", without: "10", example: "1/1h",
    }
    per => "--per" {
        help: "With --when: the period in which at most N windows (--at-most) open, such as 30m",
        value: Named("TIME"), heading: Iterations, without: "1h", example: "2h",
    }
    when_steps: Option<u64> = ["TLLMPROF_WHEN_STEPS"], trigger::parse_steps,
        settle env.checked(variable::when_steps, of_trigger(when_steps, when.as_ref()))? => "--when-steps" {
        help: "With --when: number of iterations in each window that opens",
        value: Named("N"), heading: Iterations, default: "50", example: "7",
    }
    flight: Option<u64> = ["TLLMPROF_FLIGHT"], parse_flight, default "0" => "--flight" {
        help: "Always keep the latest 100 or STEPS iterations outside windows in the record",
        more: "They show what happened before a window of --when, before a window of tllmprof capture --past, or \
               before the process died",
        value: Optional("STEPS"), heading: Iterations, example: "250",
    }
    batch: Option<BatchFunction> = ["TLLMPROF_BATCH"], BatchFunction::parse => "--batch" {
        help: "For an engine that tllmprof does not know: the Python function whose arguments contain the batch, and \
               formulas for the contents of the batch",
        more: "Formulas are required for requests and for two of tokens, prefill_tokens and decode_tokens, such as \
               'my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new'. Without \
               --step, each call of the function is an iteration",
        value: Named("FUNCTION=FORMULAS"), heading: Iterations,
        example: "m:f=requests:1,tokens:1,decode_tokens:1",
    }
    step: Step = ["TLLMPROF_STEP"], Step::parse, settle rule(step.as_ref(), batch.as_ref()) => "--step" {
        help: "Rule for what counts as an iteration: auto, auto:inner, a CUDA call, sym:REGEX, py:MODULE:QUALNAME, or \
               nvtx:REGEX",
        more: "cudaGraphLaunch counts each call of that function, and cudaGraphLaunch/4 every fourth call. auto uses \
               the step function of a known engine, otherwise the wait for the GPU that occurs once in each iteration. \
               auto:inner counts the equal parts of the iterations that auto counts",
        value: Named("RULE"), heading: Iterations, default: "auto", example: "py:m:f",
        attach: Some("Rule for what counts as an iteration: auto, a CUDA call, sym:REGEX, or py:MODULE:QUALNAME"),
    }
    warmup: Warmup = ["TLLMPROF_WARMUP"], Warmup::parse, settle warmup.unwrap_or(match &step {
            step if step.is_learnt() => Warmup::Capture,
            _ => Warmup::Iterations(0),
        }) => "--warmup" {
        help: "Number of iterations to skip before counting starts, or capture to restart the count after each stream \
               capture",
        value: Named("W"), heading: Iterations,
        otherwise: "capture with --step auto, otherwise 0", example: "3",
    }
    ranks: Option<Ranks> = ["TLLMPROF_RANKS"], Ranks::parse => "--ranks" {
        help: "Open windows only on these ranks, such as 0,2-3",
        value: Named("LIST"), heading: Iterations, otherwise: "all", example: "0,2-3",
    }
    // This row only makes a malformed value an error. The library reads the variable again each time it looks up the
    // rank.
    rank: Option<u64> = ["TLLMPROF_RANK"], parse_rank => {
        help: "Rank of this process, which takes precedence over the launcher's variables",
        value: Named("N"), heading: Iterations, example: "3",
    }

    light => "--light" {
        help: "Without --window: record only the times and CUDA calls of 50 iterations, and make no other \
               measurements",
        more: "Without --light and --window, --stacks, --native-stacks, --gc, --gil and --kernels are auto",
        heading: Contents,
    }
    record_gc: bool = ["TLLM_PROFILE_RECORD_GC"], FlagOrAuto, default "0", settle record_gc || names(when.as_ref(), "gc") => "--gc" {
        help: "Record Python's garbage collections, also as NVTX ranges",
        values: "0, 1 or auto", heading: Contents, example: "1", attach: Some("Record Python's garbage collections"),
    }
    gil: bool = ["TLLMPROF_GIL"], FlagOrAuto, default "0", settle gil || names(when.as_ref(), "gil") => "--gil" {
        help: "Record the times in which threads wait for Python's GIL and hold it, also as NVTX ranges",
        values: "0, 1 or auto", heading: Contents, example: "1",
        attach: Some("Record the times in which threads wait for Python's GIL and hold it"),
    }
    gil_min_us: u64 = ["TLLMPROF_GIL_MIN_US"], parse_microseconds, default "100" => {
        help: "Minimum duration, in microseconds, of a wait for the GIL or a hold of it that the record keeps; \
               shorter ones are only counted",
        value: Named("N"), heading: Contents, example: "5",
    }
    stacks: Option<u64> = ["TLLMPROF_STACKS"], stacks::parse,
        settle stacks.unwrap_or((native_stacks == Some(true)).then_some(stacks::STACKS_RATE)) => "--stacks" {
        help: "Sample the Python stacks of the threads that run iterations, inside windows, 200 or HZ times a second \
               (at most 1000)",
        more: "auto samples 1000 times a second, and prints no warning if stacks cannot be sampled",
        value: Optional("HZ"), values: "0, 1, HZ or auto", heading: Contents, default: "0", example: "50",
        attach: Some(""),
    }
    native_stacks: bool = ["TLLMPROF_NATIVE_STACKS"], FlagOrAuto, default "0" => "--native-stacks" {
        help: "Sample native stacks as well, if the kernel permits it (perf_event_paranoid)",
        values: "0, 1 or auto", heading: Contents, example: "1",
    }
    gpu_times: GpuTimes = ["TLLMPROF_GPU_TIMES"], GpuTimes::parse, default "auto" => "--gpu-times" {
        help: "Measure GPU times with CUDA events: auto, all (in each iteration), or off",
        more: "auto measures each iteration if that costs at most 0.25 % of its time. Otherwise it measures one block \
               of eight iterations in every N blocks, and chooses N by the cost",
        value: Named("WHEN"), heading: Contents, example: "all",
    }
    py_ranges: Vec<PyFunction> = ["TLLMPROF_PY_RANGES"], PyFunction::parse_list,
        settle with_scopes(py_ranges.unwrap_or_default(), scopes.as_deref()) => {
        help: "Record the calls of these Python functions, also as NVTX ranges: MODULE:QUALNAME, or several separated \
               by commas",
        value: Named("FUNCTIONS"), heading: Contents, example: "m:C.f",
    }
    layers: bool = ["TLLMPROF_LAYERS"], Flag, settle layers.unwrap_or(scopes.is_some()) => "--layers" {
        help: "Report GPU time by torch module, NVTX range and marked function, including work in CUDA graphs",
        more: "This records kernels as --kernels does, unless TLLMPROF_KERNELS is set",
        heading: Contents, default: "0", example: "1",
    }
    scopes: Vec<NativeFunctions> = ["TLLMPROF_SCOPES"], ScopeRule::parse_list,
        settle scopes.into_iter().flatten().filter_map(ScopeRule::native).collect() => "--scopes" {
        help: "Report GPU time for each of these functions as well, as a layer of --layers, which this implies: RULE, \
               or several separated by commas",
        more: "A RULE is sym:REGEX[@LIBREGEX] for native functions or py:MODULE:QUALNAME for a Python function",
        value: Named("RULES"), heading: Contents, example: "sym:^f$",
    }
    kernels: Option<KernelSelection> = ["TLLMPROF_KERNELS"], KernelSelection::parse,
        // The setting `layers` needs kernels. So if `layers` is on and `TLLMPROF_KERNELS` is unset or `auto`, kernels
        // are recorded as with the value 1. A user who sets the variable to 0 still gets no kernels.
        settle match kernels {
            None | Some(Some(KernelSelection::Auto)) if layers => Some(KernelSelection::FIRST),
            kernels => kernels.flatten(),
        } => "--kernels" {
        help: "Record each GPU kernel, with CUPTI, in the first 20 or STEPS iterations of each window",
        more: "STEPS@TIME, such as 20@60s, instead records kernels in STEPS iterations once every TIME, as long as \
               the program runs. With --window auto, kernels are recorded at the end of the window. auto records at \
               most 20 iterations or 0.3 s there, if no other profiler uses CUPTI",
        value: Optional("STEPS[@TIME]"), values: "0, 1, STEPS[@TIME] or auto", heading: Contents, default: "0", example: "7",
    }
    llmapi: bool = ["TLLM_LLMAPI_ENABLE_NVTX"], Flag, default "0" => "--llmapi" {
        help: "Record the API, scheduler and sampler functions of known Python engines, also as NVTX ranges",
        heading: Contents, example: "1",
    }
    nvtx: bool = ["TLLMPROF_NVTX"], Flag, default "1" => "--no-nvtx" {
        help: "Emit NVTX ranges for iterations and windows, and record the program's NVTX ranges",
        off: "Emit no NVTX ranges for iterations and windows",
        heading: Contents, example: "0",
    }
    nvtx_name: NvtxName = ["TLLMPROF_NVTX_NAME"], NvtxName::parse, default "iteration {n}" => {
        help: "Name of the NVTX range of each iteration, in which {n} stands for the iteration's number",
        value: Named("NAME"), heading: Contents, example: "step {n}",
    }
    nvtx_debug: bool = ["TLLM_NVTX_DEBUG"], Flag, default "0" => "--nvtx-debug" {
        help: "Emit NVTX ranges for intercepted CUDA calls and for torch modules",
        heading: Contents, example: "1",
    }
    gpu_metrics => "--gpu-metrics" {
        help: "Sample GPU metrics ten times a second, in a separate process, and write them to a record next to the \
               program's record",
        more: "The metrics are the utilization of SMs and tensor cores, memory bandwidth, PCIe, NVLink, power, and \
               clocks",
        heading: Contents,
    }
    gpu_state = ["TLLMPROF_GPU_STATE"] => "--no-gpu-state" {
        help: "With tllmprof run: sample clocks, power and processes of the GPUs, and the NUMA nodes of threads, ten \
               times a second in a separate process, and write them to a record in the run's folder",
        off: "Do not sample clocks, power and processes of the GPUs, or the NUMA nodes of threads",
        heading: Contents, default: "1", example: "0",
    }
    torch_trace: Option<TracePath> = ["TLLM_TORCH_PROFILE_TRACE"], TracePath::parse => "--torch-trace" {
        help: "Run the PyTorch profiler in the windows and write its traces to PATH",
        more: "-rank-R and -window-K are inserted before the extension of PATH",
        value: Named("PATH"), heading: Contents, example: "trace.json",
    }

    trace: Option<PathTemplate> = ["TLLMPROF_TRACE"], PathTemplate::parse,
        settle trace.or_else(|| on_demand(env, control.as_ref(), when.is_some() || flight.is_some() || samples(kernels))) => "--trace" {
        help: "Write the record to PATH",
        more: "In PATH, %p stands for the process ID, %r for the rank, %h for the host, %q{NAME} for the environment \
               variable NAME, and %% for a percent sign",
        value: Named("PATH"), heading: Record,
        otherwise: "no record, but tllmprof run makes one",
        without: "tllmprof-RUN/tllmprof-%h-%r-%p.tllmprof with run, no record under nsys or ncu", example: "x-%p",
        attach: Some("Write the record to PATH [default: tllmprof-HOST-RANK-PID.tllmprof in the folder of the \
                      process]"),
    }
    ring: Option<PathTemplate> = ["TLLMPROF_RING"], PathTemplate::parse => "--ring" {
        help: "Write a ring buffer with the latest steps and collectives, which tllmprof hang reads, to PATH",
        more: "PATH has the placeholders of --trace, but %r is 0, because the rank is not known yet",
        value: Named("PATH"), heading: Record,
        otherwise: "no ring, but tllmprof run makes one",
        without: "tllmprof-RUN/tllmprof-%h-%p.ring with run, if run creates that folder", example: "x-%p.ring",
    }
    no_trace => "--no-trace" {
        help: "Write no record",
        conflicts: &["--trace", "--keep"], heading: Record,
    }
    keep: Option<u64> = ["TLLMPROF_KEEP"], parse_keep => "--keep" {
        help: "Limit the record of each process to SIZE, such as 500M or 2G: later windows overwrite the oldest ones",
        value: Named("SIZE"), heading: Record,
        otherwise: "no window is overwritten, and a record ends at TLLMPROF_TRACE_MAX",
        without: "no window is overwritten, and a record ends at 1G", example: "2G",
    }
    trace_max: u64 = ["TLLMPROF_TRACE_MAX"], number::parse_bytes,
        settle trace_max.into_iter().chain(keep).min().unwrap_or(TRACE_MAX) => {
        help: "Maximum size of the record, in bytes or with K, M or G; events that do not fit are only counted",
        value: Named("SIZE"), heading: Record, default: "1G", example: "500M",
    }
    run: Option<RunId> = ["TLLMPROF_RUN"], RunId::parse, settle run.or_else(|| RunId::from_job(env.get)) => "--run" {
        help: "Identifier of the run, which is stored in all of its records: letters, digits, ., _ and -",
        value: Named("ID"), heading: Record,
        otherwise: "the launcher's job", without: "the launcher's job, otherwise a new identifier", example: "mine",
    }
    full_args: bool = ["TLLMPROF_ARGS"], parse_args, default "masked" => "--args" {
        help: "How the record stores the program's arguments: masked (secrets become ***) or full",
        value: Named("WHICH"), heading: Record, example: "full",
    }

    log: Level = ["TLLMPROF_LOG"], Level::parse, default "info" => "--log" {
        help: "Log level of the library: off, error, warn, info or debug",
        value: Named("LEVEL"), heading: Process, example: "debug",
    }
    control: Control = ["TLLMPROF_CONTROL"], Control::parse, default "0" => {
        help: "Accept requests of tllmprof ps, capture and stop: 1, or the folder for the socket; tllmprof run sets 1",
        value: Optional("FOLDER"), heading: Process, example: "/tmp",
    }
    after_seccomp: bool = ["TLLMPROF_AFTER_SECCOMP"], Flag, default "0" => {
        help: "Open windows even after the program has installed a system call filter (seccomp), which must then \
               allow the system calls that windows need",
        more: "With 0 the library makes no system call after the filter is installed",
        heading: Process, example: "1",
    }
    drain: bool = ["TLLMPROF_DRAIN"], Flag, default "1" => "--no-drain" {
        help: "Wait until the GPU is idle before the profiler stops, unless a stream is being captured",
        off: "Do not wait until the GPU is idle before the profiler stops",
        heading: Process, example: "0",
    }
    perfect_router: PerfectRouter = ["TLLMPROF_PERFECT_ROUTER", "ENABLE_PERFECT_ROUTER"], PerfectRouter::parse, default "0" => "--perfect-router" {
        help: "Force an even load on the experts of a mixture of experts: the program's output becomes WRONG, but its \
               speed is that of balanced experts",
        more: "With WHEN=window this applies only inside windows, and outside them the load that the model's own \
               routers cause is counted",
        value: Optional("WHEN"), heading: Process, example: "window",
    }

    library = ["TLLMPROF_LIB"] => {
        help: "Path of libtllmprof.so",
        value: Named("PATH"), otherwise: "next to the command, or in ../lib",
    }
    nsys = ["TLLMPROF_NSYS"] => {
        help: "Path of nsys",
        value: Named("PATH"), otherwise: "the first one in PATH, then in /opt/nvidia",
    }
    ncu = ["TLLMPROF_NCU"] => {
        help: "Path of ncu",
        value: Named("PATH"), otherwise: "the first one in PATH, then in /opt/nvidia",
    }
    engine = ["TLLMPROF_ENGINE"] => {
        help: "Path of the example program that tllmprof demo runs",
        value: Named("PATH"),
    }
    watched = ["TLLMPROF_WATCHED"] => {
        help: "Set by tllmprof run if it watches for processes that are stuck (TLLMPROF_WHEN)",
        reader: Reader::Project,
    }
    nvtx_chain = ["TLLMPROF_NVTX_CHAIN"] => {
        help: "NVTX tool that was set before tllmprof was, which the children of the process use",
        reader: Reader::Project,
    }
    sysfs = ["TLLMPROF_SYSFS"] => {
        help: "Folder that the project's tests use in place of /sys",
        reader: Reader::Project,
    }
    cache = ["TLLMPROF_CACHE"] => {
        help: "Folder for the files that the project's scripts download",
        reader: Reader::Project,
    }
}
derived {
    /// Name of the variable with which the user chose the windows. `None` if the user set no such variable.
    windows_from: Option<&'static str> = env.find(variable::windows, false).map(|(name, _)| name);
    /// True if the user set `TLLMPROF_WARMUP`. If false, the warm-up depends on the step rule.
    warmup_given: bool = env.has(variable::warmup);
    /// Number of the latest iterations outside windows that the record keeps; `None` if the record keeps no such
    /// iterations. Without `TLLMPROF_FLIGHT`, they are kept only until a window with an automatic length opens.
    latest: Option<u64> = flight.or((windows.is_auto() && env.has(variable::trace)).then_some(LATEST_STEPS));
    /// The condition of `TLLMPROF_WHEN`, if it compares `stuck`. The `tllmprof` command evaluates this condition from
    /// outside the process. The process itself evaluates conditions only when an iteration ends, and while the process
    /// is stuck, no iteration ends.
    stuck: Option<Condition> = env.read(variable::when, &Condition::parse_with_times)?.filter(|when| when.names("stuck"));
    /// True if a condition on `stuck` is set, but no `tllmprof run` watches this process. Then nothing evaluates the
    /// condition.
    is_unwatched: bool = stuck.is_some() && !env.has(variable::watched);
    /// Names of the variables that are set to `auto`. If such a variable has no effect, no warning is logged.
    auto: Vec<&'static str> = env.auto_ones([
        variable::stacks, variable::native_stacks, variable::record_gc, variable::gil, variable::kernels,
    ]);
    /// True if the process may write a record although the user did not ask for one. Such a record begins with the
    /// first window that is requested while the process runs, or that opens automatically.
    trace_on_demand: bool = trace.is_some() && !env.has(variable::trace) && flight.is_none();
}
}

/// Returns the names of the variables that the library reads, except the launchers' variables for the rank, which are
/// in [`crate::RANK_VARIABLES`].
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    NAMES.split_ascii_whitespace()
}

/// Returns each variable that an option of `run` sets, with the name of that option.
pub fn options() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPTIONS
        .split_ascii_whitespace()
        .filter_map(|row| row.split_once('='))
        .filter(|(variable, option)| !variable.is_empty() && !option.is_empty())
}

/// Returns the names of the variables that the command, the project's scripts or child processes read.
pub fn other_names() -> impl Iterator<Item = &'static str> {
    OTHER_NAMES.split_ascii_whitespace()
}

impl Settings {
    /// Returns true if the variable with this name is set to `auto`.
    #[must_use]
    pub fn is_auto(&self, variable: &str) -> bool {
        self.auto.contains(&variable)
    }

    /// Returns true if any window can open: a window of `TLLMPROF_START_STOP`, a window that is requested while the
    /// process runs, or a window that opens automatically.
    #[must_use]
    pub fn may_open_windows(&self) -> bool {
        self.may_open_unplanned_windows() || !self.windows.is_empty()
    }

    /// Returns true if windows can open that were not planned when the process started: windows that are requested
    /// while the process runs, or that open automatically.
    #[must_use]
    pub fn may_open_unplanned_windows(&self) -> bool {
        self.when.is_some() || samples(self.kernels) || self.control.is_on()
    }

    /// Reads the settings from an environment.
    ///
    /// # Errors
    /// Returns an error for the first value that does not parse, or that does not fit the other settings.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadValue> {
        Self::read(&Environment { get: &get })
    }
}

/// Returns the rule for iterations: that of `TLLMPROF_STEP` if it is set, otherwise the function of `TLLMPROF_BATCH`,
/// otherwise `auto`.
fn rule(step: Option<&Step>, batch: Option<&BatchFunction>) -> Step {
    let of_batch = |batch: &BatchFunction| Step::Python {
        function: batch.function.clone(),
        every: 1,
    };
    let step = step.cloned().or_else(|| batch.map(of_batch));
    step.unwrap_or(Step::Auto)
}

/// Returns the condition. Returns a problem instead if the condition depends on the batch, and the batch is still
/// unknown when a step of this rule begins.
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

/// Returns true if the condition that opens windows compares the time that is called `name`, such as `gc`. Then this
/// time has to be measured.
fn names(when: Option<&Trigger>, name: &str) -> bool {
    when.is_some_and(|when| when.condition.names(name))
}

/// Returns true if windows open periodically to sample kernels.
fn samples(kernels: Option<KernelSelection>) -> bool {
    kernels.and_then(KernelSelection::samples).is_some()
}

/// Returns `functions` and the Python functions of the scope rules, each once.
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

/// Returns the default path of the record, for a user who named none. Returns `None` if no record can be needed,
/// because no setting such as `TLLMPROF_WHEN` needs one (`asks` is false) and the process does not listen for requests.
/// Also returns `None` if `TLLMPROF_TRACE` is empty, because this means that no record is wanted.
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
