//! How the rows of the table become code: [`settings!`] makes the library's part of them, which reads variables, and
//! the texts.

use std::ffi::{OsStr, OsString};

use crate::error::{BadValue, Problem, text};
use crate::flag;

/// Variables and their values.
pub(crate) struct Environment<'a> {
    pub get: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A parser of one row's values: `Text` is [`str`] or [`OsStr`], which tell functions of the one from those of the other.
pub(crate) trait Parse<Text: ?Sized, T> {
    /// A value of nothing but blanks counts; else it is as if the variable were not set.
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

/// The parser of flags. Set to nothing a flag is off, whatever its default.
pub(crate) struct Flag;

impl Parse<bool, bool> for Flag {
    const TAKES_BLANK: bool = true;

    fn parse(&self, value: &OsStr) -> Result<bool, Problem> {
        flag::parse(text(value)?)
    }
}

impl Environment<'_> {
    /// The value of the first of these names, which blanks separate, that is set.
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

    /// The value that was given, else the default.
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

    /// Whether the variable is set, and not just to blanks.
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

    /// The value, unless something else rules it out.
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

/// Makes [`Settings`](crate::Settings) and the texts of a table. A row is
///
/// ```text
/// field: Type = ["VARIABLE", "ITS_OTHER_NAME"], parser, default "value", settle expression => { help: "…", more of Setting }
/// ```
///
/// All variables are parsed first: then `field` is an `Option` of what the parser makes. After that, row by row, the
/// default takes the place of what is not set, and the expression makes the field of `Type` from it; for that it may use
/// the fields of rows above, and what was parsed for the rows below. A row `field = ["VARIABLE"] => {…}` is of the
/// command alone, as is `field => {…}`, which has no variable.
macro_rules! settings {
    (
        table($env:ident) {$(
            $field:ident
            $(= [$($own:literal),+])?
            $(: $type:ty = [$first:literal $(, $name:literal)*], $parse:expr $(, default $default:literal)? $(, settle $settle:expr)?)?
            => { help: $help:literal $(, $key:ident: $value:expr)* $(,)? }
        )*}
        derived { $($(#[$doc:meta])* $derived:ident: $derived_type:ty = $derivation:expr;)* }
    ) => {
        /// What the variables say, with a default for each that is not set.
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

        /// The names of each variable, with a blank between them.
        #[allow(non_upper_case_globals)]
        pub mod variable {
            $($(pub const $field: &str = concat!($first $(, " ", $name)*);)?)*
            $($(pub const $field: &str = concat!($($own),+);)?)*
        }

        /// Names of the library's variables, and of the others, each with a blank behind it: one text has no relocations.
        const NAMES: &str = concat!($($($first, " ", $($name, " ",)*)?)*);
        const OTHER_NAMES: &str = concat!($($($($own, " ",)+)?)*);

        /// Every setting, for help texts, pages and tests.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            $(variables: &[$first $(, $name)*], reader: Reader::Library, $(default: $default,)?)?
            $(variables: &[$($own),+],)?
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
