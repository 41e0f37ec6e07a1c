//! Reads records for the tests, with the same reader as the command `tllmprof`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tllmprof_record::{
    CallKind, Counter, Damage, Edge, Entry, Event, Header, Info, NO_STRING, RangeKind, Reader,
    RecordError, Strings, What,
};

/// An NVTX range in a record. Times are in ticks of the record's clock.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub thread: u32,
    pub kind: RangeKind,
    /// The range's domain; `None` for the default domain.
    pub domain: Option<String>,
    pub name: String,
    pub start: u64,
    pub end: u64,
    pub cut: bool,
}

/// The contents of a record.
pub(crate) struct Read {
    pub header: Header,
    /// The events, each with its thread, in the order of the file.
    pub events: Vec<(u32, Event)>,
    pub strings: Strings,
    pub damage: Damage,
    /// The file's size in bytes.
    pub bytes: u64,
    rows: BTreeMap<u8, CallKind>,
}

impl Read {
    pub(crate) fn open(path: &Path) -> Self {
        let reader = Reader::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut strings = Strings::default();
        let mut events = Vec::new();
        let damage = reader
            .read(|entry| match entry {
                Entry::String { id, bytes } => strings.add(id, bytes),
                Entry::Event { thread, event } => events.push((thread, event)),
            })
            .unwrap();
        let rows = events.iter().filter_map(|(_, event)| match event.what {
            What::CallName { row, kind, .. } => Some((row, kind?)),
            _ => None,
        });
        Self {
            header: reader.header().clone(),
            rows: rows.collect(),
            events,
            strings,
            damage,
            bytes: fs::metadata(path).unwrap().len(),
        }
    }

    /// Returns the records in a folder. Skips empty files: a process that is killed while it creates its record may
    /// leave one.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "tllmprof")
            })
            .filter(|path| !matches!(Reader::open(path), Err(RecordError::Empty(_))))
            .map(|path| Self::open(&path))
            .collect()
    }

    /// Returns an empty record, like that of a process without any calls.
    pub(crate) fn nothing() -> Self {
        let bytes =
            tllmprof_record::builder::Builder::new(1, tllmprof_record::ClockKind::Monotonic)
                .bytes();
        Self {
            header: Reader::new(&bytes[..]).unwrap().header().clone(),
            events: Vec::new(),
            strings: Strings::default(),
            damage: Damage::default(),
            bytes: 0,
            rows: BTreeMap::new(),
        }
    }

    fn kind(&self, event: &Event) -> Option<CallKind> {
        match event.what {
            What::Call { row, .. } => self.rows.get(&row).copied(),
            _ => None,
        }
    }

    /// Returns the recorded calls of the given kind, in the order of the file.
    pub(crate) fn calls(&self, kind: CallKind) -> Vec<Event> {
        let events = self.events.iter().map(|(_, event)| *event);
        events
            .filter(|event| self.kind(event) == Some(kind))
            .collect()
    }

    /// Returns the number of spans of GPU work.
    pub(crate) fn gpu_spans(&self) -> u64 {
        let is_span = |event: &Event| matches!(event.what, What::GpuSpan { .. });
        let spans = self.events.iter().filter(|(_, event)| is_span(event));
        spans.count() as u64
    }

    pub(crate) fn calls_by_thread(&self, kind: CallKind) -> BTreeMap<u32, u64> {
        let mut by_thread = BTreeMap::new();
        for (thread, event) in &self.events {
            if self.kind(event) == Some(kind) {
                *by_thread.entry(*thread).or_default() += 1;
            }
        }
        by_thread
    }

    /// Returns the number of calls of a kind that the record's header counts, either inside windows or outside of them.
    pub(crate) fn counted(&self, kind: CallKind, inside: bool) -> u64 {
        let rows = self.rows.iter().filter(|(_, known)| **known == kind);
        rows.map(|(row, _)| match inside {
            true => self.header.counter(Counter::CallsInside(*row)),
            false => self.header.counter(Counter::CallsOutside(*row)),
        })
        .sum()
    }

    /// Returns the ids of the threads that made the recorded calls.
    pub(crate) fn threads(&self) -> BTreeSet<u32> {
        let calls = self
            .events
            .iter()
            .filter(|(_, event)| self.kind(event).is_some());
        calls.map(|(thread, _)| *thread).collect()
    }

    /// Returns the NVTX ranges in the order of the file.
    pub(crate) fn ranges(&self) -> Vec<Range> {
        let ranges = self
            .events
            .iter()
            .filter_map(|(thread, event)| match event.what {
                What::Range { kind, domain, name } => Some(Range {
                    thread: *thread,
                    kind,
                    domain: (domain != NO_STRING).then(|| self.strings.get(domain).to_owned()),
                    name: self.strings.get(name).to_owned(),
                    start: event.start,
                    end: event.start + event.duration,
                    cut: event.cut,
                }),
                _ => None,
            });
        ranges.collect()
    }

    /// Returns the thread and the name of each NVTX mark.
    pub(crate) fn marks(&self) -> Vec<(u32, &str)> {
        let marks = self
            .events
            .iter()
            .filter_map(|(thread, event)| match event.what {
                What::Mark { name, .. } => Some((*thread, self.strings.get(name))),
                _ => None,
            });
        marks.collect()
    }

    /// Returns the number of events that the record reports as missing.
    pub(crate) fn reported_missing(&self) -> u64 {
        let missing = self.events.iter().map(|(_, event)| match event.what {
            What::Dropped { events } => events,
            _ => 0,
        });
        missing.sum()
    }

    /// Returns the number of events that say how many resources, such as processor time, an iteration used.
    pub(crate) fn used(&self) -> u64 {
        let events = self.events.iter();
        let used = events.filter(|(_, event)| matches!(event.what, What::Used { .. }));
        used.count() as u64
    }

    /// Returns the numbers of the recorded iterations, in ascending order.
    pub(crate) fn iterations(&self) -> Vec<u64> {
        let mut numbers: Vec<_> = self
            .events
            .iter()
            .filter_map(|(_, event)| match event.what {
                What::Iteration { n, .. } => Some(n),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the first and last iteration of each window.
    pub(crate) fn windows(&self) -> Vec<(u64, u64)> {
        self.window_events()
            .iter()
            .map(|(open, close)| (open.1, close.1))
            .collect()
    }

    /// Returns the number of iterations in all windows. A window whose closing event is marked as cut has none, because
    /// its first iteration had not ended when the window closed.
    pub(crate) fn held(&self) -> u64 {
        let all: u64 = self.windows().iter().map(|(a, b)| b + 1 - a).sum();
        let is_empty = |event: &Event| {
            let edge = Edge::Close;
            event.cut && matches!(event.what, What::Window { edge: is, .. } if is == edge)
        };
        let empty = self.events.iter().filter(|(_, event)| is_empty(event));
        all - empty.count() as u64
    }

    /// Returns two pairs for each window: the time and the iteration at which it opened, and the time and the iteration
    /// at which it closed.
    pub(crate) fn window_events(&self) -> Vec<((u64, u64), (u64, u64))> {
        let edges = |wanted: Edge| {
            self.events
                .iter()
                .filter_map(|(_, event)| match event.what {
                    What::Window { edge, iteration } if edge == wanted => {
                        Some((event.start, iteration))
                    }
                    _ => None,
                })
                .collect::<BTreeSet<_>>()
        };
        // Events are sorted by time here, because each thread that opens or closes windows writes to its own chunk of
        // the file, so the file's order differs.
        edges(Edge::Open)
            .into_iter()
            .zip(edges(Edge::Close))
            .collect()
    }

    pub(crate) fn assert_calls_lie_in_their_windows(&self) {
        let windows = self.window_events();
        for (_, event) in self
            .events
            .iter()
            .filter(|(_, event)| self.kind(event).is_some())
        {
            let is_in = |(open, close): &((u64, u64), (u64, u64))| {
                open.0 <= event.start && event.start + event.duration <= close.0
            };
            assert!(windows.iter().any(is_in), "{event:?} {windows:?}");
        }
    }

    /// Returns all values that the record has for one property of the process, in the order in which they were
    /// recorded.
    pub(crate) fn info(&self, wanted: Info) -> Vec<String> {
        self.infos(wanted)
            .map(|value| self.strings.get(value as u32).to_owned())
            .collect()
    }

    pub(crate) fn rank(&self) -> Option<u64> {
        self.infos(Info::Rank).last()
    }

    fn infos(&self, wanted: Info) -> impl Iterator<Item = u64> {
        self.events
            .iter()
            .filter_map(move |(_, event)| match event.what {
                What::Info { key, value } if key == Some(wanted) => Some(value),
                _ => None,
            })
    }
}
