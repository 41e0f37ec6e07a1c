//! Whether a record is as it was written.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Damage, Ended};

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

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ended")]
pub enum End {
    /// Its end was not seen: it was killed, or still runs.
    #[serde(rename = "not")]
    Not,
    /// By a normal exit.
    #[serde(rename = "in order")]
    InOrder,
    /// By `_exit` or the like.
    #[serde(rename = "at once")]
    AtOnce,
    /// Not known.
    #[default]
    #[serde(rename = "?")]
    Unknown,
}

impl From<Option<Ended>> for End {
    fn from(ended: Option<Ended>) -> Self {
        match ended {
            Some(Ended::Not) => Self::Not,
            Some(Ended::InOrder) => Self::InOrder,
            Some(Ended::AtOnce) => Self::AtOnce,
            None => Self::Unknown,
        }
    }
}

/// What became of a process and of its record, and what the record lacks.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RecordState {
    /// How the process ended.
    pub ended: End,
    /// For how long the record's clock was compared with `CLOCK_MONOTONIC`, where that was too short for exact
    /// durations; `null`: durations are exact.
    #[serde(rename = "clock_tied_ns")]
    pub tied_briefly: Option<u64>,
    /// What to add to a moment to get nanoseconds since 1970.
    #[serde(rename = "unix_minus_monotonic_ns")]
    pub unix_minus_monotonic: i64,
    /// Events that the record holds.
    #[schemars(extend("unit" = "events"))]
    pub events: u64,
    /// Events, other than kernels, that are missing: the record was full, or a later iteration had begun already.
    #[schemars(extend("unit" = "events"))]
    pub dropped: u64,
    /// Iterations of windows among those: others had begun when they would have been written.
    #[serde(skip)]
    pub passed: u64,
    /// Older windows that are not in the record any more: they made room for later ones (`--keep`).
    #[schemars(extend("unit" = "windows"))]
    pub windows_dropped: u64,
    /// How many bytes the record could take.
    #[serde(skip)]
    pub keep: u64,
    /// What the recorder itself took from the program's threads inside windows.
    #[serde(rename = "own_cost_ns")]
    pub own_cost: u64,
    /// GPU times of iterations that could not be read.
    #[serde(rename = "gpu_times_lost")]
    pub gpu_lost: u64,
    /// What became of the record.
    pub state: State,
    /// What was changed or is missing; `null` unless the record is damaged.
    #[serde(serialize_with = "write_damage")]
    #[schemars(with = "Option<String>")]
    pub damage: Damage,
    /// Things that were too many for this report, such as different names.
    pub left_out: u64,
}

fn write_damage<S: Serializer>(damage: &Damage, serializer: S) -> Result<S::Ok, S::Error> {
    (!damage.is_none())
        .then(|| damage.to_string())
        .serialize(serializer)
}

impl State {
    /// What became of a record whose process ended so.
    pub fn of(damage: &Damage, ended: End) -> Self {
        match ended {
            _ if !damage.is_none() => Self::Damaged,
            End::Not => Self::Unfinished,
            End::InOrder | End::AtOnce | End::Unknown => Self::Whole,
        }
    }
}

impl Process {
    /// What became of its record.
    #[must_use]
    pub const fn state(&self) -> State {
        self.record.state
    }

    /// What is to be said of that; `None` of a record that is whole.
    #[must_use]
    pub fn condition(&self) -> Option<String> {
        match self.state() {
            State::Whole => None,
            State::Unfinished => {
                Some("unfinished: its process was killed or still runs".to_owned())
            }
            State::Damaged => Some(format!("damaged: {}", self.record.damage)),
        }
    }

    /// Why there are no figures of iterations, in words; `None`: there are some.
    #[must_use]
    pub fn nothing(&self) -> Option<&'static str> {
        match (&self.sum, self.others.unqualified.is_empty(), self.state()) {
            (Some(_), ..) => None,
            (None, false, _) => Some("no iteration counts"),
            (None, true, State::Damaged) => Some("no iteration is left of a damaged record"),
            (None, true, _) => Some("no iteration was recorded"),
        }
    }
}
