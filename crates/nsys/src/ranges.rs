//! NVTX ranges in an export: those of the program, and those that tllmprof opened in its own domain
//! to describe iterations, windows and other events.

use std::collections::{BTreeMap, HashMap};

use tllmprof_calls::Call;
use tllmprof_foreign::LONGEST_EVENT_NS;
use tllmprof_record::Batch;

use crate::database::{Database, Row, RowRange};
use crate::error::ExportError;

/// Values of the column `eventType` in the table `NVTX_EVENTS` for push/pop ranges. The first value
/// stands for NVTX calls of the program, the second for NVTX text files that nsys merged into the
/// report.
const PUSH_POP: [i64; 2] = [59, 70];
/// Values of `eventType` for start/end ranges, in the same order as in [`PUSH_POP`].
const START_END: [i64; 2] = [60, 71];
/// Values of `eventType` for marks, in the same order as in [`PUSH_POP`].
const MARK: [i64; 2] = [34, 65];
/// Value of `eventType` for a row that defines a domain.
const DOMAIN: i64 = 75;

/// Name of the domain of tllmprof's own ranges.
const OWN: &str = "tllmprof";

/// Names of the NVTX domains. The key is nsys's number of the process and the number of the domain.
#[derive(Debug, Default)]
pub struct Domains(HashMap<(i64, i64), String>);

/// An NVTX range, or an NVTX mark, which has no duration.
#[derive(Debug)]
pub struct Range {
    /// nsys's number of the thread on which the range ended or, if that is not in the export, began. The number also
    /// identifies the process.
    pub thread: i64,
    pub start: i64,
    pub end: i64,
    pub is_start_end: bool,
    pub is_mark: bool,
    /// True if the range has an impossible duration. It then counts as open, because its end is wrong.
    pub is_too_long: bool,
    pub text: RangeText,
    /// Number of the NVTX domain, which is unique within the process.
    pub domain: i64,
    pub payload: Option<i64>,
}

/// The value of `Range::end` for a range that was still open when nsys stopped, or that is impossibly long.
const OPEN: i64 = i64::MAX;

/// The text of an NVTX range, or its number in nsys's table of strings.
#[derive(Debug)]
pub enum RangeText {
    Here(String),
    /// The number of the text in nsys's table of strings.
    Number(i64),
}

/// The meaning of a range in tllmprof's own domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    Capture,
    Iteration(u64),
    /// The batch of an iteration. The first field is the iteration's number.
    Batch(u64, Batch),
    Gc(u16),
    GilWait,
    GilHold,
    Function,
    /// A range that tllmprof opened for a CUDA call. The range is ignored, because nsys itself
    /// records CUDA calls.
    Call,
}

/// Returns nsys's number of the process that a thread belongs to, from nsys's number of the thread.
pub(crate) const fn process(thread: i64) -> i64 {
    thread >> 24
}

/// Returns the condition that selects the rows of one process. `column` is a column with nsys's
/// numbers of threads or processes.
pub(crate) const fn rows_of(process: i64, column: &str) -> RowRange<'_> {
    RowRange {
        column,
        from: process.saturating_mul(1 << 24),
        before: process.saturating_add(1).saturating_mul(1 << 24),
    }
}

/// Returns the operating system's id of a thread or process, which is the lowest 24 bits of nsys's
/// number.
pub(crate) const fn number(part: i64) -> u32 {
    (part & 0xff_ffff) as u32
}

impl Domains {
    pub fn read(database: &Database) -> Result<Self, ExportError> {
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

    /// Returns the name of a range's domain. Returns `None` for the default domain, and for a domain whose name is not
    /// in the export.
    pub fn name(&self, range: &Range) -> Option<&str> {
        let key = (process(range.thread), range.domain);
        self.0.get(&key).map(String::as_str)
    }

    /// Returns true if a range belongs to tllmprof's own domain.
    pub fn is_own(&self, range: &Range) -> bool {
        self.name(range) == Some(OWN)
    }
}

impl Range {
    /// Passes each range and mark to `each`, for all processes or only for the process with the
    /// number `of`. For a range that was still open when nsys stopped, or that is impossibly long, the end is
    /// `i64::MAX`.
    pub fn each(
        database: &Database,
        of: Option<i64>,
        mut each: impl FnMut(Self),
    ) -> Result<(), ExportError> {
        // The last four columns are for payloads. Some exports have such a column for each type, and others only for
        // the types that occur in the report. A missing column is read as empty.
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
        let wanted = of.map(|process| rows_of(process, "globalTid"));
        database.rows("NVTX_EVENTS", &columns, wanted, |row| {
            if let Some(range) = Self::from_row(row) {
                each(range);
            }
        })
    }

    fn from_row(row: &Row<'_>) -> Option<Self> {
        let kind = row.number(0)?;
        let is_start_end = START_END.contains(&kind);
        let is_mark = MARK.contains(&kind);
        if !is_start_end && !is_mark && !PUSH_POP.contains(&kind) {
            return None;
        }
        let start = row.number(1)?;
        let end = match is_mark {
            true => start,
            false => row.number(2).unwrap_or(OPEN),
        };
        let is_too_long = end != OPEN && end.saturating_sub(start) > LONGEST_EVENT_NS as i64;
        let end = if is_too_long { OPEN } else { end };
        let text = match row.text(5) {
            Some(text) => RangeText::Here(text),
            None => RangeText::Number(row.number(6)?),
        };
        Some(Self {
            // For push/pop ranges the column for the end thread is empty, because such ranges end
            // on the thread where they began.
            thread: row.number(4).or_else(|| row.number(3))?,
            start,
            end: (end >= start).then_some(end)?,
            is_start_end,
            is_mark,
            is_too_long,
            text,
            domain: row.number(7).unwrap_or(0),
            payload: (8..12).find_map(|column| row.number(column)),
        })
    }

    /// Returns true if the range has no usable end: it was still open when nsys stopped, or it is impossibly long.
    pub const fn is_open(&self) -> bool {
        self.end == OPEN
    }

    /// Returns the generation and the number of freed objects from a mark of tllmprof's own domain with the text
    /// `text`. Returns `None` if the text does not contain them.
    fn freed(&self, text: &str) -> Option<(u16, u64)> {
        let generation = text
            .strip_prefix("Python GC gen")?
            .strip_suffix(" collected")?;
        let count = self.payload.and_then(|count| u64::try_from(count).ok())?;
        Some((generation.parse().ok()?, count))
    }

    /// Returns the meaning of a range in tllmprof's own domain. `text` is the range's text. The meaning also depends on
    /// the range's payload.
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

/// A collection of garbage by Python. Times are those of nsys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Collection {
    /// nsys's number of the thread that collected.
    pub thread: i64,
    pub generation: u16,
    pub start: i64,
    pub end: i64,
    /// The number of objects that were freed; 0 if it is not in the export.
    pub collected: u64,
}

/// The collections of garbage by Python. For each collection, tllmprof opens a range. After the end of the range it
/// writes a mark with the number of freed objects, on the same thread.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    /// Start and end of each range, by thread and generation.
    ranges: BTreeMap<(i64, u16), Vec<(i64, i64)>>,
    /// Time and number of freed objects of each mark, by thread and generation.
    marks: HashMap<(i64, u16), Vec<(i64, u64)>>,
}

impl Collections {
    pub(crate) fn add_range(&mut self, range: &Range, generation: u16) {
        let ranges = self.ranges.entry((range.thread, generation)).or_default();
        ranges.push((range.start, range.end));
    }

    /// Adds a mark of tllmprof's own domain with the text `text`, if it contains the number of freed objects.
    pub(crate) fn add_mark(&mut self, mark: &Range, text: &str) {
        if let Some((generation, count)) = mark.freed(text) {
            let marks = self.marks.entry((mark.thread, generation)).or_default();
            marks.push((mark.start, count));
        }
    }

    /// Returns all collections. A mark belongs to the last range of its thread and generation that ended before it.
    pub(crate) fn all(mut self) -> Vec<Collection> {
        let mut all = Vec::new();
        for ((thread, generation), mut ranges) in self.ranges {
            let mut marks = self.marks.remove(&(thread, generation)).unwrap_or_default();
            ranges.sort_unstable();
            marks.sort_unstable();
            for (place, (start, end)) in ranges.iter().enumerate() {
                let next = ranges.get(place + 1).map_or(i64::MAX, |(start, _)| *start);
                let after = marks.partition_point(|(at, _)| at < end);
                let mark = marks.get(after).filter(|(at, _)| *at <= next);
                all.push(Collection {
                    thread,
                    generation,
                    start: *start,
                    end: *end,
                    collected: mark.map_or(0, |(_, count)| *count),
                });
            }
        }
        all
    }
}

impl RangeText {
    /// Returns the number of the text in nsys's table of strings, or `None` if the text is stored in the range itself.
    pub const fn number(&self) -> Option<i64> {
        match self {
            Self::Here(_) => None,
            Self::Number(number) => Some(*number),
        }
    }

    pub fn get(&self, database: &Database) -> String {
        match self {
            Self::Here(text) => text.clone(),
            Self::Number(number) => database.string(*number).unwrap_or_default(),
        }
    }
}
