//! The options that every subcommand has: `--color`, `--quiet` and `--verbose`. Also the capabilities of the
//! terminal.

use std::borrow::Cow;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use clap::{Args, ColorChoice, ValueEnum};
use tllmprof_config::error::shown;
use tllmprof_report::Style;

#[derive(Args, Clone, Copy, Default, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Manners {
    /// Use colors in text output; auto uses them on terminals, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Colour::Auto)]
    color: Colour,
    /// Print only errors and warnings: no notes, no log lines of the library, and no summary
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print details: which files are read, what is preloaded, and the debug log of the library
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum Colour {
    #[default]
    Auto,
    Always,
    Never,
}

static MANNERS: OnceLock<Manners> = OnceLock::new();

impl Manners {
    /// Applies these options to the whole process. Only the first call has an effect.
    pub(crate) fn heed(self) {
        let _ = MANNERS.set(self);
    }
}

fn manners() -> Manners {
    MANNERS.get().copied().unwrap_or_default()
}

pub(crate) fn is_quiet() -> bool {
    manners().quiet
}

pub(crate) fn is_verbose() -> bool {
    manners().verbose
}

/// Returns the log level for the preloaded library, if `--quiet` or `--verbose` chooses one. `None` if neither was
/// given.
pub(crate) fn log() -> Option<&'static str> {
    match manners() {
        Manners { quiet: true, .. } => Some("warn"),
        Manners { verbose: true, .. } => Some("debug"),
        _ => None,
    }
}

/// Returns the style of text for a stream (standard output or standard error): with colours or without, and shortened
/// for a terminal or whole for a pipe or file.
pub(crate) fn style(stream: &impl IsTerminal) -> Style {
    let is_terminal = stream.is_terminal();
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
    let base = match is_terminal {
        true => Style::default(),
        false => Style::whole(),
    };
    Style {
        is_coloured: match manners().color {
            Colour::Auto => is_terminal && !is_set("NO_COLOR") && !is_dumb,
            Colour::Always => true,
            Colour::Never => false,
        },
        ..base
    }
}

/// Returns the style of text for standard output.
pub(crate) fn stdout() -> Style {
    style(&io::stdout())
}

/// Returns the colour setting for help texts and for errors of the command line. Help and errors are printed before the
/// command line has been parsed, so this function searches the words of the command line for `--color`.
pub(crate) fn help_colour(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
    let words: Vec<_> = arguments.skip(1).collect();
    let asked = colour_values(&words).find_map(|value| match value.to_str() {
        Some("always") => Some(ColorChoice::Always),
        Some("never") => Some(ColorChoice::Never),
        _ => None,
    });
    asked.unwrap_or(ColorChoice::Auto)
}

const COLOUR: &str = "--color";

/// Returns the error message for an invalid value of `--color`, or `None` if the value is valid. If the user forgot
/// the value, the invalid value may be the subcommand that follows the option.
pub(crate) fn bad_colour(words: &[OsString]) -> Option<String> {
    let names = Colour::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value);
    let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
    let value =
        colour_values(words).find(|value| !names.iter().any(|name| *value == name.as_str()))?;
    let (value, wanted) = (shown(value), names.join(", "));
    Some(format!("{COLOUR} \"{value}\": wanted: {wanted}"))
}

/// Returns the values of `--color` among the words of a command line.
fn colour_values(words: &[OsString]) -> impl Iterator<Item = &OsStr> {
    let own = words.iter().take_while(|word| *word != "--").enumerate();
    own.filter_map(
        |(place, word)| match word.as_bytes().strip_prefix(COLOUR.as_bytes())? {
            [] => words.get(place + 1).map(OsString::as_os_str),
            rest => rest.strip_prefix(b"=").map(OsStr::from_bytes),
        },
    )
}

/// Returns true if the locale's encoding is UTF-8.
fn is_utf8() -> bool {
    static IS_UTF8: OnceLock<bool> = OnceLock::new();
    *IS_UTF8.get_or_init(|| {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"].map(env::var_os);
        let first = set.iter().flatten().find(|value| !value.is_empty());
        first.is_some_and(|locale| names_utf8(locale))
    })
}

fn names_utf8(locale: &OsStr) -> bool {
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Characters that are replaced with other texts if the locale's encoding is not UTF-8. For example `µs` becomes `us`.
const SPELLED: [(char, &str); 6] = [
    ('µ', "u"),
    ('−', "-"),
    ('–', "-"),
    ('…', "..."),
    ('→', "->"),
    ('×', "x"),
];

/// Returns a text in characters that the locale can show. Characters outside `SPELLED`, such as those in names of the
/// program, are left as they are.
pub(crate) fn spelled(text: &str) -> Cow<'_, str> {
    match is_utf8() {
        true => Cow::Borrowed(text),
        false => Cow::Owned(in_ascii(text)),
    }
}

fn in_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match SPELLED.iter().find(|(from, _)| *from == c) {
            Some((_, to)) => out.push_str(to),
            None => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_signs_have_a_spelling_in_ascii() {
        assert_eq!(in_ascii("−1.50 µs → ä…"), "-1.50 us -> ä...");
        assert!(names_utf8(OsStr::new("en_US.UTF-8")) && names_utf8(OsStr::new("C.utf8")));
        assert!(!names_utf8(OsStr::new("C")) && !names_utf8(OsStr::new("de_DE@euro")));
    }

    #[test]
    fn colour_is_found_before_the_command_line_is_parsed() {
        let of = |line: &str| help_colour(line.split(' ').map(OsString::from));
        for (line, choice) in [
            ("tllmprof --color never run --help", ColorChoice::Never),
            ("tllmprof run --color=always --help", ColorChoice::Always),
            ("tllmprof run --color=auto --help", ColorChoice::Auto),
            ("tllmprof run -- ls --color=always", ColorChoice::Auto),
            ("tllmprof run --color", ColorChoice::Auto),
        ] {
            assert_eq!(of(line), choice, "{line}");
        }
    }
}
