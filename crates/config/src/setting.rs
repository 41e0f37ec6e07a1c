//! A row of the table of settings, as help texts and pages show it. The library does not link these texts.

/// One setting: a variable, an option, or both.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Names of the variable, in order of precedence; none for an option that only the command reads.
    pub variables: &'static [&'static str],
    pub reader: Reader,
    /// The option of `run` and `env` as it is typed; empty if there is none.
    pub option: &'static str,
    pub value: Value,
    pub heading: Heading,
    /// One sentence, without a full stop.
    pub help: &'static str,
    /// Further sentences.
    pub more: &'static str,
    /// Help of an option that switches the setting off.
    pub off: &'static str,
    /// The value of a variable that is not set.
    pub default: &'static str,
    /// In words, the behaviour if the variable is not set, where it depends on other settings.
    pub otherwise: &'static str,
    /// The behaviour without the option, if it differs from that of a variable that is not set.
    pub without: &'static str,
    /// Values of the variable, if they differ from those of the option.
    pub values: &'static str,
    /// A value other than the default, for tests.
    pub example: &'static str,
    /// Options that cannot be used with this one.
    pub conflicts: &'static [&'static str],
    /// Help of the same option of `attach`, if `attach` has it; if empty, the help is the same.
    pub attach: Option<&'static str>,
}

/// The reader of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    Library,
    Command,
    /// The library or the project's scripts, which also set it. Users do not.
    Project,
}

/// Values of an option and of its variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The variable is 1 or 0. The option has no value and sets the one that is not the default.
    Flag,
    /// A value with this name.
    Named(&'static str),
    /// Same as `Named`, but the option can stand without a value, which sets the variable to 1.
    Optional(&'static str),
}

/// The topic of a setting, in the order of the pages.
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

    /// The variable, by the name that takes precedence.
    #[must_use]
    pub fn variable(&self) -> Option<&'static str> {
        self.variables.first().copied()
    }

    /// The value of the variable that the option sets when it has no value.
    #[must_use]
    pub fn switched(&self) -> &'static str {
        match self.default {
            "1" => "0",
            _ => "1",
        }
    }

    /// Values of the variable, for a table.
    #[must_use]
    pub fn values(&self) -> String {
        match self.value {
            _ if !self.values.is_empty() => self.values.to_owned(),
            Value::Flag => "0 or 1".to_owned(),
            Value::Named(name) => name.to_owned(),
            Value::Optional(name) => format!("0, 1 or {name}"),
        }
    }

    /// The full description of the variable.
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

    /// The short and the long help of the option.
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
