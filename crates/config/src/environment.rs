//! The macro [`settings!`], which turns the table of settings into code: the parts that read variables, and the texts.

use std::ffi::{OsStr, OsString};

use crate::error::{BadValue, Problem, text};
use crate::flag;

/// The environment: returns the value of a variable.
pub(crate) struct Environment<'a> {
    pub get: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A parser of one row's values. `Text` is [`str`] or [`OsStr`]; it keeps the implementations for the two kinds of
/// functions apart.
pub(crate) trait Parse<Text: ?Sized, T> {
    /// If true, a blank value is parsed; otherwise the variable counts as not set.
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

/// The parser of flags. A flag that is set to an empty value is off, whatever its default.
pub(crate) struct Flag;

impl Parse<bool, bool> for Flag {
    const TAKES_BLANK: bool = true;

    fn parse(&self, value: &OsStr) -> Result<bool, Problem> {
        flag::parse(text(value)?)
    }
}

/// Same as [`Flag`], for flags that can be `auto`.
pub(crate) struct FlagOrAuto;

impl Parse<bool, bool> for FlagOrAuto {
    const TAKES_BLANK: bool = true;

    fn parse(&self, value: &OsStr) -> Result<bool, Problem> {
        flag::parse_or_auto(text(value)?)
    }
}

impl Environment<'_> {
    /// Parses the value of the first of these names that is set; `names` are separated by blanks.
    pub fn read<Text: ?Sized, T, P: Parse<Text, T>>(
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

    /// Returns the given value, or parses the default.
    pub fn or_default<Text: ?Sized, T, P: Parse<Text, T>>(
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

    /// Returns the variables whose value is `auto`.
    pub fn auto_ones<const N: usize>(&self, names: [&'static str; N]) -> Vec<&'static str> {
        let is_auto = |name: &&'static str| {
            let value = (self.get)(name);
            value.is_some_and(|value| value.to_str().is_some_and(flag::is_auto))
        };
        names.into_iter().filter(is_auto).collect()
    }

    /// Returns whether the variable is set to more than blanks.
    pub fn has(&self, name: &'static str) -> bool {
        self.find(name, false).is_some()
    }

    /// The first of these names that is set, and its value.
    pub fn find(&self, names: &'static str, takes_blank: bool) -> Option<(&'static str, OsString)> {
        names.split_ascii_whitespace().find_map(|name| {
            let value = (self.get)(name)?;
            let is_blank = value.as_encoded_bytes().trim_ascii().is_empty();
            (takes_blank || !is_blank).then_some((name, value))
        })
    }

    /// Returns the value, or the problem as an error of the variable.
    pub fn checked<T>(
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

/// Makes [`Settings`](crate::Settings) and the texts from a table. A row is:
///
/// ```text
/// field: Type = ["VARIABLE", "ITS_OTHER_NAME"], parser, default "value", settle expression => "--option" { help: "…", more of Setting }
/// ```
///
/// All variables are parsed first: then `field` is an `Option` of the parser's result. After that, row by row, the
/// default replaces a missing value, and the `settle` expression makes the field of `Type`. That expression can use
/// the fields of the rows above, and the parsed values of the rows below. A row `field = ["VARIABLE"] => {…}` belongs
/// to the command only, and so does `field => {…}`, which has no variable.
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
        /// The values of the variables, with a default for each that is not set.
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

        /// The names of each variable, separated by blanks.
        #[allow(non_upper_case_globals)]
        pub mod variable {
            $($(pub const $field: &str = concat!($first $(, " ", $name)*);)?)*
            $($(pub const $field: &str = concat!($($own),+);)?)*
        }

        /// Names of the library's variables, and of the others, each followed by a blank. One text needs no
        /// relocations.
        const NAMES: &str = concat!($($($first, " ", $($name, " ",)*)?)*);
        const OTHER_NAMES: &str = concat!($($($($own, " ",)+)?)*);
        /// The first name of each variable of the library and its option, with `=` between them.
        const OPTIONS: &str = concat!($($($first,)? "=", $($option,)? " ",)*);

        /// Every setting, for help texts, pages and tests.
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
