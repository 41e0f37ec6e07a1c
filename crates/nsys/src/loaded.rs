//! Loads the calls and the GPU work of an export and sorts them by time, because newer versions of nsys do not write
//! them in that order.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::thread;

use tllmprof_foreign::{LeftOut, LeftOutReason, Span, StreamNumbers, check_times};

use crate::database::{Database, Row};
use crate::error::ExportError;
use crate::pieces::Pieces;
use crate::ranges::process;
use crate::rows::{CallRow, WorkKind, WorkRow};

/// The tables that contain CUDA calls.
pub(crate) const CALLS: [&str; 2] = ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"];

/// Maximum number of CUDA calls that are stored; the same maximum applies to pieces of GPU work. At the maximum, the
/// calls and the work together take about 500 MB. Further rows are only counted.
const MAX_ROWS: usize = 1 << 25;

/// Maximum length of the list `IndexedNames::listed`, whose index is nsys's number of a name. Names with larger numbers
/// are in a hash map.
const MAX_LISTED: usize = 1 << 20;

/// Process number of GPU work for which the export names no process. [`Loaded::read`] later assigns the work to
/// the process that made calls, if there is only one such process.
pub(crate) const NOBODY: i64 = 0;

/// The calls and GPU work of one process.
#[derive(Debug, Default)]
pub struct Events {
    /// The calls of each thread, by nsys's number of the thread.
    pub calls: BTreeMap<i64, Pieces<CallRow>>,
    pub work: Pieces<WorkRow>,
    /// The smallest and the greatest number of the GPUs on which the process's work ran; `None` if there is no work.
    pub devices: Option<(u8, u8)>,
    /// The time from the start of the earliest call or work to the end of the latest.
    pub span: Option<Span>,
    /// Numbers of calls and pieces of GPU work that were left out, by reason.
    pub left_out: LeftOut,
}

/// Names of calls or kernels. Each name has an index; indexes are assigned in the order in which
/// names are first used.
#[derive(Debug, Default)]
pub struct IndexedNames {
    /// nsys's number of each name. A name's position in this list is its index.
    numbers: Vec<i64>,
    /// For each of nsys's numbers below [`MAX_LISTED`], the index of the name plus 1; 0 if the number has no index
    /// yet. The list only extends to the largest number that has an index.
    listed: Vec<u32>,
    others: HashMap<i64, u32>,
}

/// The calls and GPU work of all processes.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub processes: BTreeMap<i64, Events>,
    pub calls: IndexedNames,
    pub kernels: IndexedNames,
    pub has_calls: bool,
    pub has_gpu: bool,
    /// True if a table could not be read completely, because the database is damaged.
    pub is_damaged: bool,
}

/// Collects the rows of the tables of calls, or of the tables of GPU work.
struct Loading<'a, K> {
    processes: BTreeMap<i64, Events>,
    names: IndexedNames,
    /// True if at least one of the tables that were read has a row.
    has_rows: bool,
    is_damaged: bool,
    rows: usize,
    streams: StreamNumbers<i64>,
    /// Function that returns true if an event is needed. Its arguments are the event's process and
    /// start.
    is_wanted: &'a K,
}

impl Loaded {
    /// Reads the calls and the GPU work for which `is_wanted` returns true. If the export does not say to which
    /// process GPU work belongs, the work is assigned to the process `only`. If `only` is `None`, the work is assigned
    /// to the process that made calls. If several processes made calls, all GPU work is left out. Calls and work are read in parallel, so this
    /// function opens the database a second time.
    ///
    /// # Errors
    /// Returns an error if the export cannot be opened a second time.
    pub(crate) fn read<K: Fn(i64, i64) -> bool + Sync>(
        path: &Path,
        database: &Database,
        only: Option<i64>,
        is_wanted: &K,
    ) -> Result<Self, ExportError> {
        let (calls, work) = thread::scope(|scope| {
            let work = scope.spawn(|| {
                let database = Database::open(path)?;
                let nobody = only.unwrap_or(NOBODY);
                let mut kinds = WorkKind::ALL.iter();
                let mut loading = Loading::new(is_wanted);
                let read = kinds.try_for_each(|kind| loading.work(&database, *kind, nobody));
                Ok::<_, ExportError>(loading.finish(read))
            });
            let mut loading = Loading::new(is_wanted);
            let read = CALLS
                .iter()
                .try_for_each(|table| loading.calls(database, table));
            let work = work.join();
            (loading.finish(read), work)
        });
        let mut work = work.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut processes = calls.processes;
        let one = processes.keys().next().copied().unwrap_or(NOBODY);
        let mut has_gpu = work.has_rows;
        if let Some(nobody) = work.processes.remove(&NOBODY) {
            match processes.len() {
                0 | 1 => work.processes.entry(one).or_default().add(nobody),
                // The rest of the work would show the GPUs as idle, so it is left out, too.
                _ => {
                    has_gpu = false;
                    work.processes.values_mut().for_each(Events::leave_out_work);
                    let left_out = &mut processes.entry(one).or_default().left_out;
                    left_out.add_all(LeftOutReason::NoProcess, nobody.work.len() as u64);
                }
            }
        }
        for (process, events) in work.processes {
            processes.entry(process).or_default().add(events);
        }
        Ok(Self {
            processes,
            calls: calls.names,
            kernels: work.names,
            has_calls: calls.has_rows,
            has_gpu,
            is_damaged: calls.is_damaged || work.is_damaged,
        })
    }
}

impl Events {
    /// Adds the GPU work of `other`, with its GPUs, its time span and the number of rows that were left out.
    fn add(&mut self, other: Self) {
        self.work.append(other.work);
        if let Some((first, last)) = other.devices {
            self.use_device(first);
            self.use_device(last);
        }
        self.left_out.merge(&other.left_out);
        self.span = match (self.span, other.span) {
            (Some(one), Some(other)) => Some(Span {
                start: one.start.min(other.start),
                end: one.end.max(other.end),
            }),
            (one, other) => one.or(other),
        };
    }

    fn leave_out_work(&mut self) {
        let events = self.work.len() as u64;
        self.left_out.add_all(LeftOutReason::NoProcess, events);
        self.work = Pieces::default();
        self.devices = None;
    }

    fn use_device(&mut self, device: u8) {
        let (first, last) = self.devices.get_or_insert((device, device));
        *first = device.min(*first);
        *last = device.max(*last);
    }

    fn reach(&mut self, start: i64, end: i64) {
        let span = self.span.get_or_insert(Span { start, end });
        span.start = span.start.min(start);
        span.end = span.end.max(end);
    }

    fn finish(&mut self) {
        self.calls.values_mut().for_each(Pieces::finish);
        self.work.finish();
    }
}

impl IndexedNames {
    /// Returns the index of the name that has nsys's number `number`. A name that is used for the
    /// first time gets the next free index.
    fn place(&mut self, number: i64) -> u32 {
        let next = self.numbers.len() as u32 + 1;
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let place = match at < MAX_LISTED {
            true => {
                if at >= self.listed.len() {
                    self.listed.resize(at + 1, 0);
                }
                let place = &mut self.listed[at];
                if *place == 0 {
                    *place = next;
                }
                *place
            }
            false => *self.others.entry(number).or_insert(next),
        };
        if place == next {
            self.numbers.push(number);
        }
        place - 1
    }

    /// Returns nsys's number of the name with the index `place`, or -1 if no name has that index.
    pub fn number(&self, place: u32) -> i64 {
        self.numbers.get(place as usize).copied().unwrap_or(-1)
    }

    /// Returns the texts of all names, in the order of their indexes.
    pub fn texts(&self, database: &Database) -> Vec<String> {
        let text = |number: &i64| database.string(*number).unwrap_or_default();
        self.numbers.iter().map(text).collect()
    }
}

impl<'a, K: Fn(i64, i64) -> bool> Loading<'a, K> {
    fn new(is_wanted: &'a K) -> Self {
        Self {
            processes: BTreeMap::new(),
            names: IndexedNames::default(),
            has_rows: false,
            is_damaged: false,
            rows: 0,
            streams: StreamNumbers::default(),
            is_wanted,
        }
    }

    /// Finishes collecting. `read` is the result of reading the tables: if it is an error, the
    /// database is damaged, and the rows before the damage are kept.
    fn finish(mut self, read: Result<(), ExportError>) -> Self {
        self.is_damaged = read.is_err();
        self.processes.values_mut().for_each(Events::finish);
        self
    }

    /// Counts a row of `process` as left out for this reason.
    fn leave_out(&mut self, process: i64, reason: LeftOutReason) {
        self.processes
            .entry(process)
            .or_default()
            .left_out
            .add(reason);
    }

    /// Returns true if a row of `process` may be stored, and counts it as stored. If [`MAX_ROWS`] rows have been
    /// stored, returns false and counts the row as left out.
    fn has_room(&mut self, process: i64) -> bool {
        let has_room = self.rows < MAX_ROWS;
        match has_room {
            true => self.rows += 1,
            false => self.leave_out(process, LeftOutReason::TooMany),
        }
        has_room
    }

    fn calls(&mut self, database: &Database, table: &str) -> Result<(), ExportError> {
        let columns = [
            "start",
            "end",
            "globalTid",
            "nameId",
            "returnValue",
            "correlationId",
        ];
        database.rows(table, &columns, None, |row| {
            self.has_rows = true;
            let thread = row.number(2).unwrap_or(0);
            let Some((start, took)) = self.span(row, process(thread)) else {
                return;
            };
            if !self.has_room(process(thread)) {
                return;
            }
            let call = CallRow {
                start,
                took,
                correlation: row.number(5).unwrap_or(0) as u32,
                name: self.names.place(row.number(3).unwrap_or(-1)),
                failed: row.number(4).is_some_and(|result| result != 0),
            };
            let events = self.processes.entry(process(thread)).or_default();
            events.reach(start, call.end());
            events.calls.entry(thread).or_default().push(call);
        })
    }

    fn work(
        &mut self,
        database: &Database,
        kind: WorkKind,
        nobody: i64,
    ) -> Result<(), ExportError> {
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
            self.has_rows = true;
            let of = row.number(5).map_or(nobody, process);
            let Some((start, took)) = self.span(row, of) else {
                return;
            };
            let (device, stream) = match self.place(row) {
                Ok(place) => place,
                Err(reason) => return self.leave_out(of, reason),
            };
            if !self.has_room(of) {
                return;
            }
            let name = match kind {
                WorkKind::Kernel => self.names.place(row.number(7).unwrap_or(-1)),
                _ => row.number(7).unwrap_or(0) as u32,
            };
            let work = WorkRow {
                start,
                value: row.number(6).unwrap_or(0).max(0) as u64,
                took,
                name,
                correlation: row.number(4).unwrap_or(0) as u32,
                stream,
                device,
                kind,
            };
            let events = self.processes.entry(of).or_default();
            events.use_device(device);
            events.reach(start, work.end());
            events.work.push(work);
        })
    }

    /// Returns the start and the duration of a row, or `None` if the row is invalid or `is_wanted`
    /// rejects it.
    fn span(&mut self, row: &Row<'_>, process: i64) -> Option<(i64, u64)> {
        let took = match check_times(row.number(0), row.number(1)) {
            Ok(took) => took,
            Err(reason) => {
                self.leave_out(process, reason);
                return None;
            }
        };
        let start = row.number(0)?;
        (self.is_wanted)(process, start).then_some((start, took))
    }

    /// Returns the number of the GPU on which a row's work ran, and a 16-bit number for its stream, as in tllmprof
    /// records. Stream numbers of nsys may be larger, and are then replaced by unused numbers.
    ///
    /// # Errors
    /// Returns the reason why the work has to be left out: the number of its GPU is over 255, or no unused stream
    /// number is left.
    fn place(&mut self, row: &Row<'_>) -> Result<(u8, u16), LeftOutReason> {
        let device = row.number(2).unwrap_or(0);
        let device = u8::try_from(device).map_err(|_| LeftOutReason::UnknownGpu)?;
        let stream = row.number(3).unwrap_or(0);
        let stream = self.streams.get(&stream, Some(stream));
        Ok((device, stream.ok_or(LeftOutReason::TooManyStreams)?))
    }
}
