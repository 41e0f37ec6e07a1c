//! Distributes the events of a track, such as a thread, to the lines on which a trace viewer draws them. Events can
//! share a line if they are nested or do not overlap.
//!
//! A thread's events arrive in the order of their ends, so a parent comes after its children. For each line, only the
//! outermost spans are stored: a parent replaces its children. These spans do not overlap. If it is unknown whether a
//! span is nested, the span goes to another line, so a track may get one line more than necessary.

/// Maximum number of lines to which the events of one track are distributed.
const MAX_LINES: usize = 1024;

/// Returns the maximum number of spans that a line stores one by one, in a record with `lines` lines. If a line has
/// more spans, its oldest neighbouring spans are merged. Records with many lines get a lower limit, which bounds the
/// memory for all lines.
#[must_use]
pub(crate) const fn kept_apart(lines: usize) -> usize {
    if lines < 512 { 8192 } else { 128 }
}

#[derive(Clone, Copy, Debug)]
struct LaneSpan {
    start: u64,
    end: u64,
    batch: u32,
}

/// The lines of one track. Events that overlap are on different lines.
#[derive(Default, Debug)]
pub(crate) struct Lanes {
    lines: Vec<Line>,
}

#[derive(Default, Debug)]
struct Line {
    /// The outermost spans of the line. Because they do not overlap, the order of their starts is also the order of
    /// their ends.
    spans: Vec<LaneSpan>,
}

impl Lanes {
    /// Adds a span to the first line that can take the span, or to a further line, and returns the index of that line.
    /// Returns `None` if no line can take the span and no further line is allowed.
    ///
    /// `batch` is the number of the batch (the events that are sorted and written together) that contains the span.
    /// Spans arrive in the order of their ends. The events of one batch are written in the order of their starts, and
    /// if two events start together, the longer one comes first. So a span can contain an earlier span with the same
    /// start only if both are in the same batch.
    ///
    /// `limit` is the maximum number of spans that a line stores one by one.
    pub(crate) fn line(&mut self, start: u64, end: u64, batch: u32, limit: usize) -> Option<usize> {
        let span = LaneSpan { start, end, batch };
        let takes = |line: &mut Line| line.take(span, limit);
        if let Some(fits) = self.lines.iter_mut().position(takes) {
            return Some(fits);
        }
        if self.lines.len() == MAX_LINES {
            return None;
        }
        self.lines.push(Line { spans: vec![span] });
        Some(self.lines.len() - 1)
    }
}

impl Line {
    /// Adds a span to the line if each existing span lies completely inside the new span or completely outside of it.
    /// An existing span with the same start and another batch does not count as inside, unless its length is 0 (see
    /// [`Lanes::line`]). Returns true if the span was added.
    fn take(&mut self, span: LaneSpan, limit: usize) -> bool {
        // The spans from `first` on do not start before the new span. Each of them must lie either inside the new span
        // or after it.
        let first = match self.spans.last() {
            Some(last) if last.start < span.start => self.spans.len(),
            _ => self.spans.partition_point(|other| other.start < span.start),
        };
        let before = first.checked_sub(1).and_then(|at| self.spans.get(at));
        if before.is_some_and(|before| before.end > span.start) {
            return false;
        }
        let rest = &self.spans[first..];
        if let Some(same) = rest.first().filter(|same| same.start == span.start)
            && same.end > same.start
            && same.batch != span.batch
        {
            return false;
        }
        let inside = rest.partition_point(|other| other.end <= span.end);
        if rest.get(inside).is_some_and(|after| after.start < span.end) {
            return false;
        }
        if inside == 0 {
            self.spans.insert(first, span);
            self.limit(limit);
        } else {
            self.spans[first] = span;
            self.spans.drain(first + 1..first + inside);
        }
        true
    }

    fn limit(&mut self, limit: usize) {
        if self.spans.len() < limit {
            return;
        }
        let recent = self.spans.split_off(self.spans.len() - limit / 2);
        let pairs = self.spans.chunks(2).map(|pair| LaneSpan {
            end: pair[pair.len() - 1].end,
            ..pair[0]
        });
        self.spans = pairs.chain(recent).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(spans: &[(u64, u64, u32)]) -> Vec<usize> {
        let mut lanes = Lanes::default();
        let mut line =
            |(start, end, batch): &(u64, u64, u32)| lanes.line(*start, *end, *batch, 8192);
        spans.iter().map(|span| line(span).unwrap()).collect()
    }

    #[test]
    fn what_nests_stays_together() {
        let nested = [
            (1, 2, 0),
            (3, 4, 0),
            (0, 5, 0),
            (6, 7, 0),
            (0, 9, 0),
            (9, 9, 0),
        ];
        assert_eq!(lines(&nested), [0; 6]);
        // Spans that do not overlap share a line, even if they do not arrive in the order of their ends.
        assert_eq!(lines(&[(8, 9, 0), (0, 3, 0), (4, 5, 0)]), [0; 3]);
    }

    #[test]
    fn what_overlaps_is_put_apart() {
        assert_eq!(
            lines(&[(0, 10, 0), (5, 15, 0), (10, 20, 0), (12, 25, 0)]),
            [0, 1, 0, 2]
        );
        // A child arrives before its parent. Here the second span arrives after a longer span that contains it, so it
        // may not be a child and gets another line.
        assert_eq!(lines(&[(0, 10, 0), (2, 3, 0)]), [0, 1]);
        assert_eq!(lines(&[(5, 15, 0), (0, 10, 0)]), [0, 1]);
    }

    #[test]
    fn a_common_start_nests_only_within_a_batch() {
        assert_eq!(lines(&[(0, 5, 0), (0, 9, 0)]), [0, 0]);
        assert_eq!(lines(&[(0, 5, 0), (0, 9, 1)]), [0, 1]);
        assert_eq!(lines(&[(0, 0, 0), (0, 9, 1)]), [0, 0]);
    }

    #[test]
    fn no_two_overlap_however_many_there_are() {
        for limit in [8192, 16] {
            no_two_overlap(limit);
        }
    }

    fn no_two_overlap(limit: usize) {
        let mut lanes = Lanes::default();
        let mut drawn: Vec<(usize, u64, u64)> = Vec::new();
        let mut state = 1_u64;
        for n in 0..40_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let end = n * 10 + 1000;
            let start = end
                - match n % 100 {
                    99 => 900,
                    _ => 1 + (state >> 33) % 14,
                };
            if let Some(line) = lanes.line(start, end, 0, limit) {
                drawn.push((line, start, end));
            }
        }
        assert_eq!(drawn.len(), 40_000);
        drawn.sort_by_key(|(line, start, end)| (*line, *start, std::cmp::Reverse(*end)));
        for line in drawn.chunk_by(|a, b| a.0 == b.0) {
            let mut open: Vec<u64> = Vec::new();
            for (_, start, end) in line {
                while open.last().is_some_and(|outer| outer <= start) {
                    open.pop();
                }
                assert!(open.last().is_none_or(|outer| end <= outer));
                open.push(*end);
            }
        }
    }
}
