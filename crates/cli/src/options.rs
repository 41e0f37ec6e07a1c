//! The options that `run` and `env` share. Each stands for a variable.

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::Args;
use tllmprof_config::error::shown;
use tllmprof_config::variables::WINDOW_VARIABLES;
use tllmprof_config::{Kernels, RUN_VARIABLE, Ranked, Settings};

use crate::failure::usage;
use crate::manners;

/// Half of what one variable says; `--per` is the other.
const AT_MOST: &str = "--at-most";

#[derive(Args, Debug, Default)]
pub struct Options {
    /// Windows of iterations: A-B, N, A-, all, comma lists of these, steady[:N] (N iterations, 50 if not given, once
    /// their time is steady), or none [default: steady]
    #[arg(long, value_name = "W", allow_hyphen_values = true)]
    window: Option<OsString>,
    /// Count only iterations whose batch satisfies EXPR, such as 'phase=decode and requests>=64': comparisons of
    /// requests, tokens, prefill_tokens, decode_tokens and phase (prefill, decode, mixed, idle, draft), joined by and, or,
    /// not and parentheses
    #[arg(long = "where", value_name = "EXPR")]
    condition: Option<OsString>,
    /// With --where: close the window during iterations that do not count, at most once in 100 ms
    #[arg(long)]
    where_split: bool,
    /// Open a window behind an iteration for which EXPR holds, such as 'iteration > 2*p50 or gc > 10ms': comparisons of
    /// iteration, gc, gil and wait with times, and those of --where, joined by and, or, not and parentheses. p50 is the
    /// median of iterations with alike batches
    #[arg(long, value_name = "EXPR")]
    when: Option<OsString>,
    /// With --when: open N windows at most in the time of --per [default: 10]
    #[arg(long, value_name = "N")]
    at_most: Option<String>,
    /// With --when: the time in which --at-most windows open, such as 30m [default: 1h]
    #[arg(long, value_name = "TIME")]
    per: Option<String>,
    /// With --when: how many iterations such a window has [default: 50]
    #[arg(long, value_name = "N")]
    when_steps: Option<OsString>,
    /// Keep the latest 100 or STEPS iterations outside windows in the record at all times, for a window by --when or one
    /// that is asked for with its past, and for when the process dies
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    flight: Option<OsString>,
    /// For an engine that is not known: the Python function whose arguments hold the batch, and formulas for requests
    /// and two of tokens, prefill_tokens and decode_tokens, such as
    /// 'my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new'. Without --step, each
    /// call of the function is an iteration
    #[arg(long, value_name = "FUNCTION=FORMULAS")]
    batch: Option<OsString>,
    /// What an iteration is: auto, a CUDA call (cudaGraphLaunch, or cudaGraphLaunch/4 for every fourth), sym:REGEX,
    /// py:MODULE:QUALNAME, or nvtx:REGEX [default: auto]
    #[arg(long, value_name = "RULE")]
    step: Option<OsString>,
    /// Iterations to skip before counting starts: a number, or capture to restart the count after each stream capture
    /// [default: capture with --step auto, else 0]
    #[arg(long, value_name = "W")]
    warmup: Option<OsString>,
    /// Ranks that open windows, such as 0,2-3 [default: all]
    #[arg(long, value_name = "LIST")]
    ranks: Option<OsString>,
    /// Do not wait for the device to be idle before the profiler stops
    #[arg(long)]
    no_drain: bool,
    /// Emit no NVTX ranges for iterations and windows
    #[arg(long)]
    no_nvtx: bool,
    /// Record Python's garbage collections, also as NVTX ranges
    #[arg(long)]
    gc: bool,
    /// Record waits for Python's GIL and holds of it, also as NVTX ranges
    #[arg(long)]
    gil: bool,
    /// Sample the Python stacks of the threads that make steps, inside windows, 200 or HZ times a second (up to 1000)
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    stacks: Option<OsString>,
    /// Sample native stacks, too, where the kernel permits it (perf_event_paranoid)
    #[arg(long)]
    native_stacks: bool,
    /// GPU times by CUDA events: auto takes them in each iteration where that costs at most 1 % of its time, else in one
    /// block of eight in so many; all: in each; off: none [default: auto]
    #[arg(long, value_name = "WHEN")]
    gpu_times: Option<OsString>,
    /// Log level of the library: off, error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<OsString>,
    /// Record the API, scheduler and sampler functions of known Python engines, also as NVTX ranges
    #[arg(long)]
    llmapi: bool,
    /// Emit NVTX ranges for intercepted CUDA calls and for torch modules
    #[arg(long)]
    nvtx_debug: bool,
    /// Run the PyTorch profiler in the windows and write its traces to PATH, with -rank-R and -window-K before the
    /// extension
    #[arg(long, value_name = "PATH")]
    torch_trace: Option<OsString>,

    /// Write the record to PATH, in which %p is the process, %r the rank, %h the host, %q{NAME} a variable and %% a
    /// percent sign [default: tllmprof-RUN/tllmprof-%h-%r-%p.tllmprof with run, no record under nsys or ncu]
    #[arg(long, value_name = "PATH", conflicts_with = "no_trace")]
    trace: Option<OsString>,
    /// Let the record of each process take SIZE at most, such as 500M or 2G: its oldest windows make room for later ones
    /// [default: none of them go, and a record ends at 1G]
    #[arg(long, value_name = "SIZE", conflicts_with = "no_trace")]
    keep: Option<OsString>,
    /// Write no record
    #[arg(long)]
    no_trace: bool,
    /// Sample the GPUs ten times a second, in another process, into a record beside the program's: SMs, tensor cores,
    /// memory bandwidth, PCIe, NVLink, power, clocks
    #[arg(long)]
    gpu_metrics: bool,
    /// Balance the load of a mixture of experts: the output of the program is WRONG, its speed is that of even loads.
    /// WHEN is window for windows only, and then the load of the learned routers is counted outside them
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    perfect_router: Option<OsString>,

    /// Identifier of the run: letters, digits, ., _ and - [default: the launcher's job, else a new one]
    #[arg(long, value_name = "ID")]
    run: Option<OsString>,
    /// How the record shows the program's arguments: masked (secrets are ***) or full [default: masked]
    #[arg(long, value_name = "WHICH")]
    args: Option<OsString>,
    /// Report GPU time by torch module, NVTX range and marked function, in CUDA graphs, too; records kernels as --kernels does
    #[arg(long)]
    layers: bool,
    /// Let each call of these functions be a scope of --layers, which this implies: sym:REGEX[@LIBREGEX],
    /// py:MODULE:QUALNAME, or several with commas.
    #[arg(long, value_name = "RULES")]
    scopes: Option<OsString>,
    /// Record each GPU kernel, by CUPTI, in the first STEPS iterations of each window [default: off; 20 without STEPS].
    /// STEPS@TIME, such as 20@60s: in so many iterations each TIME instead, for as long as the program runs
    #[arg(long, value_name = "STEPS[@TIME]", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
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
            ("--when", "TLLMPROF_WHEN", self.when.clone()),
            (AT_MOST, "TLLMPROF_WHEN_AT_MOST", self.at_most()),
            (
                "--when-steps",
                "TLLMPROF_WHEN_STEPS",
                self.when_steps.clone(),
            ),
            ("--flight", "TLLMPROF_FLIGHT", self.flight.clone()),
            ("--batch", "TLLMPROF_BATCH", self.batch.clone()),
            ("--step", "TLLMPROF_STEP", self.step.clone()),
            ("--warmup", "TLLMPROF_WARMUP", self.warmup.clone()),
            ("--ranks", "TLLMPROF_RANKS", self.ranks.clone()),
            ("--no-drain", "TLLMPROF_DRAIN", on(self.no_drain, "0")),
            ("--no-nvtx", "TLLMPROF_NVTX", on(self.no_nvtx, "0")),
            ("--log", "TLLMPROF_LOG", self.log()),
            ("--trace", "TLLMPROF_TRACE", self.trace.clone()),
            ("--no-trace", "TLLMPROF_TRACE", on(self.no_trace, "")),
            ("--keep", "TLLMPROF_KEEP", self.keep.clone()),
            ("--kernels", "TLLMPROF_KERNELS", self.kernels.clone()),
            ("--layers", "TLLMPROF_LAYERS", on(self.layers, "1")),
            ("--scopes", "TLLMPROF_SCOPES", self.scopes.clone()),
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
            ("--gpu-times", "TLLMPROF_GPU_TIMES", self.gpu_times.clone()),
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

    /// How many windows may open by themselves, in how long.
    fn at_most(&self) -> Option<OsString> {
        let is_asked = self.at_most.is_some() || self.per.is_some();
        let at_most = self.at_most.as_deref().unwrap_or("10");
        let per = self.per.as_deref().unwrap_or("1h");
        is_asked.then(|| format!("{at_most}/{per}").into())
    }

    /// The options that its variable is made of, as they were typed.
    fn typed_at_most(&self) -> String {
        let typed = [(AT_MOST, &self.at_most), ("--per", &self.per)];
        let typed = typed.into_iter().filter_map(|(option, value)| {
            let value = shown(value.as_ref()?.as_ref());
            Some(format!("{option} \"{value}\""))
        });
        typed.collect::<Vec<_>>().join(" ")
    }

    /// The library's log level: what `--log` says, else what `--quiet` and `--verbose` do.
    fn log(&self) -> Option<OsString> {
        self.log.clone().or_else(|| manners::log().map(Into::into))
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
            let given = given.iter().find(|given| given.variable == bad.name);
            match given.map(|given| given.option) {
                Some(AT_MOST) => usage(format_args!("{}: {}", self.typed_at_most(), bad.why())),
                Some(option) => usage(format_args!("{option} {}", bad.of_option())),
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
        let is_sampled = name.contains('@') && Kernels::parse(name).is_ok();
        if is_bare(&self.kernels) && (is_number || is_sampled) {
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

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/variables.md");
    const BEGINS: &str = "<!-- the table: BLESS=1 cargo test -p tllmprof-cli --bin tllmprof the_page_of_variables -->\n";
    const ENDS: &str = "<!-- its end -->\n";

    #[test]
    fn the_page_of_variables_has_all() {
        let given = all().given();
        let mut table =
            "\n| variable | meaning | option of run and env |\n|---|---|---|\n".to_owned();
        for variable in VARIABLES {
            let options = given
                .iter()
                .filter(|given| given.variable == variable.name && given.option != "--no-trace")
                .map(|given| format!("`{}`", given.option));
            let options = options.collect::<Vec<_>>().join(", ");
            let meaning = variable.meaning.replace('|', "\\|");
            table += &format!("| `{}` | {meaning} | {options} |\n", variable.name);
        }
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGINS).unwrap();
        let (_, after) = rest.split_once(ENDS).unwrap();
        let expected = format!("{before}{BEGINS}{table}\n{ENDS}{after}");
        if env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, &expected).unwrap();
        } else {
            assert!(page == expected, "{PAGE} is not what it was:\n{table}");
        }
    }

    fn all() -> Options {
        Options {
            window: Some("1".into()),
            condition: Some("phase=decode".into()),
            where_split: true,
            when: Some("gc > 1ms".into()),
            at_most: Some("1".into()),
            per: Some("2h".into()),
            when_steps: Some("1".into()),
            flight: Some("1".into()),
            batch: Some("m:f=requests:1,tokens:1,decode_tokens:1".into()),
            step: Some("auto".into()),
            warmup: Some("1".into()),
            ranks: Some("1".into()),
            no_drain: true,
            no_nvtx: true,
            log: Some("off".into()),
            trace: Some("x".into()),
            keep: Some("2G".into()),
            no_trace: true,
            kernels: Some("1".into()),
            layers: true,
            scopes: Some("sym:^f$".into()),
            args: Some("full".into()),
            run: Some("x".into()),
            gc: true,
            gil: true,
            stacks: Some("1".into()),
            native_stacks: true,
            gpu_times: Some("all".into()),
            nvtx_debug: true,
            llmapi: true,
            torch_trace: Some("x".into()),
            perfect_router: Some("1".into()),
            gpu_metrics: true,
        }
    }

    #[test]
    fn every_option_sets_a_variable_that_is_read() {
        let all = all();
        let known: BTreeSet<_> = VARIABLES.iter().map(|v| v.name).collect();
        let given = all.given();
        assert_eq!(given.len(), 31);
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
