//! The offset between two clocks, computed from events whose time is known on both clocks. The
//! offset is a straight line over time, or several lines if a clock jumps.

/// Minimum number of points (times of events with their offsets) in a block, unless there are fewer points in all. Each
/// block is represented by the median of its points.
const MIN_BLOCK_POINTS: usize = 8;
/// Maximum number of blocks. If there are many points, each block has more than [`MIN_BLOCK_POINTS`] points.
const MAX_BLOCKS: usize = 64;
/// Minimum number of blocks for which a drift of the clock is computed. With fewer, the drift is assumed to be 0.
const MIN_DRIFT_BLOCKS: usize = 4;
/// Minimum difference in offset between neighbouring blocks, in nanoseconds, that is regarded as a jump of a clock. The
/// part of the difference that the clock's drift explains is subtracted before.
const MIN_JUMP_NS: f64 = 50_000.0;
/// Minimum ratio of a jump's size to the noise, which is the typical distance of a point from the median of its block.
const MIN_JUMP_TO_NOISE: f64 = 10.0;

/// Maximum absolute offset between two clocks, in nanoseconds. A larger offset is replaced by this limit.
const MAX_OFFSET_NS: i64 = 1 << 60;

/// A straight line: the offset between two clocks as a function of time.
#[derive(Clone, Copy, PartialEq, Debug)]
struct OffsetLine {
    /// Time from which on this line applies, in nanoseconds.
    from: i64,
    at: i64,
    offset: f64,
    /// Growth of the offset, in nanoseconds per nanosecond.
    drift: f64,
}

/// The offset of a clock from a reference clock, as a function of time. A time on the clock minus
/// the offset is the time on the reference clock.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Fit {
    lines: Vec<OffsetLine>,
    /// Distance from the lines, in nanoseconds, within which 9 of 10 points lie.
    pub error: u64,
}

/// A jump of a clock: the time at which it occurs, and its size. Both are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jump {
    pub at: i64,
    pub by: i64,
}

impl Fit {
    /// Fits straight lines to points. A point is a time and the clock's offset from the reference
    /// clock at that time. Points must be in the order of their times.
    pub(crate) fn through(points: &[(i64, i64)]) -> Self {
        if points.is_empty() {
            return Self::default();
        }
        let blocks: Vec<_> = blocks(points).collect();
        let mut parts = vec![0];
        parts.extend(jumps(points, &blocks));
        let ends: Vec<_> = parts
            .iter()
            .skip(1)
            .copied()
            .chain([points.len()])
            .collect();
        let lines: Vec<_> = parts
            .into_iter()
            .zip(ends)
            .map(|(from, to)| line(&points[from..to]))
            .collect();
        let mut fit = Self { lines, error: 0 };
        let off = points.iter().map(|(at, ahead)| ahead.abs_diff(fit.at(*at)));
        let mut off: Vec<_> = off.collect();
        let nine = (off.len() * 9).div_ceil(10) - 1;
        fit.error = *off.select_nth_unstable(nine).1;
        fit
    }

    /// Returns the offset from the reference clock at a time, in nanoseconds.
    pub(crate) fn at(&self, moment: i64) -> i64 {
        let after = self.lines.partition_point(|line| line.from <= moment);
        let line = self.lines.get(after.saturating_sub(1));
        let ahead = line.map_or(0.0, |line| {
            line.offset + line.drift * (moment - line.at) as f64
        });
        (ahead.round() as i64).clamp(-MAX_OFFSET_NS, MAX_OFFSET_NS)
    }

    pub(crate) fn jumps(&self) -> Vec<Jump> {
        let pairs = self.lines.windows(2).map(|pair| {
            let at = pair[1].from;
            let before = pair[0].offset + pair[0].drift * (at - pair[0].at) as f64;
            let before = (before.round() as i64).clamp(-MAX_OFFSET_NS, MAX_OFFSET_NS);
            let by = self.at(at) - before;
            Jump { at, by }
        });
        pairs.collect()
    }

    /// Returns the drift of the clock (the slope of the first line) in parts per million.
    pub(crate) fn drift(&self) -> f64 {
        self.lines.first().map_or(0.0, |line| line.drift * 1e6)
    }

    /// Returns the smallest absolute offset of all lines, in nanoseconds.
    pub(crate) fn least(&self) -> u64 {
        let offsets = self.lines.iter().map(|line| line.offset.abs() as u64);
        offsets.min().unwrap_or(0)
    }
}

/// Divides points into blocks of neighbouring points. Returns the index of each block's first point
/// and the number of its points.
fn blocks(points: &[(i64, i64)]) -> impl Iterator<Item = (usize, usize)> {
    let count = (points.len() / MIN_BLOCK_POINTS).clamp(1, MAX_BLOCKS);
    let edge = move |block: usize| block * points.len() / count;
    (0..count).map(move |block| (edge(block), edge(block + 1) - edge(block)))
}

pub(crate) fn median(values: &mut [i64]) -> i64 {
    match values.len() {
        0 => 0,
        length => *values.select_nth_unstable(length / 2).1,
    }
}

fn middle(values: &mut [f64]) -> f64 {
    let half = values.len() / 2;
    match values.is_empty() {
        true => 0.0,
        false => *values.select_nth_unstable_by(half, f64::total_cmp).1,
    }
}

fn centre(points: &[(i64, i64)]) -> (i64, i64) {
    let mut ahead: Vec<_> = points.iter().map(|(_, ahead)| *ahead).collect();
    let at = points.get(points.len() / 2).map_or(0, |(at, _)| *at);
    (at, median(&mut ahead))
}

/// Returns the index of the first point after each jump of the clock.
fn jumps(points: &[(i64, i64)], blocks: &[(usize, usize)]) -> Vec<usize> {
    let of = |(from, length): &(usize, usize)| &points[*from..from + length];
    let centres: Vec<_> = blocks.iter().map(|block| centre(of(block))).collect();
    let mut noise: Vec<_> = blocks
        .iter()
        .zip(&centres)
        .map(|(block, (_, centre))| {
            let mut off: Vec<_> = of(block)
                .iter()
                .map(|(_, one)| (one - centre).abs())
                .collect();
            median(&mut off) as f64
        })
        .collect();
    let noise = middle(&mut noise);
    let pairs = || {
        centres
            .windows(2)
            .map(|pair| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1))
    };
    let mut rates: Vec<_> = pairs()
        .map(|(time, more)| more as f64 / (time.max(1)) as f64)
        .collect();
    let drift = middle(&mut rates);
    let least = MIN_JUMP_NS.max(MIN_JUMP_TO_NOISE * noise);
    let is_one = |(time, more): (i64, i64)| (more as f64 - drift * time as f64).abs() > least;
    let after = pairs().enumerate().filter(|(_, pair)| is_one(*pair));
    let after: Vec<_> = after.map(|(block, _)| block).collect();
    after
        .into_iter()
        .map(|block| {
            // The jump is somewhere in this block or in the next one. Find the index that divides the points
            // of the two blocks best: the points before the index are near the median offset of the first
            // block, and the other points are near the median offset of the second block.
            let (from, until) = (blocks[block].0, blocks[block + 1].0 + blocks[block + 1].1);
            let (before, behind) = (centres[block].1, centres[block + 1].1);
            let mut cost: i128 = points[from..until]
                .iter()
                .map(|(_, one)| i128::from((one - behind).abs()))
                .sum();
            let mut best = (cost, from);
            for (at, (_, one)) in points[from..until].iter().enumerate() {
                cost += i128::from((one - before).abs()) - i128::from((one - behind).abs());
                best = best.min((cost, from + at + 1));
            }
            best.1.clamp(1, points.len() - 1)
        })
        .fold(Vec::new(), |mut parts, part| {
            if parts.last().is_none_or(|last| *last < part) {
                parts.push(part);
            }
            parts
        })
}

/// Fits one straight line to points (times with the clock's offset). The clock must not jump between these points.
fn line(points: &[(i64, i64)]) -> OffsetLine {
    let centres: Vec<_> = blocks(points)
        .map(|(from, length)| centre(&points[from..from + length]))
        .collect();
    let (at, _) = centre(points);
    let mut slopes = Vec::new();
    if centres.len() >= MIN_DRIFT_BLOCKS {
        for (place, one) in centres.iter().enumerate() {
            let others = centres[place + 1..].iter();
            slopes.extend(
                others.map(|other| (other.1 - one.1) as f64 / (other.0 - one.0).max(1) as f64),
            );
        }
    }
    let drift = middle(&mut slopes);
    let mut offsets: Vec<_> = points
        .iter()
        .map(|(moment, ahead)| *ahead as f64 - drift * (moment - at) as f64)
        .collect();
    OffsetLine {
        from: points.first().map_or(0, |(first, _)| *first),
        at,
        offset: middle(&mut offsets),
        drift,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number between `-most` and `most` that looks random but is the same in each run.
    fn noise(n: i64, most: i64) -> i64 {
        (n * 7_919 + n * n * 104_729).rem_euclid(2 * most + 1) - most
    }

    #[test]
    fn lines_are_found_among_points_that_are_far_off() {
        let points: Vec<_> = (0..1000)
            .map(|n| {
                let at = n * 1_000_000;
                // In this test the drift is 20 parts per million, and every tenth point is half a
                // millisecond late.
                let late = if n % 10 == 3 { 500_000 } else { 0 };
                (at, 7_000_000 + at / 50_000 + noise(n, 4_000) + late)
            })
            .collect();
        let fit = Fit::through(&points);
        assert_eq!(fit.jumps(), []);
        for n in [0, 500, 999] {
            let at = n * 1_000_000;
            let off = fit.at(at) - (7_000_000 + at / 50_000);
            assert!(off.abs() < 1_000, "{n}: {off}");
        }
        assert!((fit.drift() - 20.0).abs() < 1.0, "{}", fit.drift());
        assert!(fit.error < 5_000, "{}", fit.error);
    }

    #[test]
    fn jumps_are_found_where_they_are() {
        let ahead = |n: i64| if n < 613 { 0 } else { 2_000_000 } + noise(n, 3_000);
        let points: Vec<_> = (0..1000).map(|n| (n * 10_000, ahead(n))).collect();
        let fit = Fit::through(&points);
        let jumps = fit.jumps();
        assert_eq!(jumps.len(), 1, "{jumps:?}");
        assert!((jumps[0].at - 6_130_000).abs() <= 10_000, "{jumps:?}");
        assert!((jumps[0].by - 2_000_000).abs() < 3_000, "{jumps:?}");
        assert!(fit.at(10_000).abs() < 3_000 && (fit.at(9_000_000) - 2_000_000).abs() < 3_000);
    }

    #[test]
    fn a_few_points_are_enough_for_an_offset() {
        assert_eq!(Fit::through(&[]).at(5), 0);
        let fit = Fit::through(&[(10, 100), (20, 104), (30, 99)]);
        assert_eq!((fit.at(0), fit.at(1000)), (100, 100));
    }
}
