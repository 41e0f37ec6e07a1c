//! Reports errors of the command line in one line each. The messages of clap, the parser of the command line, are not
//! used, because they have several lines and repeat the usage.

use std::env;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use tllmprof_config::error::shown;

use crate::failure::worded;
use crate::{manners, output};

/// The names that help texts use for values that are numbers or times. Users may type such values with a minus sign.
const NUMBERS: [&str; 6] = ["N", "W", "LIST", "PERCENT", "SIZE", "TIME"];
/// The names that help texts use for values that are paths.
const PATHS: [&str; 6] = ["BINARY", "DIR", "FILE", "OUT", "PATH", "RECORD"];
/// The name that help texts use for values that may be empty. An empty value means that there are no arguments.
const MAY_BE_EMPTY: &str = "ARGS";

/// Lets options with numbers accept values that begin with a minus sign. Otherwise clap would take such a value for an
/// option, and the error message would not name the real mistake.
pub(crate) fn prepare(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let is_number = NUMBERS.contains(&value_name(&argument).as_str());
        match is_number && !argument.is_positional() && !argument.is_require_equals_set() {
            true => argument.allow_hyphen_values(true),
            false => argument,
        }
    });
    command.mut_subcommands(prepare)
}

fn value_name(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.first().map(ToString::to_string).unwrap_or_default()
}

/// Returns the error message about the first option or argument with an empty value. Returns `None` if there is none.
/// A value may be empty because it came from a shell variable that is not set.
pub(crate) fn find_empty_value(matches: &ArgMatches, command: &Command) -> Option<String> {
    let problem = command.get_arguments().find_map(|argument| {
        let id = argument.get_id().as_str();
        let is_typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        let wanted = value_name(argument);
        if !is_typed || wanted == MAY_BE_EMPTY || !argument.get_action().takes_values() {
            return None;
        }
        // The program that the user wants to run must have a name that is not empty, but its arguments may be empty.
        let values = matches.get_raw(id)?;
        let count = if argument.is_trailing_var_arg_set() {
            1
        } else {
            usize::MAX
        };
        let is_blank = |value: &OsStr| match argument.is_positional() {
            true => value.is_empty(),
            false => value.as_bytes().trim_ascii().is_empty(),
        };
        let value = values.take(count).find(|value| is_blank(value))?;
        let name = argument
            .get_long()
            .map_or(wanted.clone(), |long| format!("--{long}"));
        Some(describe_empty(&name, value, &wanted))
    });
    problem.or_else(|| {
        let (name, matches) = matches.subcommand()?;
        find_empty_value(matches, command.find_subcommand(name)?)
    })
}

fn describe_empty(name: &str, value: &OsStr, wanted: &str) -> String {
    let what = if PATHS.contains(&wanted) {
        "path"
    } else {
        "value"
    };
    let value = shown(value);
    format!("{name} \"{value}\": an empty {what} (wanted: {wanted})")
}

/// Prints the error of the command line, or the help or version that the user requested. Then ends the process.
pub(crate) fn refuse(error: &clap::Error, command: &Command) -> ! {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let kind = error.kind();
    if let DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion = kind {
        if !error.use_stderr() {
            let printed = output::stdout().and_then(|_| error.print());
            match printed.and_then(|()| io::stdout().flush()) {
                Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => {
                    output::say(format_args!("{}", worded(&problem.to_string())));
                    std::process::exit(1);
                }
                _ => std::process::exit(0),
            }
        }
        error.exit();
    }
    let words: Vec<_> = env::args_os().skip(1).collect();
    output::say(format_args!("{}", describe(error, command, &words)));
    std::process::exit(error.exit_code())
}

/// Returns one line that describes the error that clap found in `words`, the words of the command line.
pub(crate) fn describe(error: &clap::Error, command: &Command, words: &[OsString]) -> String {
    in_context(error, command, words).unwrap_or_else(|| line(error))
}

/// Returns the message for an error whose cause shows only in `words`, the words of the command line: a bad value of
/// `--color`, an empty value, a value that is not UTF-8, or a value that begins with a dash and a digit. Returns `None`
/// for other errors.
fn in_context(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => manners::bad_colour(words),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
            let argument = text(ContextKind::InvalidArg);
            let name = name(&argument);
            let is_empty = |word: &OsString| {
                word.is_empty()
                    || word.to_str().and_then(|word| word.strip_suffix('=')) == Some(name)
            };
            let is_typed = text(ContextKind::InvalidValue).is_empty() && words.iter().any(is_empty);
            let wanted = argument.split(['<', '>']).nth(1).unwrap_or(name);
            is_typed.then(|| describe_empty(name, OsStr::new(""), wanted))
        }
        ErrorKind::InvalidUtf8 => {
            let place = words.iter().position(|word| word.to_str().is_none())?;
            let (option, value) = match with_equals(&words[place]) {
                Some(both) => both,
                None => (
                    option_before(words, place, command)?,
                    words[place].as_os_str(),
                ),
            };
            let value = shown(value);
            Some(format!(
                "{option} \"{value}\": it is not UTF-8 (wanted: plain text)"
            ))
        }
        ErrorKind::UnknownArgument => {
            let typed = error.get(ContextKind::InvalidArg)?.to_string();
            let digit = typed.as_bytes().get(1).filter(|_| typed.starts_with('-'))?;
            let place = words
                .iter()
                .position(|word| word.as_bytes().starts_with(typed.as_bytes()))?;
            let option = option_before(words, place, command).filter(|_| digit.is_ascii_digit())?;
            let value = shown(&words[place]);
            Some(format!(
                "{option} \"{value}\": it begins with a dash (wanted: {option}={value} if it is meant)"
            ))
        }
        _ => None,
    }
}

/// Splits a word such as `--option=value` into the option and the value.
fn with_equals(word: &OsStr) -> Option<(String, &OsStr)> {
    let at = word.as_bytes().iter().position(|byte| *byte == b'=')?;
    let (option, value) = word.as_bytes().split_at(at);
    let option = str::from_utf8(option).ok()?;
    option
        .starts_with("--")
        .then(|| (option.to_owned(), OsStr::from_bytes(&value[1..])))
}

/// Returns the option before the word at `place`, if that option takes a value as a separate word.
fn option_before(words: &[OsString], place: usize, command: &Command) -> Option<String> {
    let option = words.get(place.checked_sub(1)?)?.to_str()?;
    let long = option.strip_prefix("--")?;
    let verb = words.iter().find_map(|word| command.find_subcommand(word));
    let takes_value = |argument: &&Arg| {
        argument.get_long() == Some(long)
            && argument.get_action().takes_values()
            && !argument.is_require_equals_set()
    };
    let mut arguments = verb.unwrap_or(command).get_arguments();
    arguments.find(takes_value).map(|_| option.to_owned())
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
        // Of clap's other suggestions only the one in the form `'SUBCOMMAND OPTION' exists` is used. The others are
        // about values that begin with a dash.
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
        ErrorKind::ArgumentConflict => conflict(error, &argument),
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

/// Returns the message about an argument that is given twice, or that is given together with arguments that exclude it.
fn conflict(error: &clap::Error, argument: &str) -> String {
    let option = name(argument);
    let prior = error.get(ContextKind::PriorArg).map(ToString::to_string);
    match prior.as_deref() {
        Some(prior) if prior == argument => format!("{option} is given twice"),
        Some(prior) if !prior.is_empty() => {
            let others: Vec<_> = prior.split(", ").map(name).collect();
            let others = others.join(" and ");
            format!("{option}: it cannot be used with {others}")
        }
        _ => format!("{option}: it cannot be used with other arguments"),
    }
}

/// Returns the name of an argument without its value: `--to` for `--to <FORMAT>`, `PID` for `[PID]...`.
fn name(argument: &str) -> &str {
    match argument.starts_with('-') {
        true => argument.split([' ', '[', '=']).next().unwrap_or(argument),
        false => argument.trim_matches(['<', '>', '[', ']', '.']),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
