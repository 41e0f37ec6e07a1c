//! Collects the collectives of a record, and the other kernels that each GPU ran between two
//! collectives.

use std::collections::HashMap;

use tllmprof_record::{Clock, StringId, Strings};

use super::names;
use crate::events::busy;
use crate::events::kernel_name::{full, path};
use crate::events::raw::RawIteration;
use crate::events::spans::Span;
use crate::events::work::{GpuWork, GpuWorkKind};

/// Maximum number of collectives to keep, in all records that are read together.
const MAX_COLLECTIVES: usize = 8 << 20;

/// Maximum number of kernels to keep for each GPU, apart from collectives.
const MAX_WORK: usize = 1 << 20;

/// Maximum number of streams to distinguish for each row of the table of kernel names. It is 255 because the index of
/// a stream is stored as a `u8`.
const MAX_STREAMS: usize = 255;

/// Maximum valid time in nanoseconds. A larger time comes from a damaged record; the limit keeps
/// sums from overflowing.
const MAX_MOMENT: u64 = 1 << 60;
/// Maximum valid duration in nanoseconds. A longer duration comes from a damaged record.
const MAX_DURATION: u64 = 1 << 40;

/// A collective, as one rank ran it. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collective {
    /// Start of the collective, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    pub ns: u64,
    /// Number of the iteration that began last before the collective.
    pub step: u32,
    /// Time from the end of the previous collective on the same GPU to the start of this
    /// collective. For the first collective of a GPU, it is the time of its start.
    pub since: u64,
    /// Time for which the GPU ran other kernels between the previous collective and this
    /// collective.
    pub busy: u64,
    /// Number of the other kernels that began between the previous collective and this collective.
    pub kernels: u16,
    /// Time for which the GPU ran other kernels during the collective.
    pub covered: u32,
    /// Index of the collective's row in the table of kernel names, `names::ROWS`.
    pub row: u8,
    /// Index of the stream on which the collective ran. The streams are numbered separately for each row of the table
    /// of kernel names, in the order of their first collective in that row.
    pub stream: u8,
}

/// The recorded collectives of a process, and the number of collectives that were dropped.
#[derive(Debug, Default)]
pub struct Collectives {
    /// The collectives, in the order of their starts.
    pub all: Vec<Collective>,
    /// Number of collectives that were dropped because there were too many of them, or too many
    /// streams.
    pub left_out: u64,
    /// True if kernels other than collectives were dropped because of a limit. Then the fields
    /// `busy`, `kernels` and `covered` of all collectives are meaningless.
    pub is_work_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct RawCollective {
    span: Span,
    row: u8,
    device: u8,
    stream: u16,
}

/// Collects the collectives of a record during a pass over it.
#[derive(Debug)]
pub(crate) struct CollectiveTally<'a> {
    clock: &'a Clock,
    strings: &'a Strings,
    rows: HashMap<StringId, Option<u8>>,
    room: usize,
    raw: Vec<RawCollective>,
    /// The kernels that are not collectives: one list for each GPU, at the index of the GPU's number.
    work: Vec<Vec<Span>>,
    found: Collectives,
}

impl<'a> CollectiveTally<'a> {
    /// Returns an empty tally. `records` is the number of records that are read together; they
    /// share the limit `MAX_COLLECTIVES`.
    pub(crate) fn new(clock: &'a Clock, strings: &'a Strings, records: usize) -> Self {
        Self {
            clock,
            strings,
            rows: HashMap::new(),
            room: MAX_COLLECTIVES / records.max(1),
            raw: Vec::new(),
            work: Vec::new(),
            found: Collectives::default(),
        }
    }

    /// Adds a piece of GPU work if it is a kernel: either as a collective, or as other work of the
    /// GPU.
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
                let work = busy::get_or_add(&mut self.work, device);
                match work.len() < MAX_WORK {
                    true => work.push(span),
                    false => self.found.is_work_lost = true,
                }
            }
        }
    }

    /// Returns true if a kernel of this name was added, and is a collective.
    pub(crate) fn is_one(&self, name: StringId) -> bool {
        self.rows.get(&name).is_some_and(Option::is_some)
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
        let mut devices: Vec<_> = self.work.into_iter().map(OtherWork::new).collect();
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
            // A collective that starts before the first iteration belongs to no iteration, so it is
            // dropped.
            let Some((_, step)) = after.checked_sub(1).map(|at| begun[at]) else {
                continue;
            };
            if stream >= MAX_STREAMS {
                self.found.left_out += 1;
                continue;
            }
            let device = busy::get_or_add(&mut devices, raw.device);
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

/// The kernels of one GPU that are not collectives. [`Self::until`] computes from them how long the GPU ran other work
/// before and during a collective.
#[derive(Debug, Default)]
struct OtherWork {
    starts: Vec<u64>,
    /// The times in which at least one of the kernels ran, in order and without overlap.
    spans: Vec<Span>,
    /// Index in `spans` at which the next search starts. Collectives come in the order of their starts, so earlier
    /// entries are no longer needed.
    next: usize,
    /// Latest end of all collectives that were passed to the method `until` so far.
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

    /// Returns three figures for the collective in `span`: the time for which other kernels ran
    /// between the previous collective and this one, the number of kernels that began in that time,
    /// and the time for which other kernels ran during this collective. Collectives must be passed
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
        let mut work = OtherWork::new(vec![
            span(0, 10),
            span(20, 30),
            span(25, 40),
            span(70, 75),
            span(95, 120),
        ]);
        assert_eq!(work.until(span(50, 60)), (30, 3, 0));
        assert_eq!(work.until(span(80, 100)), (5, 1, 5));
        // In this call, the collective begins before the previous collective, on another stream,
        // has ended. So no time lies between them.
        assert_eq!(work.until(span(90, 110)), (0, 0, 15));
        assert_eq!(work.until(span(200, 210)), (10, 0, 0));
        assert_eq!(work.until(span(300, 310)), (0, 0, 0));
    }
}
