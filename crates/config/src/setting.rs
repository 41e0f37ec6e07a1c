//! The rows of the table of settings. Help texts and documentation pages are made from these rows. The library does not
//! contain these texts.

/// One setting: a variable, an option, or both.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Names of the setting's variable, in order of precedence. Empty if the setting has only an option, which the
    /// command reads.
    pub variables: &'static [&'static str],
    pub reader: Reader,
    /// The option of `run` and `env` that sets the variable, such as `--window`. Empty if there is none.
    pub option: &'static str,
    pub value: ValueForm,
    pub heading: Heading,
    /// Help text of the variable and its option: one sentence without a full stop.
    pub help: &'static str,
    /// Further sentences, which follow `help` in the long help and in the table of variables; no full stop at the end.
    pub more: &'static str,
    /// Help text of an option that switches the setting off, in place of `help`; empty for other options.
    pub off: &'static str,
    /// The value that applies if the variable is not set; empty if there is no default.
    pub default: &'static str,
    /// A description of the behaviour if the variable is not set, in place of `default`, for settings whose default
    /// depends on other settings.
    pub otherwise: &'static str,
    /// A description of the behaviour without the option, if that behaviour differs from the behaviour without the
    /// variable.
    pub without: &'static str,
    /// A description of the variable's values, if they differ from the values of the option.
    pub values: &'static str,
    /// A value of the setting other than the default, which tests use.
    pub example: &'static str,
    /// Names of the options that cannot be combined with this option.
    pub conflicts: &'static [&'static str],
    /// Help text of the same option of `attach`; an empty text means that the help is the same. `None` if `attach` does
    /// not have the option.
    pub attach: Option<&'static str>,
}

/// The program that reads a setting's variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    Library,
    Command,
    /// The library or the project's scripts read the variable, and the project itself sets it. Users do not set it.
    Project,
}

/// The form of the values of an option and of its variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueForm {
    /// The variable is 1 or 0. The option takes no value, and sets the variable to the opposite of its default.
    Flag,
    /// A value is required. The text is the name of the value in the help, such as `PATH`.
    Named(&'static str),
    /// Like `Named`, but the value of the option may be left out, which sets the variable to 1.
    Optional(&'static str),
}

/// The topic of a setting. The help and the documentation list settings by topic, in this order.
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
        value: ValueForm::Flag,
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

    /// Returns the name of the variable that takes precedence over the setting's other names. `None` if the setting has
    /// no variable.
    #[must_use]
    pub fn variable(&self) -> Option<&'static str> {
        self.variables.first().copied()
    }

    /// Returns the value to which the option sets the variable if the user types the option without a value.
    #[must_use]
    pub fn switched(&self) -> &'static str {
        match self.default {
            "1" => "0",
            _ => "1",
        }
    }

    /// Returns a description of the variable's values, for the table of variables.
    #[must_use]
    pub fn values(&self) -> String {
        match self.value {
            _ if !self.values.is_empty() => self.values.to_owned(),
            ValueForm::Flag => "0 or 1".to_owned(),
            ValueForm::Named(name) => name.to_owned(),
            ValueForm::Optional(name) => format!("0, 1 or {name}"),
        }
    }

    /// Returns the full description of the setting's variable: the help text and the further sentences.
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
