//! The state of a record: whole, unfinished or damaged.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Damage, Ended};

use crate::process::Process;

/// The state of a record: whole, unfinished or damaged. All outputs and exit statuses of tllmprof use this value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The record is complete, up to the end of its process.
    Whole,
    /// The process was killed or is still running. The record has the data that were written until then.
    Unfinished,
    /// A part of the record was changed or is missing. `damage` describes it.
    Damaged,
}

impl State {
    /// Returns the state as a word for text and exports, such as `whole`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Unfinished => "unfinished",
            Self::Damaged => "damaged",
        }
    }
}

/// The way in which a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ended")]
pub enum End {
    /// The record does not contain the end: the process was killed or is still running.
    #[serde(rename = "not")]
    Not,
    /// The process exited normally.
    #[serde(rename = "in order")]
    InOrder,
    /// The process exited by `_exit` or a similar call, without running its exit handlers.
    #[serde(rename = "at once")]
    AtOnce,
    /// The way in which the process ended is not known.
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

/// The state of a process and of its record, and the data that are missing in the record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RecordState {
    /// The way in which the process ended.
    pub ended: End,
    /// The time over which the record's clock was compared with `CLOCK_MONOTONIC`, if this time was too short for
    /// exact durations; `null` if durations are exact.
    #[serde(rename = "clock_tied_ns")]
    pub tied_briefly: Option<u64>,
    /// The value to add to a time of this process to get nanoseconds since 1970 (Unix time).
    #[serde(rename = "unix_minus_monotonic_ns")]
    pub unix_minus_monotonic: i64,
    /// The number of events in the record.
    #[schemars(extend("unit" = "events"))]
    pub events: u64,
    /// The number of events, other than kernels, that are missing. They were dropped because the record was full,
    /// because a later iteration began before they could be written, or because a trace of another profiler does not
    /// say what they are.
    #[schemars(extend("unit" = "events"))]
    pub dropped: u64,
    /// Number of iterations of windows among the `dropped` events. They are missing because a later iteration began
    /// before they could be written.
    #[serde(skip)]
    pub passed: u64,
    /// Number of iterations among the `dropped` events that are missing in windows which were not closed. The process
    /// ended before they could be written, or they were dropped.
    #[serde(skip)]
    pub missing: u64,
    /// Number of windows that opened in the process.
    #[serde(skip)]
    pub windows_opened: u64,
    /// The number of windows that later windows overwrote, because the record has a limited size (`--keep`).
    #[schemars(extend("unit" = "windows"))]
    pub windows_dropped: u64,
    /// Maximum size of the record in bytes.
    #[serde(skip)]
    pub keep: u64,
    /// The time inside windows that tllmprof's recorder itself took on the program's threads.
    #[serde(rename = "own_cost_ns")]
    pub own_cost: u64,
    /// The number of GPU times that could not be read. Each is the time of the work of one stream in one iteration.
    #[serde(rename = "gpu_times_lost")]
    pub gpu_lost: u64,
    /// The state of the record: whole, unfinished or damaged.
    pub state: State,
    /// A description of the data that were changed or are missing; `null` unless the record is damaged.
    #[serde(serialize_with = "write_damage")]
    #[schemars(with = "Option<String>")]
    pub damage: Damage,
    /// The number of items that this report leaves out because it reached a limit, such as its limit on different
    /// names.
    pub left_out: u64,
}

fn write_damage<S: Serializer>(damage: &Damage, serializer: S) -> Result<S::Ok, S::Error> {
    (!damage.is_none())
        .then(|| damage.to_string())
        .serialize(serializer)
}

impl State {
    /// Returns the state of a record. `damage` is the damage found while it was read, and `ended`
    /// says how its process ended.
    pub fn judge(damage: &Damage, ended: End) -> Self {
        match ended {
            _ if !damage.is_none() => Self::Damaged,
            End::Not => Self::Unfinished,
            End::InOrder | End::AtOnce | End::Unknown => Self::Whole,
        }
    }
}

impl Process {
    /// Returns the state of the process's record: whole, unfinished or damaged.
    #[must_use]
    pub const fn state(&self) -> State {
        self.record.state
    }

    /// Returns a description of the record's state, or `None` if the record is whole.
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

    /// Returns the reason why the report has no figures of iterations, as text; `None` if it has
    /// figures.
    #[must_use]
    pub fn nothing(&self) -> Option<&'static str> {
        match (&self.sum, self.others.unqualified.is_empty(), self.state()) {
            (Some(_), ..) => None,
            (None, false, _) => Some("no iteration counts"),
            (None, true, State::Damaged) => Some("no iteration is left of a damaged record"),
            (None, true, _) if !self.facts.origin.is_own() => {
                Some("the trace has no CUDA calls, no GPU work and no ranges")
            }
            (None, true, _) => Some("no iteration was recorded"),
        }
    }
}
