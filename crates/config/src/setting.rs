//! The descriptive part of a row in the table of settings, for help texts and documentation pages. The
//! library is linked without these texts.

/// One setting: a variable, an option, or both.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Names of the variable, in order of precedence. Empty for an option that only the command reads.
    pub variables: &'static [&'static str],
    pub reader: Reader,
    /// The option of `run` and `env`, such as `--window`. Empty if there is none.
    pub option: &'static str,
    pub value: Value,
    pub heading: Heading,
    /// Help text of one sentence, without a full stop.
    pub help: &'static str,
    /// Further sentences for the long help text.
    pub more: &'static str,
    /// Help text of an option that switches the setting off. Empty for other options.
    pub off: &'static str,
    /// Value of the setting if its variable is not set.
    pub default: &'static str,
    /// A description of the behaviour if the variable is not set, for cases in which it depends on other
    /// settings.
    pub otherwise: &'static str,
    /// A description of the behaviour if the option is not given, if that differs from the behaviour if the
    /// variable is not set.
    pub without: &'static str,
    /// A description of the variable's values, if they differ from those of the option.
    pub values: &'static str,
    /// A value other than the default, which tests use.
    pub example: &'static str,
    /// Options that cannot be combined with this one.
    pub conflicts: &'static [&'static str],
    /// Help text of the same option of `attach`. `None` if `attach` does not have the option; empty if the
    /// help is the same.
    pub attach: Option<&'static str>,
}

/// The program that reads a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    Library,
    Command,
    /// The library or the project's scripts. They also set the variable; users do not.
    Project,
}

/// The form of an option's value and of its variable's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A flag. The variable is 1 or 0. The option has no value, and sets the variable to the value that is
    /// not the default.
    Flag,
    /// A value, which help texts show by this name.
    Named(&'static str),
    /// A value like `Named`, but the option can also be given without it, which sets the variable to 1.
    Optional(&'static str),
}

/// The topic of a setting. Documentation pages list topics in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Heading {
    Iterations,
    Contents,
    Record,
    Process,
}

impl Heading {
    pub const ALL: [Self; 4] = [
        Self::Iterations,
        Self::Contents,
        Self::Record,
        Self::Process,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iterations => "Iterations and windows",
            Self::Contents => "What is recorded",
            Self::Record => "The record",
            Self::Process => "The process",
        }
    }
}

impl Setting {
    pub(crate) const NONE: Self = Self {
        variables: &[],
        reader: Reader::Command,
        option: "",
        value: Value::Flag,
        heading: Heading::Process,
        help: "",
        more: "",
        off: "",
        default: "",
        otherwise: "",
        without: "",
        values: "",
        example: "",
        conflicts: &[],
        attach: None,
    };

    /// Returns the name of the variable that takes precedence. `None` if there is no variable.
    #[must_use]
    pub fn variable(&self) -> Option<&'static str> {
        self.variables.first().copied()
    }

    /// Returns the value to which the option sets the variable if the option is given without a value.
    #[must_use]
    pub fn switched(&self) -> &'static str {
        match self.default {
            "1" => "0",
            _ => "1",
        }
    }

    /// Returns a description of the variable's values, for a table.
    #[must_use]
    pub fn values(&self) -> String {
        match self.value {
            _ if !self.values.is_empty() => self.values.to_owned(),
            Value::Flag => "0 or 1".to_owned(),
            Value::Named(name) => name.to_owned(),
            Value::Optional(name) => format!("0, 1 or {name}"),
        }
    }

    /// Returns the full description of the variable.
    #[must_use]
    pub fn text(&self) -> String {
        self.sentences(self.help)
    }

    fn sentences(&self, help: &str) -> String {
        match self.more {
            "" => help.to_owned(),
            more => format!("{help}. {more}"),
        }
    }

    /// Returns the short and the long help text of the option.
    #[must_use]
    pub fn option_help(&self) -> (String, String) {
        if !self.off.is_empty() {
            return (self.off.to_owned(), self.sentences(self.off));
        }
        let default = [self.without, self.otherwise, self.default];
        let default = match default.into_iter().find(|default| !default.is_empty()) {
            None | Some("0") => String::new(),
            Some(default) => format!(" [default: {default}]"),
        };
        (
            format!("{}{default}", self.help),
            format!("{}{default}", self.text()),
        )
    }
}
