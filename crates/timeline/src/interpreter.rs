//! What the events of a record are understood by.

use std::io;

use tllmprof_record::{CallKind, Clock, Entry, Event, Strings};
use tllmprof_report::{Iteration, Process, Recording};

use crate::kinds::{self, End, Item, Length};
use crate::name::Texts;
use crate::stretch::{Edges, Stretch};
use tllmprof_report::{Launch, Launches};

/// What the events of a record are understood by: what of it there is little of.
#[derive(Debug)]
pub struct Interpreter {
    clock: Clock,
    strings: Strings,
    /// By row of the table of calls.
    calls: Box<[CallKind; 256]>,
    launches: Launches,
    stretches: Vec<Stretch>,
}

impl Interpreter {
    /// Goes through the record that a process was read from. `each` gets every event with what is known
    /// by then: texts that come later and launches are not.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn read(
        process: &Process,
        recording: &impl Recording,
        mut each: impl FnMut(&Self, u32, &Event),
    ) -> io::Result<Self> {
        let header = recording.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut calls = Box::new([CallKind::Other; 256]);
        for row in &process.facts.calls {
            calls[usize::from(row.row)] = row.kind;
        }
        let mut new = Self {
            clock: clock.clone(),
            strings: Strings::default(),
            calls,
            launches: Launches::default(),
            stretches: Vec::new(),
        };
        let mut launches = process.launches(&clock);
        let mut edges = Edges::default();
        recording.read(|entry| match entry {
            Entry::String { id, bytes } => new.strings.add(id, bytes),
            Entry::Event { thread, event } => {
                launches.add(thread, &event);
                edges.add(&event);
                each(&new, thread, &event);
            }
        })?;
        let iterations = process.windows.iter().flat_map(|window| &window.iterations);
        let end = iterations.map(Iteration::end).max();
        new.stretches = edges.stretches(&clock, end.unwrap_or(0));
        new.launches = launches.finish();
        Ok(new)
    }

    /// The item that an event of a thread is, if it is one.
    #[inline(always)]
    #[must_use]
    pub fn item(&self, thread: u32, event: &Event) -> Option<Item> {
        kinds::item(thread, event, &self.clock, &self.calls)
    }

    /// How long an item is in nanoseconds; `None`: it is a moment.
    #[inline]
    #[must_use]
    pub fn duration(&self, item: &Item) -> Option<u64> {
        match item.length {
            Length::Moment => None,
            Length::Ns(ns) => Some(ns),
            Length::Ticks { start, count } => {
                let end = self.clock.ns(start.saturating_add(count));
                Some(end.saturating_sub(item.start))
            }
        }
    }

    /// The launch that an item is an end of, where it is known.
    #[inline]
    #[must_use]
    pub fn launch(&self, item: &Item) -> Option<&Launch> {
        match item.kind.row().end? {
            End::Call => self.launches.of_call(item.thread, item.start),
            End::Kernel => self.launches.of_kernel(item.value as u32, item.start),
        }
    }

    /// Windows, and the parts of them in which kernels were taken.
    #[must_use]
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    #[must_use]
    pub const fn strings(&self) -> &Strings {
        &self.strings
    }

    /// What the names of the record's items are made of.
    #[must_use]
    pub const fn texts<'a>(&'a self, process: &'a Process) -> Texts<'a> {
        Texts {
            process,
            strings: &self.strings,
        }
    }
}
