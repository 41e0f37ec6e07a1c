//! NVTX ranges: the program's, and our own, which say what else happened.

use std::collections::HashMap;

use tllmprof_calls::Call;
use tllmprof_record::Batch;

use crate::database::{Database, Row};
use crate::error::Error;

/// Kinds of rows in `NVTX_EVENTS`.
const PUSH_POP: i64 = 59;
const START_END: i64 = 60;
const DOMAIN: i64 = 75;

/// The domain of our own ranges.
const OWN: &str = "tllmprof";

/// Names of processes' NVTX domains.
#[derive(Debug, Default)]
pub struct Domains(HashMap<(i64, i64), String>);

/// A range that has ended.
#[derive(Debug)]
pub struct Range {
    /// The thread that ended it, as nsys numbers threads of all processes.
    pub thread: i64,
    pub start: i64,
    pub end: i64,
    pub is_start_end: bool,
    pub text: Text,
    /// In which domain it is, by its number in its process.
    pub domain: i64,
    pub payload: Option<i64>,
}

/// What a range is called.
#[derive(Debug)]
pub enum Text {
    Here(String),
    /// One of nsys's strings.
    Number(i64),
}

/// What one of our ranges means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    Capture,
    Iteration(u64),
    /// What is in the batch of an iteration.
    Batch(u64, Batch),
    Gc(u16),
    GilWait,
    GilHold,
    Function,
    /// A call, which nsys has, too.
    Call,
}

/// The part of nsys's number of a thread that identifies its process.
pub const fn process(thread: i64) -> i64 {
    thread >> 24
}

/// An id of the kernel's in nsys's number of a thread or process.
pub const fn number(part: i64) -> u32 {
    (part & 0xff_ffff) as u32
}

impl Domains {
    pub fn read(database: &Database) -> Result<Self, Error> {
        let mut domains = HashMap::new();
        let columns = ["eventType", "globalTid", "domainId", "text", "textId"];
        database.rows("NVTX_EVENTS", &columns, None, |row| {
            if row.number(0) != Some(DOMAIN) {
                return;
            }
            let text = row.text(3).or_else(|| database.string(row.number(4)?));
            if let (Some(thread), Some(domain), Some(text)) = (row.number(1), row.number(2), text) {
                domains.insert((process(thread), domain), text);
            }
        })?;
        Ok(Self(domains))
    }

    /// The name of a range's domain; none for the default one.
    pub fn name(&self, range: &Range) -> Option<&str> {
        let key = (process(range.thread), range.domain);
        self.0.get(&key).map(String::as_str)
    }

    /// Whether a range is ours.
    pub fn is_own(&self, range: &Range) -> bool {
        self.name(range) == Some(OWN)
    }
}

impl Range {
    /// Gives every range to `each`. One that was still open when nsys stopped ends at `u64::MAX`.
    pub fn each(database: &Database, mut each: impl FnMut(Self)) -> Result<(), Error> {
        // There is a column for each type of payload, or for those that the report has.
        let columns = [
            "eventType",
            "start",
            "end",
            "globalTid",
            "endGlobalTid",
            "text",
            "textId",
            "domainId",
            "uint64Value",
            "int64Value",
            "uint32Value",
            "int32Value",
        ];
        database.rows("NVTX_EVENTS", &columns, None, |row| {
            if let Some(range) = Self::of(row) {
                each(range);
            }
        })
    }

    fn of(row: &Row<'_>) -> Option<Self> {
        let kind = row
            .number(0)
            .filter(|kind| [PUSH_POP, START_END].contains(kind))?;
        let start = row.number(1)?;
        let end = row.number(2).unwrap_or(i64::MAX);
        let text = match row.text(5) {
            Some(text) => Text::Here(text),
            None => Text::Number(row.number(6)?),
        };
        Some(Self {
            // One that was pushed has no other thread to end on.
            thread: row.number(4).or_else(|| row.number(3))?,
            start,
            end: (end >= start).then_some(end)?,
            is_start_end: kind == START_END,
            text,
            domain: row.number(7).unwrap_or(0),
            payload: (8..12).find_map(|column| row.number(column)),
        })
    }

    /// What a range of ours means.
    pub fn own(&self, text: &str) -> Own {
        let generation = text
            .strip_prefix("Python GC gen")
            .and_then(|rest| rest.parse().ok());
        match (text, self.payload) {
            ("capture", None) => Own::Capture,
            ("GIL wait", _) => Own::GilWait,
            ("GIL hold", _) => Own::GilHold,
            (_, Some(n)) if self.is_start_end => match Batch::of_range(text) {
                Some(batch) => Own::Batch(n as u64, batch),
                None => Own::Iteration(n as u64),
            },
            _ => match generation {
                Some(generation) => Own::Gc(generation),
                None if Call::by_name(text).is_some() => Own::Call,
                None => Own::Function,
            },
        }
    }
}

impl Text {
    pub fn get(&self, database: &Database) -> String {
        match self {
            Self::Here(text) => text.clone(),
            Self::Number(number) => database.string(*number).unwrap_or_default(),
        }
    }
}
