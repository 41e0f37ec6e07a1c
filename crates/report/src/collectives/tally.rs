//! Collects a record's collectives, and what each device ran between two of them.

use std::collections::HashMap;

use tllmprof_record::{Clock, StringId, Strings};

use super::names;
use crate::events::kernel_name::{full, path};
use crate::events::raw::RawIteration;
use crate::events::spans::Span;
use crate::events::work::{GpuWork, GpuWorkKind};

/// How many collectives are kept of all records that are read together.
const MANY: usize = 8 << 20;

/// How many pieces of other work of a device are kept.
const WORK: usize = 1 << 20;

/// Devices that a record can distinguish.
const DEVICES: usize = 16;

/// Streams, of those with collectives of one kind, that are distinguished.
const STREAMS: usize = 255;

/// Moments and durations beyond these are damage: sums of the others have room.
const LATEST: u64 = 1 << 60;
const LONGEST: u64 = 1 << 40;

/// A collective of one rank. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collective {
    /// `CLOCK_MONOTONIC`.
    pub start: u64,
    pub ns: u64,
    /// The iteration that had begun last when it began.
    pub step: u32,
    /// How long before it the collective before ended, on its device.
    pub since: u64,
    /// How long the device was at other work since then, and in how many kernels that began then.
    pub busy: u64,
    pub kernels: u16,
    /// How long the device was at other work during it.
    pub covered: u32,
    /// Its kernel, by the table of names.
    pub row: u8,
    /// Which of the streams that have such kernels it ran on, counted from 0 in the order of their first ones.
    pub stream: u8,
}

/// The collectives of a process.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of their starts.
    pub all: Vec<Collective>,
    /// How many there was no room for.
    pub left_out: u64,
    /// Some of the other work was not kept, so that `busy`, `kernels` and `covered` say nothing.
    pub is_work_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    span: Span,
    row: u8,
    device: u8,
    stream: u16,
}

/// The adding up.
#[derive(Debug)]
pub struct CollectiveTally<'a> {
    clock: &'a Clock,
    strings: &'a Strings,
    rows: HashMap<StringId, Option<u8>>,
    room: usize,
    raw: Vec<Raw>,
    work: [Vec<Span>; DEVICES],
    found: Found,
}

impl<'a> CollectiveTally<'a> {
    /// `records`: so many are read together.
    pub fn new(clock: &'a Clock, strings: &'a Strings, records: usize) -> Self {
        Self {
            clock,
            strings,
            rows: HashMap::new(),
            room: MANY / records.max(1),
            raw: Vec::new(),
            work: Default::default(),
            found: Found::default(),
        }
    }

    /// Adds work, if it is a kernel.
    #[inline]
    pub fn add_work(&mut self, work: &GpuWork) {
        let GpuWorkKind::Kernel { name, .. } = work.what else {
            return;
        };
        let (device, stream, span) = (work.device, work.stream, work.span());
        let row = *self
            .rows
            .entry(name)
            .or_insert_with(|| names::of(&path(&full(self.strings.get(name)))));
        match row {
            Some(row) if self.raw.len() < self.room => self.raw.push(Raw {
                span,
                row,
                device,
                stream,
            }),
            Some(_) => self.found.left_out += 1,
            None => {
                let work = &mut self.work[usize::from(device) % DEVICES];
                match work.len() < WORK {
                    true => work.push(span),
                    false => self.found.is_work_lost = true,
                }
            }
        }
    }

    /// The collectives. `iterations` are in the order of their starts.
    pub fn finish(mut self, iterations: &[RawIteration]) -> Found {
        if self.raw.is_empty() {
            return self.found;
        }
        let clock = self.clock;
        let begun = iterations.iter().map(|one| (clock.ns(one.start), one.n));
        let begun: Vec<_> = begun.collect();
        self.raw.sort_by_key(|raw| raw.span.start);
        let mut streams: HashMap<u8, Vec<(u8, u16)>> = HashMap::new();
        let mut devices = self.work.map(Work::new);
        self.found.all.reserve_exact(self.raw.len());
        for raw in self.raw {
            let known = streams.entry(raw.row).or_default();
            let own = (raw.device, raw.stream);
            let at = known.iter().position(|one| *one == own);
            let stream = at.unwrap_or_else(|| {
                known.push(own);
                known.len() - 1
            });
            let after = begun.partition_point(|(start, _)| *start <= raw.span.start);
            // Before the first iteration it is of none.
            let Some((_, step)) = after.checked_sub(1).map(|at| begun[at]) else {
                continue;
            };
            if stream >= STREAMS {
                self.found.left_out += 1;
                continue;
            }
            let device = &mut devices[usize::from(raw.device) % DEVICES];
            let since = raw.span.start.saturating_sub(device.until);
            let (busy, kernels, covered) = device.until(raw.span);
            self.found.all.push(Collective {
                start: raw.span.start.min(LATEST),
                ns: (raw.span.end - raw.span.start).min(LONGEST),
                step: step as u32,
                since: since.min(LATEST),
                busy: busy.min(LATEST),
                kernels,
                covered: u32::try_from(covered).unwrap_or(u32::MAX),
                row: raw.row,
                stream: stream as u8,
            });
        }
        self.found
    }
}

/// The work of a device that is no collective.
#[derive(Debug)]
struct Work {
    starts: Vec<u64>,
    /// When anything ran: in order, none overlaps the next.
    spans: Vec<Span>,
    /// The first that may not be over.
    next: usize,
    /// The end of the collectives before.
    until: u64,
}

impl Work {
    fn new(mut all: Vec<Span>) -> Self {
        all.sort_by_key(|span| span.start);
        let starts = all.iter().map(|span| span.start).collect();
        let mut spans: Vec<Span> = Vec::new();
        for span in all {
            match spans.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => spans.push(span),
            }
        }
        Self {
            starts,
            spans,
            next: 0,
            until: 0,
        }
    }

    /// What ran since the collective before, how many pieces began meanwhile, and what runs during this one. They come
    /// in the order of their starts.
    fn until(&mut self, span: Span) -> (u64, u16, u64) {
        let before = Span {
            start: self.until,
            end: span.start,
        };
        let from = self.until.min(span.start);
        while self.spans.get(self.next).is_some_and(|one| one.end <= from) {
            self.next += 1;
        }
        let (mut busy, mut covered) = (0, 0);
        for one in &self.spans[self.next..] {
            if one.start >= span.end {
                break;
            }
            busy += one.overlap(&before);
            covered += one.overlap(&span);
        }
        let begun = |moment: u64| self.starts.partition_point(|start| *start < moment);
        let kernels = begun(span.start).saturating_sub(begun(self.until));
        self.until = self.until.max(span.end);
        (busy, u16::try_from(kernels).unwrap_or(u16::MAX), covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_before_a_collective_or_during_it() {
        let span = |start, end| Span { start, end };
        let mut work = Work::new(vec![
            span(0, 10),
            span(20, 30),
            span(25, 40),
            span(70, 75),
            span(95, 120),
        ]);
        assert_eq!(work.until(span(50, 60)), (30, 3, 0));
        assert_eq!(work.until(span(80, 100)), (5, 1, 5));
        // On another stream, and begun before that one ended.
        assert_eq!(work.until(span(90, 110)), (0, 0, 15));
        assert_eq!(work.until(span(200, 210)), (10, 0, 0));
        assert_eq!(work.until(span(300, 310)), (0, 0, 0));
    }
}
