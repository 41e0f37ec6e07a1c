//! GPU time of iterations, computed from spans. A span is the time from the start of a stream's first work in an
//! iteration to the end of its last work in that iteration. The stream counts as busy for the whole span.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::events::idle::{Gap, GapWalk, IdleSpans};
use crate::events::spans::Span;

/// Maximum number of spans to store. Further spans are only counted, in [`GpuSpans::left_out`].
const MAX_SPANS: usize = 1 << 21;

/// The time from the start of a stream's first work in one iteration to the end of its last work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GpuSpan {
    pub iteration: u64,
    pub device: u8,
    /// Start of the stream's first work in the iteration, in nanoseconds. `duration` is in
    /// nanoseconds, too.
    pub start: u64,
    pub duration: u64,
}

impl GpuSpan {
    const fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.start.saturating_add(self.duration),
        }
    }
}

/// A time in which no stream of any GPU was busy, as far as spans show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GpuIdle {
    pub span: Span,
    /// False if work of iterations whose GPU times were not measured may lie in this time.
    pub is_measured: bool,
}

impl From<Gap<u64>> for GpuIdle {
    /// Returns the idle time of a gap between spans, which are labelled with the numbers of their iterations.
    fn from(gap: Gap<u64>) -> Self {
        // Only some iterations may have a measured GPU time. If the work before and the work after this idle time
        // belong to the same iteration or to consecutive iterations, no unmeasured work lies between them.
        let is_measured = match (gap.before, gap.after) {
            (Some(before), Some(after)) => after <= before.saturating_add(1),
            _ => false,
        };
        Self {
            span: gap.span,
            is_measured,
        }
    }
}

/// The spans of a record: one for each stream and each iteration in which the stream had work.
#[derive(Debug, Default)]
pub(crate) struct GpuSpans {
    spans: Vec<GpuSpan>,
    pub left_out: u64,
}

impl GpuSpans {
    pub(crate) fn add(&mut self, span: GpuSpan) {
        if self.spans.len() < MAX_SPANS {
            self.spans.push(span);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the times in which no stream of any GPU was busy, in the order of time. The first one begins at 0, and the
    /// last one ends at `u64::MAX`. Returns none if the record has no spans.
    pub(crate) fn idle(&self) -> Vec<GpuIdle> {
        let mut spans: Vec<_> = self.spans.iter().collect();
        spans.sort_unstable_by_key(|span| span.start);
        let mut gaps = GapWalk::default();
        let mut idle = Vec::new();
        for span in &spans {
            idle.extend(gaps.work(span.span(), span.iteration).map(GpuIdle::from));
        }
        if !spans.is_empty() {
            idle.push(GpuIdle::from(gaps.last()));
        }
        idle
    }

    /// Returns the number of the GPU whose spans have the largest sum of durations; `None` if the record has no spans.
    pub(crate) fn busiest(&self) -> Option<u8> {
        let mut long: BTreeMap<u8, u64> = BTreeMap::new();
        for span in &self.spans {
            let sum = long.entry(span.device).or_default();
            *sum = sum.saturating_add(span.duration);
        }
        let busiest = long
            .into_iter()
            .max_by_key(|(device, sum)| (*sum, Reverse(*device)));
        busiest.map(|(device, _)| device)
    }

    /// Returns the times in which no stream of a GPU was busy, in the order of time. Returns none if the GPU has no
    /// spans.
    pub(crate) fn idle_of(&self, device: u8) -> Vec<Span> {
        let of = self.spans.iter().filter(|span| span.device == device);
        let mut work: Vec<_> = of.map(GpuSpan::span).collect();
        if work.is_empty() {
            return Vec::new();
        }
        work.sort_unstable_by_key(|work| work.start);
        let mut idle = IdleSpans::default();
        work.into_iter().for_each(|work| idle.work(work));
        idle.finish()
    }

    /// Returns the number and the GPU time of each iteration that was measured, in the order of the numbers. The GPU
    /// time is the time in which at least one stream of the GPU `device` was busy: 0 if only other GPUs worked.
    pub(crate) fn times_of(&self, device: u8) -> Vec<(u64, u64)> {
        let mut spans = self.spans.clone();
        spans.sort_unstable();
        let of_iterations = spans.chunk_by(|a, b| a.iteration == b.iteration);
        let times = of_iterations.map(|spans| {
            let of_device = spans.chunk_by(|a, b| a.device == b.device);
            let mut of_device = of_device.filter(|spans| spans[0].device == device);
            (spans[0].iteration, of_device.next().map_or(0, covered))
        });
        times.collect()
    }
}

/// Returns the time that at least one of the spans covers, in nanoseconds. `spans` must be in the
/// order of their starts.
fn covered(spans: &[GpuSpan]) -> u64 {
    let (mut total, mut until) = (0_u64, 0);
    for span in spans {
        let start = span.start.max(until);
        let end = span.start.saturating_add(span.duration);
        total = total.saturating_add(end.saturating_sub(start));
        until = until.max(end);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_at_once_count_once_and_devices_apart() {
        let mut spans = GpuSpans::default();
        for (iteration, device, start, duration) in [
            (7, 0, 100, 50),
            (7, 0, 120, 10),
            (7, 0, 140, 30),
            (7, 0, 200, 5),
            (7, 1, 100, 60),
            (3, 0, 1, 2),
            (8, 1, 205, 3),
        ] {
            spans.add(GpuSpan {
                iteration,
                device,
                start,
                duration,
            });
        }
        // Iterations 4 to 6 may have run, although their GPU times were not measured.
        let idle = [
            (0, 1, false),
            (3, 100, false),
            (170, 200, true),
            (208, u64::MAX, false),
        ];
        let idle = idle.map(|(start, end, is_measured)| GpuIdle {
            span: Span { start, end },
            is_measured,
        });
        assert_eq!(spans.idle(), idle);
        let busiest = [(0, 1), (3, 100), (170, 200), (205, u64::MAX)];
        let busiest = busiest.map(|(start, end)| Span { start, end });
        assert_eq!(spans.busiest(), Some(0));
        assert_eq!(spans.idle_of(0), busiest);
        assert_eq!(spans.idle_of(2), []);
        // Iteration 8 was measured, but only the other GPU worked in it.
        assert_eq!(spans.times_of(0), [(3, 2), (7, 75), (8, 0)]);
        assert_eq!(GpuSpans::default().busiest(), None);
    }
}
