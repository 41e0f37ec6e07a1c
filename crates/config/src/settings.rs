//! All variables at once.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use crate::batch::BatchFunction;
use crate::condition::Condition;
use crate::control::Control;
use crate::error::{BadValue, Problem, shown, text};
use crate::function::PyFunction;
use crate::gpu_times::GpuTimes;
use crate::kernels::Kernels;
use crate::level::Level;
use crate::nvtx_name::NvtxName;
use crate::range::Windows;
use crate::ranks::Ranks;
use crate::router::PerfectRouter;
use crate::run::{RUN_VARIABLE, RunId};
use crate::scope::{NativeFunctions, ScopeRule};
use crate::step::Step;
use crate::template::PathTemplate;
use crate::torch_trace::TracePath;
use crate::trigger::{self, AtMost, Trigger};
use crate::variables::{ROUTER_VARIABLES, WINDOW_VARIABLES};
use crate::warmup::Warmup;
use crate::{flag, number, stacks};

/// GIL ranges shorter than this are counted, not kept.
const GIL_MIN_US: u64 = 100;
const TRACE_MAX: u64 = 1 << 30;
/// What `TLLMPROF_KEEP` may be at least: the first chunks of some threads, and a window.
const LEAST_KEPT: u64 = 1 << 20;
/// Iterations that `TLLMPROF_FLIGHT=1` keeps, and that it may keep.
const FLIGHT_STEPS: u64 = 100;
const MOST_FLIGHT_STEPS: u64 = 100_000;

/// What the variables say, with a default for each that is not set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// None at all: no profiler is switched.
    pub windows: Windows,
    /// The variable that gave the windows, if one did.
    pub windows_from: Option<&'static str>,
    /// Only iterations whose batches fulfil it count for a window's length.
    pub condition: Option<Condition>,
    /// A window by it is closed while it does not hold.
    pub where_split: bool,
    /// Windows open by themselves.
    pub when: Option<Trigger>,
    /// How many of the latest iterations outside windows are kept at all times.
    pub flight: Option<u64>,
    /// The function whose arguments hold what is in a batch, where the user names one.
    pub batch: Option<BatchFunction>,
    /// By default the function of `batch`, if there is one, else `auto`.
    pub step: Step,
    pub warmup: Warmup,
    /// The warm-up was asked for, and is not what the rule has by itself.
    pub warmup_given: bool,
    /// Nothing: every rank opens windows.
    pub ranks: Option<Ranks>,
    /// The device is made idle before the profiler is stopped.
    pub drain: bool,
    pub nvtx: bool,
    pub nvtx_name: NvtxName,
    pub log: Level,
    pub nvtx_debug: bool,
    pub llmapi: bool,
    pub py_ranges: Vec<PyFunction>,
    pub record_gc: bool,
    pub gil: bool,
    pub gil_min_us: u64,
    /// Samples of stacks a second, inside windows.
    pub stacks: Option<u64>,
    /// Native stacks are sampled, too.
    pub native_stacks: bool,
    /// In which iterations GPU times are taken.
    pub gpu_times: GpuTimes,
    pub torch_trace: Option<TracePath>,
    pub perfect_router: PerfectRouter,
    pub trace: Option<PathTemplate>,
    /// Nobody has asked for that record: it begins with the first window that is asked for while the process runs.
    pub trace_on_demand: bool,
    /// In which iterations GPU kernels are recorded.
    pub kernels: Option<Kernels>,
    /// Whose time the GPU's is: scopes are followed, and kernels recorded with the scope they were launched in.
    pub layers: bool,
    /// Native functions that are scopes.
    pub scopes: Vec<NativeFunctions>,
    /// Bytes that a record may come to.
    pub trace_max: u64,
    /// Bytes that the latest windows may take, if the oldest are to go where there are more.
    pub keep: Option<u64>,
    /// The record has the program's arguments with the secrets in them.
    pub full_args: bool,
    /// The run that the process belongs to, where the user or a launcher says so.
    pub run: Option<RunId>,
    /// Whether windows can be asked for while the process runs.
    pub control: Control,
    /// Windows open, too, once the program has installed a filter for system calls.
    pub after_seccomp: bool,
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
        let is_sampled = self.kernels.and_then(Kernels::samples).is_some();
        self.when.is_some() || is_sampled || self.control.is_on()
    }

    /// The settings that an environment gives.
    ///
    /// # Errors
    /// The first value that does not parse.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadValue> {
        let env = Environment { get };
        let batch = env.set("TLLMPROF_BATCH", BatchFunction::parse)?;
        let of_batch = |batch: &BatchFunction| Step::Python {
            function: batch.function.clone(),
            every: 1,
        };
        let step = env
            .set("TLLMPROF_STEP", Step::parse)?
            .or_else(|| batch.as_ref().map(of_batch))
            .unwrap_or(Step::Auto);
        let condition = env.set("TLLMPROF_WHERE", |text| {
            knows_batches(Condition::parse(text)?, &step)
        })?;
        let when = env.trigger(&step)?;
        let where_split = env.flag("TLLMPROF_WHERE_SPLIT", false)?;
        if where_split && condition.is_none() {
            let problem = "there is no condition that a window could be split by";
            let problem = Problem::new(problem, "--where EXPR or TLLMPROF_WHERE beside it");
            let value = (env.get)("TLLMPROF_WHERE_SPLIT").unwrap_or_default();
            return Err(problem.in_variable("TLLMPROF_WHERE_SPLIT", &value));
        }
        let warmup_given = env.set("TLLMPROF_WARMUP", Warmup::parse)?;
        let warmup = warmup_given.unwrap_or(match step {
            Step::Auto => Warmup::Capture,
            _ => Warmup::Iterations(0),
        });
        // Checked here, so that a mistake is reported; read again when the first iteration opens.
        env.set("TLLMPROF_RANK", |rank| {
            number::parse(rank, "the number of this rank")
        })?;
        let (windows, windows_from) = env
            .first_set(&WINDOW_VARIABLES, Windows::parse)?
            .map_or_else(Default::default, |(name, windows)| (windows, Some(name)));
        let control = env
            .set_os("TLLMPROF_CONTROL", Control::parse)?
            .unwrap_or_default();
        let given = env.set_os("TLLMPROF_TRACE", PathTemplate::parse)?;
        // One that is set to nothing says that there is to be none.
        let is_named = (env.get)("TLLMPROF_TRACE").is_some();
        let flight = env.set("TLLMPROF_FLIGHT", parse_flight)?.flatten();
        let mut py_ranges = env
            .set("TLLMPROF_PY_RANGES", PyFunction::parse_list)?
            .unwrap_or_default();
        let rules = env.set("TLLMPROF_SCOPES", ScopeRule::parse_list)?;
        // Scopes are of use for layers alone.
        let layers = env.flag("TLLMPROF_LAYERS", rules.is_some())?;
        let mut scopes = Vec::new();
        for rule in rules.into_iter().flatten() {
            match rule {
                ScopeRule::Native(functions) => scopes.push(functions),
                ScopeRule::Python(function) if py_ranges.contains(&function) => {}
                ScopeRule::Python(function) => py_ranges.push(function),
            }
        }
        let kernels = env.set("TLLMPROF_KERNELS", Kernels::parse)?;
        // Layers are made of kernels. One that is set to 0 says that there are to be none.
        let kernels = kernels.unwrap_or_else(|| layers.then_some(Kernels::FIRST));
        let is_sampled = kernels.and_then(Kernels::samples).is_some();
        // What opens a window by itself has it recorded, and what is kept lies in a record.
        let asks = match control {
            Control::Off if when.is_some() || flight.is_some() || is_sampled => &Control::On,
            _ => &control,
        };
        let on_demand = PathTemplate::on_demand(asks).filter(|_| !is_named);
        let trace_on_demand = on_demand.is_some() && flight.is_none();
        let keep = env.set("TLLMPROF_KEEP", parse_keep)?;
        let most = env.set("TLLMPROF_TRACE_MAX", number::parse_bytes)?;
        let native_stacks = env.flag("TLLMPROF_NATIVE_STACKS", false)?;
        let stacks = env.set("TLLMPROF_STACKS", stacks::parse)?;
        let names = |name| {
            let condition = when.as_ref().map(|when| &when.condition);
            condition.is_some_and(|condition| condition.names(name))
        };
        Ok(Self {
            windows,
            windows_from,
            condition,
            where_split,
            record_gc: env.flag("TLLM_PROFILE_RECORD_GC", false)? || names("gc"),
            gil: env.flag("TLLMPROF_GIL", false)? || names("gil"),
            when,
            flight,
            batch,
            step,
            warmup,
            warmup_given: warmup_given.is_some(),
            ranks: env.set("TLLMPROF_RANKS", Ranks::parse)?,
            drain: env.flag("TLLMPROF_DRAIN", true)?,
            nvtx: env.flag("TLLMPROF_NVTX", true)?,
            nvtx_name: env
                .set("TLLMPROF_NVTX_NAME", NvtxName::parse)?
                .unwrap_or_default(),
            log: env
                .set("TLLMPROF_LOG", Level::parse)?
                .unwrap_or(Level::Info),
            nvtx_debug: env.flag("TLLM_NVTX_DEBUG", false)?,
            llmapi: env.flag("TLLM_LLMAPI_ENABLE_NVTX", false)?,
            py_ranges,
            gil_min_us: env
                .set("TLLMPROF_GIL_MIN_US", |us| {
                    number::parse(us, "a number of microseconds")
                })?
                .unwrap_or(GIL_MIN_US),
            stacks: stacks.unwrap_or(native_stacks.then_some(stacks::STACKS_RATE)),
            native_stacks,
            gpu_times: env
                .set("TLLMPROF_GPU_TIMES", GpuTimes::parse)?
                .unwrap_or_default(),
            torch_trace: env.set("TLLM_TORCH_PROFILE_TRACE", TracePath::parse)?,
            perfect_router: env
                .first_set(&ROUTER_VARIABLES, PerfectRouter::parse)?
                .map_or(PerfectRouter::Off, |(_, router)| router),
            trace: given.or(on_demand),
            trace_on_demand,
            kernels,
            layers,
            scopes,
            trace_max: most.into_iter().chain(keep).min().unwrap_or(TRACE_MAX),
            keep,
            full_args: env.set("TLLMPROF_ARGS", parse_args)?.unwrap_or_default(),
            run: env
                .set(RUN_VARIABLE, RunId::parse)?
                .or_else(|| RunId::of_job(&env.get)),
            control,
            after_seccomp: env.flag("TLLMPROF_AFTER_SECCOMP", false)?,
        })
    }
}

/// The condition, if what it names of batches is known where steps by this rule begin.
fn knows_batches(condition: Condition, step: &Step) -> Result<Condition, Problem> {
    match step {
        Step::Auto | Step::Python { .. } => Ok(condition),
        _ if !condition.names_batch() => Ok(condition),
        other => Err(Problem::new(
            format!(
                "a step by {} begins before its batch is known",
                shown(OsStr::new(&other.to_string()))
            ),
            "a step that is a Python function: TLLMPROF_BATCH without TLLMPROF_STEP, or a known engine's",
        )),
    }
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

struct Environment<Get> {
    get: Get,
}

impl<Get: Fn(&str) -> Option<OsString>> Environment<Get> {
    /// The value of a variable. One that is set to nothing counts as unset.
    fn set_os<T>(
        &self,
        name: &str,
        parse: impl Fn(&OsStr) -> Result<T, Problem>,
    ) -> Result<Option<T>, BadValue> {
        match (self.get)(name) {
            Some(value) if !value.as_encoded_bytes().trim_ascii().is_empty() => parse(&value)
                .map(Some)
                .map_err(|problem| problem.in_variable(name, &value)),
            _ => Ok(None),
        }
    }

    fn set<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Option<T>, BadValue> {
        self.set_os(name, |value| parse(text(value)?))
    }

    /// The first of several names for the same thing that is set, and its value.
    fn first_set<T>(
        &self,
        names: &[&'static str],
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Option<(&'static str, T)>, BadValue> {
        for name in names {
            if let Some(value) = self.set(name, &parse)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// What opens windows by itself.
    fn trigger(&self, step: &Step) -> Result<Option<Trigger>, BadValue> {
        let condition = self.set("TLLMPROF_WHEN", |text| {
            knows_batches(Condition::parse_with_times(text)?, step)
        })?;
        let at_most = self.set("TLLMPROF_WHEN_AT_MOST", AtMost::parse)?;
        let steps = self.set("TLLMPROF_WHEN_STEPS", trigger::parse_steps)?;
        let given = [
            ("TLLMPROF_WHEN_AT_MOST", at_most.is_some()),
            ("TLLMPROF_WHEN_STEPS", steps.is_some()),
        ];
        if let Some((name, _)) = given.into_iter().find(|(_, is_given)| *is_given)
            && condition.is_none()
        {
            let problem = "there is no condition that could open a window";
            let problem = Problem::new(problem, "--when EXPR or TLLMPROF_WHEN beside it");
            let value = (self.get)(name).unwrap_or_default();
            return Err(problem.in_variable(name, &value));
        }
        Ok(condition.map(|condition| Trigger {
            condition,
            at_most: at_most.unwrap_or_default(),
            steps: steps.unwrap_or(trigger::STEPS),
        }))
    }

    /// A flag. Set to nothing it is off, whatever its default.
    fn flag(&self, name: &str, default: bool) -> Result<bool, BadValue> {
        match (self.get)(name) {
            None => Ok(default),
            Some(value) => text(&value)
                .and_then(flag::parse)
                .map_err(|problem| problem.in_variable(name, &value)),
        }
    }
}
