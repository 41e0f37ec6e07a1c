//! Look-up of the iterations that contain a moment, or that overlap a span of time.

/// A span of time, in ticks or in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

impl Span {
    /// Returns the length of the part of this span that lies in `other`, in the unit of the two
    /// spans.
    pub const fn overlap(&self, other: &Self) -> u64 {
        let start = if self.start > other.start {
            self.start
        } else {
            other.start
        };
        let end = if self.end < other.end {
            self.end
        } else {
            other.end
        };
        end.saturating_sub(start)
    }
}

/// Sorts spans, and joins those that overlap.
pub(crate) fn join(spans: &mut Vec<Span>) {
    spans.sort_unstable_by_key(|span| span.start);
    spans.dedup_by(|next, last| {
        let overlap = next.start < last.end;
        if overlap {
            last.end = last.end.max(next.end);
        }
        overlap
    });
}

/// Returns true if a moment lies in one of these spans, which are sorted and do not overlap.
pub(crate) fn contain(spans: &[Span], moment: u64) -> bool {
    let next = spans.partition_point(|span| span.end <= moment);
    spans.get(next).is_some_and(|span| span.start <= moment)
}

/// The time spans of a record's iterations, in ticks of the record's clock or in nanoseconds. The spans do not overlap:
/// if an iteration extends beyond the start of the next one, its span ends at that start.
#[derive(Debug)]
pub struct Spans {
    spans: Vec<Span>,
    /// Index in `spans` at which the last search ended. Events arrive nearly in order, so the next
    /// search ends at a nearby index.
    last: usize,
}

impl Spans {
    /// Returns the look-up table for the iterations' spans. `spans` must be in the order of their
    /// starts.
    pub fn new(mut spans: Vec<Span>) -> Self {
        let starts: Vec<_> = spans.iter().skip(1).map(|span| span.start).collect();
        for (span, next) in spans.iter_mut().zip(starts) {
            span.end = span.end.min(next);
        }
        Self { spans, last: 0 }
    }

    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub fn span(&self, index: usize) -> Option<&Span> {
        self.spans.get(index)
    }

    /// Returns the index of the iteration that contains a moment, or `None` if there is none.
    pub fn at(&mut self, moment: u64) -> Option<usize> {
        let index = self.first_ending_after(moment);
        self.spans
            .get(index)
            .filter(|span| span.start <= moment)
            .map(|_| index)
    }

    /// Returns the indexes of the first and the last iteration that a span overlaps, or `None` if it overlaps none.
    pub fn reach(&mut self, span: &Span) -> Option<(usize, usize)> {
        let first = self.first_ending_after(span.start);
        if self.spans.get(first)?.start >= span.end {
            return None;
        }
        let rest = self.spans.get(first..)?;
        // Few spans extend beyond the first iteration that they overlap, so search for the last iteration only if this
        // span does.
        let more = match rest.get(1) {
            Some(next) if next.start < span.end => {
                rest.partition_point(|other| other.start < span.end) - 1
            }
            _ => 0,
        };
        Some((first, first + more))
    }

    fn first_ending_after(&mut self, moment: u64) -> usize {
        let is_it = |index: usize| {
            let before = index
                .checked_sub(1)
                .and_then(|before| self.spans.get(before));
            self.spans.get(index).is_some_and(|span| moment < span.end)
                && before.is_none_or(|before| before.end <= moment)
        };
        let index = if is_it(self.last) {
            self.last
        } else if is_it(self.last + 1) {
            self.last + 1
        } else {
            self.spans.partition_point(|span| span.end <= moment)
        };
        self.last = index;
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn moments_and_stretches_find_their_iterations() {
        let spans = vec![span(10, 20), span(20, 35), span(30, 40), span(50, 60)];
        let mut timeline = Spans::new(spans);
        for (moment, index) in [
            (9, None),
            (10, Some(0)),
            (19, Some(0)),
            (20, Some(1)),
            (30, Some(2)),
            (45, None),
            (59, Some(3)),
            (60, None),
            (12, Some(0)),
        ] {
            assert_eq!(timeline.at(moment), index, "{moment}");
        }
        assert_eq!(timeline.reach(&span(0, 10)), None);
        assert_eq!(timeline.reach(&span(0, 11)), Some((0, 0)));
        assert_eq!(timeline.reach(&span(15, 100)), Some((0, 3)));
        assert_eq!(timeline.reach(&span(25, 31)), Some((1, 2)));
        assert_eq!(timeline.reach(&span(41, 49)), None);
        assert_eq!(timeline.reach(&span(60, u64::MAX)), None);
        assert_eq!(Spans::new(Vec::new()).reach(&span(0, 1)), None);
    }
}
