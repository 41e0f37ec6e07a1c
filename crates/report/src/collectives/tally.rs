//! Collects a record's collectives, and the other kernels that each device ran between two collectives.

use std::collections::HashMap;

use tllmprof_record::{Clock, StringId, Strings};

use super::names;
use crate::events::kernel_name::{full, path};
use crate::events::raw::RawIteration;
use crate::events::spans::Span;
use crate::events::work::{GpuWork, GpuWorkKind};

/// Maximum number of collectives to keep, over all records that are read together.
const MAX_COLLECTIVES: usize = 8 << 20;

/// Maximum number of other kernels to keep for each device.
const MAX_WORK: usize = 1 << 20;

/// Number of devices that a record can distinguish.
const MAX_DEVICES: usize = 16;

/// Maximum number of streams to distinguish among those that run collectives of the same row.
const MAX_STREAMS: usize = 255;

/// Times and durations above these limits, in nanoseconds, come from a damaged record. The limits keep sums from
/// overflowing.
const MAX_MOMENT: u64 = 1 << 60;
const MAX_DURATION: u64 = 1 << 40;

/// A collective of one rank. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collective {
    /// Start, on `CLOCK_MONOTONIC`.
    pub start: u64,
    pub ns: u64,
    /// Number of the last iteration that began before the collective did.
    pub step: u32,
    /// Time since the previous collective on the same device ended.
    pub since: u64,
    /// Time that the device spent on other kernels since the previous collective, and the number of these kernels.
    pub busy: u64,
    pub kernels: u16,
    /// Time that the device spent on other kernels during the collective.
    pub covered: u32,
    /// Index in the table of kernel names, `names::ROWS`.
    pub row: u8,
    /// The stream that the collective ran on. The number is an index among the streams with collectives of the same
    /// row, in the order of each stream's first collective.
    pub stream: u8,
}

/// The collectives of a process.
#[derive(Debug, Default)]
pub struct Collectives {
    /// The collectives, in the order of their starts.
    pub all: Vec<Collective>,
    /// Number of collectives that were dropped because a limit was reached.
    pub left_out: u64,
    /// True if some other kernels were dropped. Then `busy`, `kernels` and `covered` of all collectives are
    /// meaningless.
    pub is_work_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct RawCollective {
    span: Span,
    row: u8,
    device: u8,
    stream: u16,
}

/// Collects collectives during a pass over a record.
#[derive(Debug)]
pub(crate) struct CollectiveTally<'a> {
    clock: &'a Clock,
    strings: &'a Strings,
    rows: HashMap<StringId, Option<u8>>,
    room: usize,
    raw: Vec<RawCollective>,
    work: [Vec<Span>; MAX_DEVICES],
    found: Collectives,
}

impl<'a> CollectiveTally<'a> {
    /// Creates an empty tally. `records` is the number of records that are read together, which share
    /// `MAX_COLLECTIVES`.
    pub(crate) fn new(clock: &'a Clock, strings: &'a Strings, records: usize) -> Self {
        Self {
            clock,
            strings,
            rows: HashMap::new(),
            room: MAX_COLLECTIVES / records.max(1),
            raw: Vec::new(),
            work: Default::default(),
            found: Collectives::default(),
        }
    }

    /// Adds a piece of GPU work if it is a kernel, either as a collective or as other work of its device.
    #[inline]
    pub(crate) fn add_work(&mut self, work: &GpuWork) {
        let GpuWorkKind::Kernel { name, .. } = work.what else {
            return;
        };
        let (device, stream, span) = (work.device, work.stream, work.span());
        let row = *self
            .rows
            .entry(name)
            .or_insert_with(|| names::find_row(&path(&full(self.strings.get(name)))));
        match row {
            Some(row) if self.raw.len() < self.room => self.raw.push(RawCollective {
                span,
                row,
                device,
                stream,
            }),
            Some(_) => self.found.left_out += 1,
            None => {
                let work = &mut self.work[usize::from(device) % MAX_DEVICES];
                match work.len() < MAX_WORK {
                    true => work.push(span),
                    false => self.found.is_work_lost = true,
                }
            }
        }
    }

    /// Returns the collectives. `iterations` must be sorted by start.
    pub(crate) fn finish(mut self, iterations: &[RawIteration]) -> Collectives {
        if self.raw.is_empty() {
            return self.found;
        }
        let clock = self.clock;
        let begun = iterations.iter().map(|one| (clock.ns(one.start), one.n));
        let begun: Vec<_> = begun.collect();
        self.raw.sort_by_key(|raw| raw.span.start);
        let mut streams: HashMap<u8, Vec<(u8, u16)>> = HashMap::new();
        let mut devices = self.work.map(OtherWork::new);
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
            // A collective that starts before the first iteration belongs to no iteration, so it is skipped.
            let Some((_, step)) = after.checked_sub(1).map(|at| begun[at]) else {
                continue;
            };
            if stream >= MAX_STREAMS {
                self.found.left_out += 1;
                continue;
            }
            let device = &mut devices[usize::from(raw.device) % MAX_DEVICES];
            let since = raw.span.start.saturating_sub(device.until);
            let (busy, kernels, covered) = device.until(raw.span);
            self.found.all.push(Collective {
                start: raw.span.start.min(MAX_MOMENT),
                ns: (raw.span.end - raw.span.start).min(MAX_DURATION),
                step: step as u32,
                since: since.min(MAX_MOMENT),
                busy: busy.min(MAX_MOMENT),
                kernels,
                covered: u32::try_from(covered).unwrap_or(u32::MAX),
                row: raw.row,
                stream: stream as u8,
            });
        }
        self.found
    }
}

/// All kernels of one device that are not collectives.
#[derive(Debug)]
struct OtherWork {
    starts: Vec<u64>,
    /// The times in which at least one of these kernels ran, in order and without overlap.
    spans: Vec<Span>,
    /// Index of the first span that may not have ended before the next collective starts.
    next: usize,
    /// Latest end of the collectives that were passed so far.
    until: u64,
}

impl OtherWork {
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

    /// Returns three figures for the collective in `span`: the time that other kernels ran between the previous
    /// collective and this one, the number of kernels that began in between, and the time that other kernels ran
    /// during this collective. Collectives must be passed in the order of their starts.
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
        let mut work = OtherWork::new(vec![
            span(0, 10),
            span(20, 30),
            span(25, 40),
            span(70, 75),
            span(95, 120),
        ]);
        assert_eq!(work.until(span(50, 60)), (30, 3, 0));
        assert_eq!(work.until(span(80, 100)), (5, 1, 5));
        // This collective is on another stream and begins before the previous one ended.
        assert_eq!(work.until(span(90, 110)), (0, 0, 15));
        assert_eq!(work.until(span(200, 210)), (10, 0, 0));
        assert_eq!(work.until(span(300, 310)), (0, 0, 0));
    }
}
