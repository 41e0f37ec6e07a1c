//! The options that `run` and `env` share. Each stands for a variable.

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::Args;
use tllmprof_config::variables::WINDOW_VARIABLES;
use tllmprof_config::{RUN_VARIABLE, Ranked, Settings};

use crate::failure::usage;

#[derive(Args, Debug, Default)]
pub struct Options {
    /// Windows of iterations: A-B, N, A-, all, and comma lists of them; steady[:N]: N (50) iterations from where
    /// their time has settled, which is the default; none
    #[arg(long, value_name = "W", allow_hyphen_values = true)]
    window: Option<OsString>,
    /// Only iterations whose batches fulfil this count for a window's length: comparisons of requests,
    /// tokens, prefill_tokens, decode_tokens and phase (prefill, decode, mixed, idle), joined by and, or,
    /// not and brackets, such as 'phase=decode and requests>=64'
    #[arg(long = "where", value_name = "EXPR")]
    condition: Option<OsString>,
    /// With --where: close the window while iterations pass that do not count, at most once in 100 ms
    #[arg(long)]
    where_split: bool,
    /// The Python function whose arguments hold what is in a batch, and where: requests and two of tokens,
    /// prefill_tokens and decode_tokens, such as
    /// 'my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new'; without --step the
    /// function is the step, too
    #[arg(long, value_name = "FUNCTION=FORMULAS")]
    batch: Option<OsString>,
    /// What an iteration is: auto, a CUDA call such as cudaGraphLaunch or cudaGraphLaunch/4, sym:REGEX, py:MODULE:QUALNAME, or nvtx:REGEX
    #[arg(long, value_name = "RULE")]
    step: Option<OsString>,
    /// Iterations not counted: a number of them; or capture, to start again after stream captures
    #[arg(long, value_name = "W")]
    warmup: Option<OsString>,
    /// Ranks that open windows: 0,2-3
    #[arg(long, value_name = "LIST")]
    ranks: Option<OsString>,
    /// Do not make the device idle before the profiler is stopped
    #[arg(long)]
    no_drain: bool,
    /// No NVTX ranges for iterations and windows
    #[arg(long)]
    no_nvtx: bool,
    /// NVTX ranges for Python's garbage collections
    #[arg(long)]
    gc: bool,
    /// NVTX ranges for waiting for Python's GIL and holding it
    #[arg(long)]
    gil: bool,
    /// Sample the Python stacks of the threads that make steps, inside windows, 200 or HZ times a second (up to 1000)
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    stacks: Option<OsString>,
    /// Sample native stacks, too, where the kernel permits it (perf_event_paranoid)
    #[arg(long)]
    native_stacks: bool,
    /// Log level on standard error: off, error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    log: Option<OsString>,
    /// NVTX ranges for the functions of known engines' Python API
    #[arg(long)]
    llmapi: bool,
    /// Mark intercepted CUDA calls and, where PyTorch is used, its modules by name
    #[arg(long)]
    nvtx_debug: bool,
    /// Run the PyTorch profiler in the same windows and write its traces here, with -rank-R and
    /// -window-K put before the extension
    #[arg(long, value_name = "PATH")]
    torch_trace: Option<OsString>,

    /// Where the record goes: %p process, %r rank, %h host, %q{NAME} a variable, %% a percent sign; by
    /// default run writes tllmprof-RUN/tllmprof-%h-%r-%p.tllmprof, and nothing under nsys or ncu
    #[arg(long, value_name = "PATH", conflicts_with = "no_trace")]
    trace: Option<OsString>,
    /// No record
    #[arg(long)]
    no_trace: bool,
    /// Sample the GPUs while the program runs, from outside it, into a record of their own beside the
    /// program's: SMs, tensor cores, memory bandwidth, PCIe, NVLink, power, clocks
    #[arg(long)]
    gpu_metrics: bool,
    /// Replace the routers of mixtures of experts by balanced ones, so that the program's output is
    /// wrong and its speed that of even loads; `window`: inside windows only, and count what the
    /// learned routers do outside
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    perfect_router: Option<OsString>,

    /// The run's identifier: letters, digits, ., _ and -; by default the launcher's job, else a new one
    #[arg(long, value_name = "ID")]
    run: Option<OsString>,
    /// The program's arguments in the record: masked, where what looks like a secret is ***, or full
    #[arg(long, value_name = "WHICH")]
    args: Option<OsString>,
    /// Take GPU kernels by CUPTI, too, in the first 20 or STEPS iterations of each window
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    kernels: Option<OsString>,
}

/// A variable that an option sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    pub option: &'static str,
    pub variable: &'static str,
    pub value: OsString,
}

impl Options {
    /// The variables that these options set.
    pub fn given(&self) -> Vec<Given> {
        let on = |flag: bool, value: &str| flag.then(|| OsString::from(value));
        [
            ("--window", WINDOW_VARIABLES[0], self.window()),
            ("--where", "TLLMPROF_WHERE", self.condition.clone()),
            (
                "--where-split",
                "TLLMPROF_WHERE_SPLIT",
                on(self.where_split, "1"),
            ),
            ("--batch", "TLLMPROF_BATCH", self.batch.clone()),
            ("--step", "TLLMPROF_STEP", self.step.clone()),
            ("--warmup", "TLLMPROF_WARMUP", self.warmup.clone()),
            ("--ranks", "TLLMPROF_RANKS", self.ranks.clone()),
            ("--no-drain", "TLLMPROF_DRAIN", on(self.no_drain, "0")),
            ("--no-nvtx", "TLLMPROF_NVTX", on(self.no_nvtx, "0")),
            ("--log", "TLLMPROF_LOG", self.log.clone()),
            ("--trace", "TLLMPROF_TRACE", self.trace.clone()),
            ("--no-trace", "TLLMPROF_TRACE", on(self.no_trace, "")),
            ("--kernels", "TLLMPROF_KERNELS", self.kernels.clone()),
            ("--args", "TLLMPROF_ARGS", self.args.clone()),
            ("--run", RUN_VARIABLE, self.run.clone()),
            ("--gc", "TLLM_PROFILE_RECORD_GC", on(self.gc, "1")),
            ("--gil", "TLLMPROF_GIL", on(self.gil, "1")),
            ("--stacks", "TLLMPROF_STACKS", self.stacks.clone()),
            (
                "--native-stacks",
                "TLLMPROF_NATIVE_STACKS",
                on(self.native_stacks, "1"),
            ),
            ("--nvtx-debug", "TLLM_NVTX_DEBUG", on(self.nvtx_debug, "1")),
            ("--llmapi", "TLLM_LLMAPI_ENABLE_NVTX", on(self.llmapi, "1")),
            (
                "--torch-trace",
                "TLLM_TORCH_PROFILE_TRACE",
                self.torch_trace.clone(),
            ),
            (
                "--perfect-router",
                "TLLMPROF_PERFECT_ROUTER",
                self.perfect_router.clone(),
            ),
        ]
        .into_iter()
        .filter_map(|(option, variable, value)| {
            Some(Given {
                option,
                variable,
                value: value?,
            })
        })
        .collect()
    }

    /// The windows: where neither an option nor a variable says which, steady iterations.
    fn window(&self) -> Option<OsString> {
        let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_asked = self.window.is_some() || WINDOW_VARIABLES.iter().any(is_set);
        let default = || (!is_asked).then(|| OsString::from("steady"));
        self.window.clone().or_else(default)
    }

    /// Whether there is to be no record.
    pub const fn no_trace(&self) -> bool {
        self.no_trace
    }

    /// Whether the GPUs are to be sampled, for which there is no variable: the command does it.
    pub const fn gpu_metrics(&self) -> bool {
        self.gpu_metrics
    }

    /// What the library will read: this environment with the options over it.
    ///
    /// # Errors
    /// A value that does not parse, or that another one contradicts.
    pub fn settings(&self) -> Result<Settings> {
        let given = self.given();
        if self.trace.as_ref().is_some_and(|trace| trace.is_empty()) {
            return Err(usage(
                "--trace \"\": an empty path (wanted: a file's name, or --no-trace)",
            ));
        }
        let settings = Settings::from_env(|name| lookup(&given, name)).map_err(|bad| {
            // What was typed is named, not the variable that it stands for.
            match given.iter().find(|given| given.variable == bad.name) {
                Some(given) => usage(format_args!("{} {}", given.option, bad.of_option())),
                None => usage(bad),
            }
        })?;
        if self.no_trace && settings.kernels.is_some() {
            return Err(usage(
                "--no-trace: kernels are taken into the record (wanted: without --kernels, or with a record)",
            ));
        }
        Ok(settings)
    }

    /// Which of a job's tasks this is, where the run has no identifier but the job's.
    pub fn task(&self, settings: &Settings) -> Option<String> {
        let is_named =
            self.run.is_some() || env::var_os(RUN_VARIABLE).is_some_and(|run| !run.is_empty());
        settings.run.as_ref().filter(|_| !is_named)?;
        let rank = Ranked::by_variables(&|name| env::var_os(name)).map_or(0, |ranked| ranked.rank);
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().replace('/', "-");
        Some(format!("{host}-{rank}"))
    }

    /// What was meant where the program's name is a value that an option takes behind an equals sign only.
    pub fn meant(&self, name: &OsStr) -> Option<String> {
        let name = name.to_str()?;
        let is_bare = |value: &Option<OsString>| value.as_deref() == Some(OsStr::new("1"));
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        if is_bare(&self.kernels) && is_number {
            Some(format!("--kernels={name}"))
        } else if is_bare(&self.stacks) && is_number {
            Some(format!("--stacks={name}"))
        } else if is_bare(&self.perfect_router) && name == "window" {
            Some(format!("--perfect-router={name}"))
        } else {
            None
        }
    }
}

fn lookup(given: &[Given], name: &str) -> Option<OsString> {
    match given.iter().find(|given| given.variable == name) {
        Some(given) => Some(given.value.clone()),
        None => env::var_os(name),
    }
}

/// Splits what follows `--nsys=` or `--ncu=` as a shell would.
///
/// # Errors
/// Quotes that do not close, and text that is not UTF-8.
pub fn split_arguments(option: &str, text: &OsStr) -> Result<Vec<String>> {
    let bad = |problem: &str| {
        let shown = text.to_string_lossy();
        usage(format_args!(
            "{option}=\"{shown}\": {problem} (wanted: arguments as in a shell)"
        ))
    };
    let text = text.to_str().ok_or_else(|| bad("it is not UTF-8"))?;
    shell_words::split(text).map_err(|_| bad("a quote does not close"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tllmprof_config::VARIABLES;

    use super::*;

    #[test]
    fn every_option_sets_a_variable_that_is_read() {
        let all = Options {
            window: Some("1".into()),
            condition: Some("phase=decode".into()),
            where_split: true,
            batch: Some("m:f=requests:1,tokens:1,decode_tokens:1".into()),
            step: Some("auto".into()),
            warmup: Some("1".into()),
            ranks: Some("1".into()),
            no_drain: true,
            no_nvtx: true,
            log: Some("off".into()),
            trace: Some("x".into()),
            no_trace: true,
            kernels: Some("1".into()),
            args: Some("full".into()),
            run: Some("x".into()),
            gc: true,
            gil: true,
            stacks: Some("1".into()),
            native_stacks: true,
            nvtx_debug: true,
            llmapi: true,
            torch_trace: Some("x".into()),
            perfect_router: Some("1".into()),
            gpu_metrics: true,
        };
        let known: BTreeSet<_> = VARIABLES.iter().map(|v| v.name).collect();
        let given = all.given();
        assert_eq!(given.len(), 23);
        for given in given {
            assert!(known.contains(given.variable), "{given:?}");
        }
    }

    #[test]
    fn arguments_are_split_as_in_a_shell() {
        let split = |text: &str| split_arguments("--nsys", OsStr::new(text));
        assert_eq!(
            split("-o 'a b' -t cuda").unwrap(),
            ["-o", "a b", "-t", "cuda"]
        );
        assert!(split("").unwrap().is_empty());
        assert!(split("-o 'a").is_err());
    }
}
