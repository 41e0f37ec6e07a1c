//! Calls and GPU work of an export, read once and put in order: newer versions do not write them in the order of time.

use std::collections::{BTreeMap, HashMap};

use crate::database::{Database, Row};
use crate::error::Error;
use crate::ranges::process;
use crate::rows::{CallRow, Duration, WorkKind, WorkRow};

/// Tables of calls.
pub const CALLS: [&str; 2] = ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"];

/// Rows that are kept, about 1 GB; more are counted.
const MAX_ROWS: usize = 1 << 25;

/// The process of GPU work of which the export does not say whose it is.
const NOBODY: i64 = 0;

/// The calls and the GPU work of a process.
#[derive(Debug, Default)]
pub struct Events {
    /// Calls by thread, in the order of their starts.
    pub calls: BTreeMap<i64, Vec<CallRow>>,
    /// Work in the order of its starts.
    pub work: Vec<WorkRow>,
    /// Rows without a start or an end, or that end before they start.
    pub bad: u64,
}

/// The calls and the GPU work of all processes.
#[derive(Debug, Default)]
pub struct Loaded {
    pub processes: BTreeMap<i64, Events>,
    /// nsys's numbers of the names of calls and kernels.
    pub names: Vec<i64>,
    pub has_calls: bool,
    pub has_gpu: bool,
    /// A table could not be read to its end.
    pub is_damaged: bool,
    /// Rows that there was no room for.
    pub left_out: u64,
}

/// Takes the rows in.
struct Loading<'a, K> {
    loaded: Loaded,
    places: HashMap<i64, u32>,
    rows: usize,
    /// Returns true if an event of a process at a moment is wanted.
    is_wanted: &'a K,
}

impl Loaded {
    /// Reads what is wanted. GPU work without a process is that of `only`, else of the one process that made calls.
    pub fn read<K: Fn(i64, i64) -> bool>(
        database: &Database,
        only: Option<i64>,
        is_wanted: &K,
    ) -> Self {
        let mut loading = Loading {
            loaded: Self::default(),
            places: HashMap::new(),
            rows: 0,
            is_wanted,
        };
        let calls = CALLS
            .iter()
            .try_for_each(|table| loading.calls(database, table));
        let one = || {
            let mut processes = loading.loaded.processes.keys();
            let first = processes.next().copied();
            first.filter(|_| processes.next().is_none())
        };
        let nobody = only.or_else(one).unwrap_or(NOBODY);
        let work = WorkKind::ALL
            .iter()
            .try_for_each(|kind| loading.work(database, *kind, nobody));
        // What was read before the damage stands.
        loading.loaded.is_damaged = calls.and(work).is_err();
        loading.loaded.sort();
        loading.loaded
    }

    fn sort(&mut self) {
        for events in self.processes.values_mut() {
            for calls in events.calls.values_mut() {
                if !calls.is_sorted_by_key(|call| call.start) {
                    calls.sort_by_key(|call| call.start);
                }
                calls.shrink_to_fit();
            }
            if !events.work.is_sorted_by_key(|work| work.start) {
                events.work.sort_by_key(|work| work.start);
            }
            events.work.shrink_to_fit();
        }
    }
}

impl<K: Fn(i64, i64) -> bool> Loading<'_, K> {
    /// Returns true if there is room for a row.
    fn has_room(&mut self) -> bool {
        let has_room = self.rows < MAX_ROWS;
        match has_room {
            true => self.rows += 1,
            false => self.loaded.left_out += 1,
        }
        has_room
    }

    /// The place of a name in the list of names.
    fn name(&mut self, id: i64) -> u32 {
        *self.places.entry(id).or_insert_with(|| {
            self.loaded.names.push(id);
            (self.loaded.names.len() - 1) as u32
        })
    }

    fn calls(&mut self, database: &Database, table: &str) -> Result<(), Error> {
        let columns = [
            "start",
            "end",
            "globalTid",
            "nameId",
            "returnValue",
            "correlationId",
        ];
        database.rows(table, &columns, None, |row| {
            self.loaded.has_calls = true;
            let thread = row.number(2).unwrap_or(0);
            let Some((start, took)) = self.span(row, process(thread)) else {
                return;
            };
            if !self.has_room() {
                return;
            }
            let call = CallRow {
                start,
                took,
                correlation: row.number(5).unwrap_or(0) as u32,
                name: self.name(row.number(3).unwrap_or(-1)),
                failed: row.number(4).is_some_and(|result| result != 0),
            };
            let events = self.loaded.processes.entry(process(thread)).or_default();
            events.calls.entry(thread).or_default().push(call);
        })
    }

    fn work(&mut self, database: &Database, kind: WorkKind, nobody: i64) -> Result<(), Error> {
        let [value, name] = kind.columns();
        let columns = [
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            value,
            name,
        ];
        database.rows(kind.table(), &columns, None, |row| {
            self.loaded.has_gpu = true;
            let of = row.number(5).map_or(nobody, process);
            let Some((start, took)) = self.span(row, of) else {
                return;
            };
            if !self.has_room() {
                return;
            }
            let name = match kind {
                WorkKind::Kernel => self.name(row.number(7).unwrap_or(-1)),
                _ => row.number(7).unwrap_or(0) as u32,
            };
            let work = WorkRow {
                start,
                value: row.number(6).unwrap_or(0).max(0) as u64,
                took,
                name,
                correlation: row.number(4).unwrap_or(0) as u32,
                stream: (row.number(3).unwrap_or(0) & 0xfff) as u16,
                device: (row.number(2).unwrap_or(0) & 0xf) as u8,
                kind,
            };
            self.loaded.processes.entry(of).or_default().work.push(work);
        })
    }

    /// Returns the start and the duration of a wanted row.
    fn span(&mut self, row: &Row<'_>, process: i64) -> Option<(i64, Duration)> {
        let times = row.number(0).zip(row.number(1));
        let Some((start, end)) = times.filter(|(start, end)| end >= start) else {
            let events = self.loaded.processes.entry(process).or_default();
            events.bad += 1;
            return None;
        };
        (self.is_wanted)(process, start).then(|| (start, Duration::new(end.abs_diff(start))))
    }
}
