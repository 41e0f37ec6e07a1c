//! Idle times of a GPU between two successive kernels, added up for each pair of kernels.

use std::collections::HashMap;

use crate::events::spans::{Span, Spans};

/// Number of pieces of work (kernels or copies) of a GPU that stay in its buffer when older pieces are processed.
/// Pieces arrive only nearly in the order of their starts, so the buffer is sorted before pieces are processed.
const MIN_HELD_BACK: usize = 1 << 16;

/// Maximum number of pairs of successive kernels whose idle time is added up. If there are more pairs, the results are
/// discarded.
const MAX_PAIRS: usize = 1 << 20;

/// Adds up the idle times of all GPUs, by the kernels before and after each idle time. `K` is the type that identifies
/// a kernel; copies, and kernels that cannot be identified, have `None` instead.
#[derive(Debug)]
pub(crate) struct Gaps<K> {
    iterations: Spans,
    devices: HashMap<u8, Device<K>>,
    between: HashMap<(K, K), u64>,
    is_too_much: bool,
}

#[derive(Debug)]
struct Device<K> {
    waiting: Vec<(Span, Option<K>)>,
    /// The latest end of all work processed so far, in nanoseconds. The field `last` identifies the kernel that ended
    /// at this time; `None` if it was a copy or an unknown kernel.
    until: u64,
    last: Option<K>,
}

impl<K: Copy + Eq + std::hash::Hash> Gaps<K> {
    /// Returns sums without any work. `iterations` are the time spans of the iterations, in nanoseconds and sorted by
    /// their starts.
    pub(crate) fn new(iterations: Spans) -> Self {
        Self {
            iterations,
            devices: HashMap::new(),
            between: HashMap::new(),
            is_too_much: false,
        }
    }

    /// Adds a piece of work of a GPU. `what` identifies its kernel; `None` for a copy or an unknown kernel.
    pub(crate) fn add(&mut self, device: u8, work: Span, what: Option<K>) {
        let of = self.devices.entry(device).or_insert_with(|| Device {
            waiting: Vec::new(),
            until: 0,
            last: None,
        });
        of.waiting.push((work, what));
        if of.waiting.len() >= 2 * MIN_HELD_BACK {
            self.settle(device, MIN_HELD_BACK);
        }
    }

    /// Returns the idle times within iterations, in nanoseconds. The key is the kernel before the
    /// idle time and the kernel after it. Returns `None` if the limit on pairs was exceeded.
    pub(crate) fn finish(mut self) -> Option<HashMap<(K, K), u64>> {
        let devices: Vec<_> = self.devices.keys().copied().collect();
        for device in devices {
            self.settle(device, 0);
        }
        (!self.is_too_much).then_some(self.between)
    }

    fn settle(&mut self, device: u8, keep: usize) {
        let Some(of) = self.devices.get_mut(&device) else {
            return;
        };
        of.waiting.sort_by_key(|(work, _)| work.start);
        let settled = of.waiting.len().saturating_sub(keep);
        for (work, what) in of.waiting.drain(..settled) {
            if work.start > of.until
                && let (Some(before), Some(after)) = (of.last, what)
                && let Some(place) = self.iterations.at(of.until)
                && self.iterations.at(work.start) == Some(place)
            {
                let pair = (before, after);
                if self.between.len() < MAX_PAIRS || self.between.contains_key(&pair) {
                    *self.between.entry(pair).or_default() += work.start - of.until;
                } else {
                    self.is_too_much = true;
                }
            }
            if work.end > of.until {
                (of.until, of.last) = (work.end, what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_between_what_ended_last_and_what_begins_next_in_an_iteration() {
        let span = |start, end| Span { start, end };
        let mut gaps = Gaps::new(Spans::new(vec![span(100, 200), span(200, 300)]));
        let work = [
            (0, span(140, 150), Some('b')),
            (0, span(110, 130), Some('a')),
            // The piece `c` lies within the piece `a` in the line above, so no idle time precedes it.
            (0, span(112, 120), Some('c')),
            (0, span(160, 170), Some('b')),
            (0, span(175, 180), None),
            (0, span(190, 195), Some('a')),
            // The next two pieces are in the second iteration. The idle time between the last piece of the first
            // iteration and the first piece of the second is not added up.
            (0, span(205, 210), Some('a')),
            (0, span(215, 220), Some('b')),
            (1, span(150, 151), Some('a')),
            // These pieces of work are in no iteration.
            (0, span(310, 320), Some('a')),
            (0, span(330, 340), Some('a')),
        ];
        for (device, work, what) in work {
            gaps.add(device, work, what);
        }
        let found = gaps.finish().unwrap();
        assert_eq!(
            found,
            HashMap::from([(('a', 'b'), 10 + 5), (('b', 'b'), 10)])
        );
    }
}
