//! What is wrong with a command line, in one line: clap's own text has several, with the usage behind them.

use std::env;
use std::error::Error as _;
use std::ffi::OsStr;

use clap::error::{ContextKind, ErrorKind};
use tllmprof_config::error::shown;

use crate::output;

/// Ends with what is wrong with the command line, or with the help that was asked for.
pub fn refuse(error: &clap::Error) -> ! {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let kind = error.kind();
    if let DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion = kind {
        error.exit();
    }
    output::say(format_args!("{}", line(error)));
    std::process::exit(error.exit_code())
}

fn line(error: &clap::Error) -> String {
    let text = |kind| error.get(kind).map(ToString::to_string);
    let typed = |kind| shown(OsStr::new(&text(kind).unwrap_or_default()));
    let usage = text(ContextKind::Usage).unwrap_or_default();
    let usage = one_line(usage.trim_start_matches("Usage:"));
    let words = usage.split(' ');
    let command: Vec<_> = words
        .take_while(|word| !word.starts_with(['-', '[', '<']))
        .collect();
    let command = command.join(" ");
    let meant = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    let meant = meant.into_iter().find_map(text).or_else(|| {
        // The other tips are about words that begin with a dash.
        let tip = text(ContextKind::Suggested)?;
        Some(tip.strip_suffix("' exists")?.strip_prefix('\'')?.to_owned())
    });
    let meant = meant.map(|names| format!("did you mean {}?", names.replace(", ", " or ")));
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    let option = name(&argument);
    let value = typed(ContextKind::InvalidValue);
    let valid = text(ContextKind::ValidValue).filter(|values| !values.is_empty());

    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let hint = meant.unwrap_or_else(|| "tllmprof --help lists the commands".to_owned());
            let typed = typed(ContextKind::InvalidSubcommand);
            format!("{typed}: there is no such command ({hint})")
        }
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let hint = meant.unwrap_or_else(|| format!("{command} --help lists the options"));
            let typed = typed(ContextKind::InvalidArg);
            format!("{typed}: {command} has no such option ({hint})")
        }
        ErrorKind::UnknownArgument => {
            let typed = typed(ContextKind::InvalidArg);
            format!("{typed}: one argument too many (wanted: {usage})")
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<_> = argument.split(", ").map(name).collect();
            let are = if missing.len() == 1 { "is" } else { "are" };
            let missing = missing.join(" and ");
            let verb = command.trim_start_matches("tllmprof ");
            format!("{verb}: {missing} {are} missing (wanted: {usage})")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            let wanted = valid.unwrap_or_else(|| argument.clone());
            format!("{option}: its value is missing (wanted: {wanted})")
        }
        ErrorKind::InvalidValue => {
            let meant = meant.map_or(String::new(), |meant| format!("; {meant}"));
            let valid = valid.unwrap_or_default();
            format!("{option} \"{value}\": wanted: {valid}{meant}")
        }
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{option} \"{value}\": {why}")
        }
        ErrorKind::TooManyValues => format!("{option} \"{value}\": the option takes no value"),
        ErrorKind::ArgumentConflict => match text(ContextKind::PriorArg).as_deref() {
            Some(prior) if prior == argument => format!("{option} is given twice"),
            Some(prior) if !prior.is_empty() => {
                let others: Vec<_> = prior.split(", ").map(name).collect();
                let others = others.join(" and ");
                format!("{option}: it cannot be used with {others}")
            }
            _ => format!("{option}: it cannot be used with other arguments"),
        },
        ErrorKind::InvalidUtf8 => {
            let typed = env::args_os().find(|word| word.to_str().is_none());
            let typed = shown(&typed.unwrap_or_default());
            format!("\"{typed}\": it is not UTF-8 (wanted: plain text)")
        }
        _ => {
            let text = error.to_string();
            let (what, _) = text.split_once("\n\n").unwrap_or((&text, ""));
            one_line(what.trim_start_matches("error:"))
        }
    }
}

/// What an argument is called, without its value: `--to` of `--to <FORMAT>`, `PID` of `[PID]...`.
fn name(argument: &str) -> &str {
    match argument.starts_with('-') {
        true => argument.split([' ', '[', '=']).next().unwrap_or(argument),
        false => argument.trim_matches(['<', '>', '[', ']', '.']),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
