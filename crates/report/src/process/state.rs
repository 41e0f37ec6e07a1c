//! Whether a record is as it was written.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::Ended;

use crate::process::Process;

/// What became of a record. Text, JSON, page, exports and exit statuses go by this alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All that was written is there, to the end of its process.
    Whole,
    /// Its process was killed, or still runs: what is there is what was written until then.
    Unfinished,
    /// Something was changed or is missing: `damage` says what.
    Damaged,
}

impl State {
    /// A word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Unfinished => "unfinished",
            Self::Damaged => "damaged",
        }
    }
}

impl Process {
    /// What became of its record.
    #[must_use]
    pub fn state(&self) -> State {
        if !self.damage.is_none() {
            State::Damaged
        } else if self.ended == Some(Ended::Not) {
            State::Unfinished
        } else {
            State::Whole
        }
    }

    /// What is to be said of that; `None` of a record that is whole.
    #[must_use]
    pub fn condition(&self) -> Option<String> {
        match self.state() {
            State::Whole => None,
            State::Unfinished => {
                Some("unfinished: its process was killed or still runs".to_owned())
            }
            State::Damaged => Some(format!("damaged: {}", self.damage)),
        }
    }

    /// Why there are no figures of iterations, in words; `None`: there are some.
    #[must_use]
    pub fn nothing(&self) -> Option<&'static str> {
        match (&self.sum, self.unqualified.is_empty(), self.state()) {
            (Some(_), ..) => None,
            (None, false, _) => Some("no iteration counts"),
            (None, true, State::Damaged) => Some("no iteration is left of a damaged record"),
            (None, true, _) => Some("no iteration was recorded"),
        }
    }
}
