//! Idle times of a GPU, on two clocks: on `CLOCK_MONOTONIC` ([`GapWalk`], [`IdleSpans`]), and on a clock that runs only
//! during the iterations of a thread ([`Idle`]). Times on both clocks are in nanoseconds.

use std::cell::Cell;

use crate::events::spans::Span;

/// Maximum number of idle times to store. Later idle times are dropped, so the report cannot say what the host did
/// during these.
const MAX_SPANS: usize = 1 << 22;

/// A time in which no work ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gap<T> {
    pub span: Span,
    /// The largest label of all work before the gap; `None` if there is no work before it.
    pub before: Option<T>,
    /// The label of the work that ends the gap; `None` if there is no work after it.
    pub after: Option<T>,
}

/// Finds the gaps between labelled pieces of work that arrive in the order of their starts. Pieces may overlap.
#[derive(Debug)]
pub(crate) struct GapWalk<T> {
    /// Latest end of the work that was added so far.
    until: u64,
    /// The largest label of the work that was added so far.
    largest: Option<T>,
}

impl<T> Default for GapWalk<T> {
    fn default() -> Self {
        Self {
            until: 0,
            largest: None,
        }
    }
}

impl<T: Copy + Ord> GapWalk<T> {
    /// Adds a piece of work, which must not begin earlier than the pieces of work that were added before. Returns the
    /// gap that the piece ends; `None` if there is no gap before it. The first gap begins at 0.
    pub(crate) fn work(&mut self, work: Span, label: T) -> Option<Gap<T>> {
        let gap = (work.start > self.until).then_some(Gap {
            span: Span {
                start: self.until,
                end: work.start,
            },
            before: self.largest,
            after: Some(label),
        });
        self.until = self.until.max(work.end);
        self.largest = self.largest.max(Some(label));
        gap
    }

    /// Returns the gap after all work. Its end is `u64::MAX`.
    pub(crate) fn last(&self) -> Gap<T> {
        Gap {
            span: Span {
                start: self.until,
                end: u64::MAX,
            },
            before: self.largest,
            after: None,
        }
    }
}

/// The idle times of a GPU, in order: the gaps between its pieces of work, and the times before the first piece and
/// after the last one.
#[derive(Debug, Default)]
pub(crate) struct IdleSpans {
    spans: Vec<Span>,
    gaps: GapWalk<()>,
}

impl IdleSpans {
    /// Adds a piece of work, which must not begin earlier than the pieces of work that were added before.
    pub(crate) fn work(&mut self, work: Span) {
        let gap = self.gaps.work(work, ());
        self.add(gap.map(|gap| gap.span));
    }

    /// Returns the idle times. The last one begins at the end of the last work, and its end is `u64::MAX`.
    pub(crate) fn finish(mut self) -> Vec<Span> {
        let last = self.gaps.last().span;
        self.add(Some(last));
        self.spans
    }

    fn add(&mut self, span: Option<Span>) {
        if self.spans.len() < MAX_SPANS {
            self.spans.extend(span);
        }
    }
}

/// Idle times on a clock that runs only during the iterations of a thread. A time on this clock is
/// the total length of iterations before that time.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    spans: Vec<Span>,
    /// For each idle time in `spans`, the sum of the idle times before it.
    before: Vec<u64>,
    all: u64,
    /// Index in `spans` at which the last search ended. The next search starts there.
    last: Cell<usize>,
}

impl Idle {
    /// Converts the idle times `spans` to the clock that runs only during a thread's iterations. `spans` must be in
    /// order. `place` converts one time to that clock.
    pub(crate) fn new(spans: &[Span], place: impl Fn(u64) -> u64) -> Self {
        let mut idle = Self::default();
        for span in spans {
            let (start, end) = (place(span.start), place(span.end));
            if start >= end {
                continue;
            }
            match idle.spans.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => {
                    idle.spans.push(Span { start, end });
                    idle.before.push(idle.all);
                }
            }
            idle.all += end - start;
        }
        idle
    }

    /// Returns the GPU's idle time within a span of time. Both are on the clock that runs only during the iterations.
    pub(crate) fn within(&self, span: Span) -> u64 {
        if self.spans.is_empty() {
            return 0;
        }
        self.until(span.end) - self.until(span.start)
    }

    fn until(&self, moment: u64) -> u64 {
        let is_after = |at: usize| self.spans.get(at).is_none_or(|span| moment < span.start);
        let last = self.last.get();
        // Successive look-ups are nearly in the order of time, so the result usually is the same index as in the last
        // search, or the next index.
        let near = [last, last + 1]
            .into_iter()
            .find(|at| is_after(*at) && at.checked_sub(1).is_none_or(|before| !is_after(before)));
        let after = near
            .unwrap_or_else(|| self.spans.partition_point(|span| span.start <= moment))
            .min(self.spans.len());
        self.last.set(after);
        let last = after
            .checked_sub(1)
            .and_then(|at| Some((self.spans.get(at)?, self.before.get(at)?)));
        last.map_or(0, |(span, before)| {
            before + (moment.min(span.end) - span.start)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_the_labels_of_the_work_around_it() {
        let mut gaps = GapWalk::default();
        let mut work = |start, end, label| {
            let gap = gaps.work(Span { start, end }, label)?;
            Some((gap.span.start, gap.span.end, gap.before, gap.after))
        };
        assert_eq!(work(10, 40, 2), Some((0, 10, None, Some(2))));
        assert_eq!(work(20, 30, 5), None);
        assert_eq!(work(40, 50, 3), None);
        assert_eq!(work(60, 70, 4), Some((50, 60, Some(5), Some(4))));
        let last = gaps.last();
        assert_eq!((last.span.start, last.span.end), (70, u64::MAX));
        assert_eq!((last.before, last.after), (Some(5), None));
    }

    #[test]
    fn idle_is_what_no_work_covers() {
        let mut spans = IdleSpans::default();
        for (start, end) in [(10, 20), (15, 18), (20, 30), (50, 60), (55, 70)] {
            spans.work(Span { start, end });
        }
        let spans = spans.finish();
        let found: Vec<_> = spans.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(found, [(0, 10), (30, 50), (70, u64::MAX)]);
        // In this test, the thread's iterations last from 5 to 40 and from 45 to 100.
        let place = |at: u64| at.clamp(5, 40) - 5 + (at.clamp(45, 100) - 45);
        let idle = Idle::new(&spans, place);
        for (start, end, expected) in [
            (0, 90, 50),
            (0, 5, 5),
            (0, 26, 6),
            (30, 40, 10),
            (60, 90, 30),
        ] {
            assert_eq!(idle.within(Span { start, end }), expected, "{start} {end}");
        }
        assert_eq!(Idle::default().within(Span { start: 0, end: 9 }), 0);
    }
}
