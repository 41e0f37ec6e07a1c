//! The macro [`settings!`], which turns the table of settings into code: a struct that is read from environment
//! variables, and the texts about each setting.

use std::ffi::{OsStr, OsString};

use crate::error::{BadValue, Problem, text};
use crate::flag;

/// The source of the settings: a function that returns the value of an environment variable.
pub(crate) struct Environment<'a> {
    pub get: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A parser for the values of one row of the table of settings. `Text` is the argument type of the parsing function,
/// [`str`] or [`OsStr`]. It is a type parameter so that functions with either argument type can implement this trait.
pub(crate) trait Parse<Text: ?Sized, T> {
    /// If true, a blank value is parsed. Otherwise a variable with a blank value counts as not set.
    const TAKES_BLANK: bool = false;

    fn parse(&self, value: &OsStr) -> Result<T, Problem>;
}

impl<T, F: Fn(&str) -> Result<T, Problem>> Parse<str, T> for F {
    fn parse(&self, value: &OsStr) -> Result<T, Problem> {
        self(text(value)?)
    }
}

impl<T, F: Fn(&OsStr) -> Result<T, Problem>> Parse<OsStr, T> for F {
    fn parse(&self, value: &OsStr) -> Result<T, Problem> {
        self(value)
    }
}

/// The parser for flags. A flag with an empty value is off, whatever its default is.
pub(crate) struct Flag;

impl Parse<bool, bool> for Flag {
    const TAKES_BLANK: bool = true;

    fn parse(&self, value: &OsStr) -> Result<bool, Problem> {
        flag::parse(text(value)?)
    }
}

/// The parser for flags that can also be `auto`. An empty value means off, as with [`Flag`].
pub(crate) struct FlagOrAuto;

impl Parse<bool, bool> for FlagOrAuto {
    const TAKES_BLANK: bool = true;

    fn parse(&self, value: &OsStr) -> Result<bool, Problem> {
        flag::parse_or_auto(text(value)?)
    }
}

impl Environment<'_> {
    /// Parses the value of a variable that has several names. `names` holds these names, separated by blanks. If
    /// several of them are set, the first one is used. Returns `None` if none is set.
    pub(crate) fn read<Text: ?Sized, T, P: Parse<Text, T>>(
        &self,
        names: &'static str,
        parse: &P,
    ) -> Result<Option<T>, BadValue> {
        match self.find(names, P::TAKES_BLANK) {
            None => Ok(None),
            Some((name, value)) => match parse.parse(&value) {
                Ok(value) => Ok(Some(value)),
                Err(problem) => Err(problem.in_variable(name, &value)),
            },
        }
    }

    /// Returns `given`, the parsed value of a setting. If it is `None`, parses the default of the setting instead.
    pub(crate) fn or_default<Text: ?Sized, T, P: Parse<Text, T>>(
        &self,
        given: Option<T>,
        names: &'static str,
        default: &str,
        parse: &P,
    ) -> Result<T, BadValue> {
        let default = OsStr::new(default);
        match given {
            Some(value) => Ok(value),
            None => parse
                .parse(default)
                .map_err(|problem| problem.in_variable(names, default)),
        }
    }

    /// Returns the variables of `names` whose value in the environment is `auto`.
    pub(crate) fn auto_ones<const N: usize>(&self, names: [&'static str; N]) -> Vec<&'static str> {
        let is_auto = |name: &&'static str| {
            let value = (self.get)(name);
            value.is_some_and(|value| value.to_str().is_some_and(flag::is_auto))
        };
        names.into_iter().filter(is_auto).collect()
    }

    /// Returns true if the variable `name` is set to a value that is not blank.
    pub(crate) fn has(&self, name: &'static str) -> bool {
        self.find(name, false).is_some()
    }

    /// Returns the first of `names` that is set in the environment, and its value. `names` are separated by blanks. A
    /// variable with a blank value counts as set only if `takes_blank` is true.
    pub(crate) fn find(
        &self,
        names: &'static str,
        takes_blank: bool,
    ) -> Option<(&'static str, OsString)> {
        names.split_ascii_whitespace().find_map(|name| {
            let value = (self.get)(name)?;
            let is_blank = value.as_encoded_bytes().trim_ascii().is_empty();
            (takes_blank || !is_blank).then_some((name, value))
        })
    }

    /// Returns `checked`. If it is an error, adds the name and the value of the variable `name` to the error.
    pub(crate) fn checked<T>(
        &self,
        name: &'static str,
        checked: Result<T, Problem>,
    ) -> Result<T, BadValue> {
        checked.map_err(|problem| {
            let value = (self.get)(name).unwrap_or_default();
            problem.in_variable(name, &value)
        })
    }
}

/// Defines [`Settings`](crate::Settings), and the texts about them, by a table. A row has this form:
///
/// ```text
/// field: Type = ["VARIABLE", "ITS_OTHER_NAME"], parser, default "value", settle expression => "--option" { help:
/// "…", more of Setting }
/// ```
///
/// First, all variables are parsed. The parsed value of `field` is an `Option`, which is `None` if the variable is not
/// set. Then the final value of type `Type` is computed, row by row: the default replaces a missing value, and the
/// `settle` expression, if the row has one, computes the final value. This expression can use the value of its
/// own row, the final values of the rows above, and the parsed values of the rows below.
///
/// The library does not read the variable of a row `field = ["VARIABLE"] => {…}`. The `tllmprof` command, a script of
/// the project or a child process does. A row `field => {…}` has an option but no variable.
macro_rules! settings {
    (
        table($env:ident) {$(
            $field:ident
            $(= [$($own:literal),+])?
            $(: $type:ty = [$first:literal $(, $name:literal)*], $parse:expr $(, default $default:literal)? $(, settle $settle:expr)?)?
            => $($option:literal)? { help: $help:literal $(, $key:ident: $value:expr)* $(,)? }
        )*}
        derived { $($(#[$doc:meta])* $derived:ident: $derived_type:ty = $derivation:expr;)* }
    ) => {
        /// The settings: the values of all environment variables that the library reads, with a default for each
        /// variable that is not set.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $($(#[doc = $help] pub $field: $type,)?)*
            $($(#[$doc])* pub $derived: $derived_type,)*
        }

        impl Settings {
            fn read($env: &Environment<'_>) -> Result<Self, BadValue> {
                $($(let $field = $env.read(variable::$field, &$parse)?;)?)*
                $($(let $field: $type = settled!(
                    $env, $field, $parse, [$($default)?] [$($settle)?]
                );)?)*
                $(let $derived: $derived_type = $derivation;)*
                Ok(Self { $($($field: <$type as From<$type>>::from($field),)?)* $($derived,)* })
            }
        }

        /// The names of each setting's variable, separated by blanks.
        #[allow(non_upper_case_globals)]
        pub mod variable {
            $($(pub const $field: &str = concat!($first $(, " ", $name)*);)?)*
            $($(pub const $field: &str = concat!($($own),+);)?)*
        }

        /// Names of the variables that the library reads, each followed by a blank. They are a single text, because a
        /// table of texts would contain pointers, which the dynamic linker would have to relocate when it loads the
        /// library. `OTHER_NAMES` contains the variables that the `tllmprof` command, the project's scripts or child
        /// processes read.
        const NAMES: &str = concat!($($($first, " ", $($name, " ",)*)?)*);
        const OTHER_NAMES: &str = concat!($($($($own, " ",)+)?)*);
        /// For each row of the table: the first name of the variable that the library reads, `=`, and the option. If
        /// a row has no such variable or no option, the text before or after `=` is empty.
        const OPTIONS: &str = concat!($($($first,)? "=", $($option,)? " ",)*);

        /// All rows of the table of settings, for help texts, documentation pages and tests.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            $(variables: &[$first $(, $name)*], reader: Reader::Library, $(default: $default,)?)?
            $(variables: &[$($own),+],)?
            $(option: $option,)?
            help: $help,
            $($key: $value,)*
            ..Setting::NONE
        }),*];
    };
}

macro_rules! settled {
    ($env:ident, $field:ident, $parse:expr, [] []) => {
        $field
    };
    ($env:ident, $field:ident, $parse:expr, [] [$settle:expr]) => {
        $settle
    };
    ($env:ident, $field:ident, $parse:expr, [$default:literal] []) => {
        $env.or_default($field, variable::$field, $default, &$parse)?
    };
    ($env:ident, $field:ident, $parse:expr, [$default:literal] [$settle:expr]) => {{
        let $field = $env.or_default($field, variable::$field, $default, &$parse)?;
        $settle
    }};
}

pub(crate) use {settings, settled};
