//! The `tllmprof` command.
//!
//! Results go to standard output, everything else goes to standard error. The exit status is 0 for success, 1 if the
//! work failed, and 2 if the command line or a variable is wrong. `run` ends with the status of its program.

mod background;
mod baseline;
mod beyond;
mod chosen;
mod compare;
mod demo;
mod doctor;
mod driver_user;
mod env;
mod export;
mod failure;
mod hang;
mod inherited;
mod library;
mod live;
mod manners;
mod manual;
mod mcp;
mod metrics;
mod mistyped;
mod options;
mod otlp;
mod output;
mod page;
mod parallel;
mod process_status;
mod processes;
mod profiler;
mod progress;
mod query;
mod records;
mod repeated;
mod report;
mod run;
mod runs;
mod small_stack;
mod streams;
mod supervised;
mod symbols;
#[cfg(test)]
mod tests;
mod traces;
mod unreached;
mod which;
mod witness;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use manners::Manners;

/// Profile any CUDA program by iteration
#[derive(Parser)]
#[command(
    name = "tllmprof",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Exit status: 0 success, 1 the work failed, 2 the command line or a variable is wrong; run ends with the \
                  status of its program."
)]
struct Arguments {
    /// Print the path of the library, for LD_PRELOAD
    #[arg(long)]
    lib: bool,
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    manners: Manners,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a program: count its iterations, record or profile windows of them, and print a summary
    Run(run::RunArguments),
    /// Print the variables for a launcher: shell, Docker, mpirun, Kubernetes and others
    Env(env::EnvArguments),
    /// Show the contents of records: speed, where time was spent, and findings; as text, JSON or a page
    Report(report::ReportArguments),
    /// Compare two runs and give a verdict
    Compare(compare::CompareArguments),
    /// Convert records for chrome://tracing, Perfetto or speedscope, or to Parquet tables
    Export(export::ExportArguments),
    /// List the processes on this machine that run with the library and can be captured
    Ps(live::ps::PsArguments),
    /// Capture the next iterations of running processes
    Capture(live::capture::CaptureArguments),
    /// Close the open window of running processes
    Stop(live::stop::StopArguments),
    /// Load the library into a process that was started without it, and capture its next iterations
    Attach(live::attach::AttachArguments),
    /// Remove the library's patches from a process that the library was attached to
    Detach(live::detach::DetachArguments),
    /// Show running processes live on the terminal: iterations per second, their times, and waits
    Top(live::top::TopArguments),
    /// Find out why running ranks are stuck: which rank, which collective, which function
    Hang(hang::HangArguments),
    /// Serve metrics of running processes to Prometheus
    ServeMetrics(live::metrics::MetricsArguments),
    /// Answer questions of AI assistants about runs, with the Model Context Protocol
    Mcp(mcp::McpArguments),
    /// Check a program before a run: which CUDA calls would be intercepted, and which would not
    Doctor(doctor::DoctorArguments),
    /// Replay recorded call streams through the step learner (for developers)
    #[command(hide = true)]
    Streams(streams::StreamsArguments),
    /// List the functions that a sym: rule can name
    Symbols(symbols::SymbolsArguments),
    /// Capture iterations 5 to 9 of the bundled example
    Demo(demo::DemoArguments),
    /// Print completions for a shell
    Completions(manual::Completions),
    /// Write the manual pages into a folder (for packages)
    #[command(hide = true)]
    Manual(manual::ManualArguments),
}

fn main() -> ExitCode {
    small_stack::run_with_enough(run_command)
}

fn run_command() -> ExitCode {
    output::survive_size_limits();
    let command = Arguments::command().color(manners::help_colour(std::env::args_os()));
    let mut command = mistyped::prepare(command);
    let matches = command
        .try_get_matches_from_mut(std::env::args_os())
        .unwrap_or_else(|error| mistyped::refuse(&error, &command));
    let arguments = Arguments::from_arg_matches(&matches)
        .unwrap_or_else(|error| mistyped::refuse(&error, &command));
    arguments.manners.heed();
    let result = match mistyped::find_empty_value(&matches, &command) {
        Some(problem) => Err(failure::usage(problem)),
        None => act(&arguments),
    };
    result.unwrap_or_else(|error| {
        output::say(format_args!("{}", failure::text(&error)));
        failure::status(&error)
    })
}

fn act(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match (&arguments.verb, arguments.lib) {
        (Some(verb), false) => perform(verb),
        (None, true) => library::print(),
        (Some(_), true) => Err(failure::usage("--lib: it stands alone (wanted: no verb)")),
        (None, false) => Err(failure::usage(
            "a verb is missing (tllmprof --help lists them)",
        )),
    }
}

fn perform(verb: &Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Env(arguments) => env::run(arguments),
        Verb::Report(arguments) => report::run(arguments),
        Verb::Compare(arguments) => compare::run(arguments),
        Verb::Export(arguments) => export::run(arguments),
        Verb::Ps(arguments) => live::ps::run(arguments),
        Verb::Capture(arguments) => live::capture::run(arguments),
        Verb::Stop(arguments) => live::stop::run(arguments),
        Verb::Attach(arguments) => live::attach::run(arguments),
        Verb::Detach(arguments) => live::detach::run(arguments),
        Verb::Top(arguments) => live::top::run(arguments),
        Verb::Hang(arguments) => hang::run(arguments),
        Verb::ServeMetrics(arguments) => live::metrics::run(arguments),
        Verb::Mcp(arguments) => mcp::run(arguments),
        Verb::Doctor(arguments) => doctor::run(arguments),
        Verb::Streams(arguments) => streams::run(arguments),
        Verb::Symbols(arguments) => symbols::run(arguments),
        Verb::Demo(arguments) => demo::run(arguments),
        Verb::Completions(arguments) => manual::completions(arguments, Arguments::command()),
        Verb::Manual(arguments) => manual::run(arguments, Arguments::command()),
    }
}
