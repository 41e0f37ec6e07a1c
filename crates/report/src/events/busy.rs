//! When each GPU was at work, and in which iterations: the union of what ran on it.
//!
//! Work comes nearly in the order of its starts. What a device did is kept back until [`ROOM`] more
//! pieces have come, and put in order then: memory is bounded, and the union exact as long as no
//! piece is further than that out of its place. Of one that is, what lies before work that was
//! counted already is lost.

use std::collections::HashMap;

use tllmprof_record::{CopyKind, Strings};

use super::kernel_name;
use crate::events::idle::IdleSpans;
use crate::events::spans::Span;

/// How many pairs of an iteration and what ran in it have a time of their own.
const BY_STEP: usize = 1 << 20;

/// How many pieces of work of a device are kept back, at least.
const ROOM: usize = 1 << 16;

/// Devices that a record can distinguish.
const DEVICES: usize = 16;

/// What a device did in an iteration, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The iteration's place.
    pub place: usize,
    pub busy: u64,
    /// Between its first work there and its last, in which it did nothing.
    pub gaps: u64,
}

/// What a device did.
#[derive(Debug, Default)]
pub struct Did {
    /// In the order of their starts.
    pub parts: Vec<Part>,
    /// The time in which at least one ran, by place and by what began last to be the only one; as far as there
    /// was room.
    pub by: HashMap<(u32, u32), u64>,
    /// When nothing ran.
    pub idle: Vec<Span>,
}

/// The GPUs, and the iterations in nanoseconds, of which none overlaps the next.
#[derive(Debug)]
pub struct Busy {
    iterations: Vec<Span>,
    devices: [Device; DEVICES],
}

#[derive(Debug, Default)]
struct Device {
    waiting: Vec<(Span, u32)>,
    /// The end of what was counted.
    until: u64,
    /// The first iteration that may not be over.
    place: usize,
    did: Did,
    idle: IdleSpans,
}

impl Busy {
    pub fn new(iterations: Vec<Span>) -> Self {
        let devices = Default::default();
        Self {
            iterations,
            devices,
        }
    }

    /// Adds work of a device; `what` it is.
    pub fn add(&mut self, device: u8, work: Span, what: u32) {
        let device = &mut self.devices[usize::from(device) % DEVICES];
        device.waiting.push((work, what));
        if device.waiting.len() >= 2 * ROOM {
            device.settle(&self.iterations, ROOM);
        }
    }

    /// What each device that did anything in an iteration did.
    pub fn finish(mut self) -> Vec<Did> {
        for device in &mut self.devices {
            device.settle(&self.iterations, 0);
        }
        let did = self.devices.into_iter().map(|device| Did {
            idle: device.idle.finish(),
            ..device.did
        });
        did.filter(|did| !did.parts.is_empty()).collect()
    }
}

impl Device {
    /// Counts all but the latest pieces.
    fn settle(&mut self, iterations: &[Span], keep: usize) {
        // Runs that are in order already cost this sort next to nothing.
        self.waiting.sort_by_key(|(work, _)| work.start);
        let settled = self.waiting.len().saturating_sub(keep);
        for index in 0..settled {
            let (work, what) = self.waiting[index];
            self.count(iterations, work, what);
        }
        self.waiting.drain(..settled);
    }

    /// Counts a piece that starts no earlier than those before, as far as nothing else ran.
    fn count(&mut self, iterations: &[Span], work: Span, what: u32) {
        let before = self.until;
        let new = Span {
            start: work.start.max(before),
            end: work.end,
        };
        if new.start >= new.end {
            return;
        }
        self.until = new.end;
        self.idle.work(new);
        while let Some(around) = iterations.get(self.place) {
            if around.start >= new.end {
                break;
            }
            let busy = new.overlap(around);
            if busy > 0 {
                let place = self.place;
                let key = (place as u32, what);
                if self.did.by.len() < BY_STEP || self.did.by.contains_key(&key) {
                    *self.did.by.entry(key).or_default() += busy;
                }
                match self.did.parts.last_mut() {
                    Some(part) if part.place == place => {
                        part.busy += busy;
                        part.gaps += new.start - before;
                    }
                    _ => self.did.parts.push(Part {
                        place,
                        busy,
                        gaps: 0,
                    }),
                }
            }
            if around.end > new.end {
                break;
            }
            self.place += 1;
        }
    }
}

/// The last kind of copy, and that of memory that was set.
pub const KINDS: usize = 11;
pub const SET: usize = KINDS;

/// Copies of a kind, and what was set, among kernels by their names.
pub const COPIES: u32 = u32::MAX - KINDS as u32;

/// What a device ran, as [`Did`] has it, by name.
pub fn work_name(what: u32, strings: &Strings) -> String {
    match what.checked_sub(COPIES) {
        Some(kind) => format!("copy {}", copy_name(kind as usize)),
        None => kernel_name::short(&kernel_name::full(strings.get(what))),
    }
}

/// What a kind of copy is called.
pub fn copy_name(kind: usize) -> &'static str {
    match kind {
        SET => "memset",
        _ => CopyKind::from_code(kind as u8).name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn part(place: usize, busy: u64, gaps: u64) -> Part {
        Part { place, busy, gaps }
    }

    fn found(iterations: &[Span], work: &[(u8, Span)]) -> Vec<Vec<Part>> {
        let mut busy = Busy::new(iterations.to_vec());
        work.iter()
            .for_each(|(device, work)| busy.add(*device, *work, 0));
        let did = busy.finish().into_iter();
        did.map(|did| did.parts).collect()
    }

    #[test]
    fn work_at_once_counts_once_in_the_iterations_that_it_lies_in() {
        let iterations = [span(100, 200), span(200, 300), span(400, 500)];
        let work = [
            (0, span(150, 160)),
            (0, span(90, 110)),
            (0, span(155, 170)),
            (0, span(152, 153)),
            (0, span(190, 210)),
            (0, span(310, 390)),
            (0, span(280, 420)),
            (0, span(430, 440)),
            (3, span(500, 600)),
            (2, span(0, 1000)),
        ];
        let first = vec![part(0, 40, 60), part(1, 30, 70), part(2, 30, 10)];
        let second = vec![part(0, 100, 0), part(1, 100, 0), part(2, 100, 0)];
        assert_eq!(found(&iterations, &work), [first, second]);
        assert!(found(&[], &work).is_empty());
        assert!(found(&iterations, &[]).is_empty());
    }

    #[test]
    fn the_time_at_work_is_that_of_what_ran() {
        let mut busy = Busy::new(vec![span(100, 200), span(200, 300)]);
        for (what, work) in [(1, span(90, 150)), (2, span(120, 250)), (1, span(240, 245))] {
            busy.add(0, work, what);
        }
        let did = busy.finish().remove(0);
        let expected = [((0, 1), 50), ((0, 2), 50), ((1, 2), 50)];
        assert_eq!(did.by, expected.into_iter().collect());
        assert_eq!(did.idle, [span(0, 90), span(250, u64::MAX)]);
    }

    #[test]
    fn any_number_of_pieces_that_are_out_of_order_by_less_than_the_room() {
        let iterations: Vec<_> = (0..400)
            .map(|n| span(n * 10_000, n * 10_000 + 9_000))
            .collect();
        let mut work: Vec<_> = (0..400_000)
            .map(|n| (0, span(n * 10, n * 10 + 7)))
            .collect();
        for block in work.chunks_mut(ROOM / 2) {
            block.reverse();
        }
        let found = found(&iterations, &work);
        // 900 pieces, and as many gaps but one.
        let expected: Vec<_> = (0..400).map(|n| part(n, 900 * 7, 899 * 3)).collect();
        assert_eq!(found, [expected]);
    }

    #[test]
    fn what_comes_far_too_late_is_lost_and_nothing_else() {
        let mut work: Vec<_> = (0..3 * ROOM as u64)
            .map(|n| (0, span(n * 10, n * 10 + 7)))
            .collect();
        work.push((0, span(0, 9)));
        let all = 3 * ROOM as u64 * 10;
        let found = found(&[span(0, all)], &work);
        assert_eq!(found[0][0].busy, 3 * ROOM as u64 * 7);
    }
}
