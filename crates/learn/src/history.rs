//! The history of the learner: the latest waits and copies of the process, with the work that was
//! launched between them.

use crate::call::SiteCall;
use crate::pause::EntryTimes;
use crate::site::{Keys, LEVELS};
use crate::trail::ThreadLaunches;

/// Maximum number of entries (waits and copies) in the history.
pub(crate) const MAX_ENTRIES: usize = 3072;

/// An entry of the history: a wait or a copy, or, if `call` is `None`, only work. Such work was launched by another
/// thread before the wait or copy that follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryEntry {
    pub keys: Keys,
    pub times: EntryTimes,
    /// Numbers of kernels and graphs that the entry's thread launched since the thread's previous entry.
    launches: u16,
    graphs: u16,
    pub thread: u8,
    pub call: Option<SiteCall>,
    pub helper: bool,
}

impl HistoryEntry {
    const NONE: Self = Self {
        keys: [0; LEVELS],
        times: EntryTimes::NONE,
        launches: 0,
        graphs: 0,
        thread: 0,
        call: None,
        helper: false,
    };

    pub(crate) fn new(
        thread: usize,
        work: ThreadLaunches,
        call: Option<SiteCall>,
        keys: Keys,
        helper: bool,
    ) -> Self {
        Self {
            keys,
            times: EntryTimes::NONE,
            launches: u16::try_from(work.launches).unwrap_or(u16::MAX),
            graphs: u16::try_from(work.graphs).unwrap_or(u16::MAX),
            thread: thread as u8,
            call,
            helper,
        }
    }

    /// Returns a copy of the entry with these times.
    pub(crate) const fn at(self, times: EntryTimes) -> Self {
        Self { times, ..self }
    }

    pub(crate) const fn work(&self) -> ThreadLaunches {
        ThreadLaunches {
            launches: self.launches as u32,
            graphs: self.graphs as u32,
        }
    }
}

/// The latest waits and copies of the process, the oldest first.
#[derive(Debug)]
pub(crate) struct History {
    entries: [HistoryEntry; MAX_ENTRIES],
    length: usize,
    /// Number of times that the history has dropped entries. As long as this number stays the same, entries have only
    /// been added, so that their indices are still valid.
    drops: u32,
}

impl History {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [HistoryEntry::NONE; MAX_ENTRIES],
            length: 0,
            drops: 0,
        }
    }

    pub(crate) const fn drops(&self) -> u32 {
        self.drops
    }

    /// Adds an entry. If the history is full, drops its older half first and returns true.
    pub(crate) fn push(&mut self, entry: HistoryEntry) -> bool {
        let full = self.length == MAX_ENTRIES;
        if full {
            self.keep(MAX_ENTRIES / 2);
        }
        if let Some(free) = self.entries.get_mut(self.length) {
            *free = entry;
            self.length += 1;
        }
        full
    }

    /// Drops all but the last `last` entries.
    pub(crate) fn keep(&mut self, last: usize) {
        if last < self.length {
            self.entries.copy_within(self.length - last..self.length, 0);
            self.length = last;
            self.drops = self.drops.wrapping_add(1);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.keep(0);
    }

    /// Returns the entries from index `first` on. The result is empty if there are no such entries.
    pub(crate) fn since(&self, first: usize) -> &[HistoryEntry] {
        self.entries().get(first..).unwrap_or(&[])
    }

    pub(crate) fn entries(&self) -> &[HistoryEntry] {
        self.entries.get(..self.length).unwrap_or(&[])
    }
}
