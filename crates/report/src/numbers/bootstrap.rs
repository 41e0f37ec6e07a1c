//! Confidence intervals for the difference between two series of iterations, by a moving-block bootstrap.
//!
//! Consecutive iterations take similar times, because a batch grows, a clock drops or a garbage collection occurs
//! every N iterations. A bootstrap that draws single iterations treats them as independent, so its intervals are too
//! narrow. This bootstrap draws blocks of consecutive iterations, and a block may wrap around from the end to the
//! start. The block length follows from the distance at which iterations are still correlated (D. N. Politis, H.
//! White, *Automatic block-length selection for the dependent bootstrap*, 2004, as corrected by Patton, Politis and
//! White, 2009). The same series always result in the same interval.

/// Probability that a confidence interval contains the true value.
const COVERAGE: f64 = 0.95;

/// Maximum number of resamples. Long series get fewer, so that [`MAX_DRAWN_VALUES`] is not
/// exceeded.
const MAX_RESAMPLES: usize = 2000;
/// Minimum number of resamples. Very long series may therefore exceed [`MAX_DRAWN_VALUES`].
const MIN_RESAMPLES: usize = 200;
/// Maximum number of values that are drawn in all resamples together.
const MAX_DRAWN_VALUES: usize = 20_000_000;

/// Maximum distance between two iterations, as a number of iterations, for which their correlation
/// is computed.
const MAX_LAG: usize = 100;

/// A statistic of a series whose change is computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Statistic {
    Mean,
    /// A quantile by the nearest-rank method. The field is a fraction, such as 0.9.
    Quantile(f64),
}

impl Statistic {
    /// Returns the minimum number of values for a meaningful interval. For a quantile, enough
    /// values must lie beyond it.
    pub(crate) fn least(self) -> usize {
        match self {
            Self::Mean => 8,
            Self::Quantile(share) => (8.0_f64).max(4.0 / (1.0 - share)).ceil() as usize,
        }
    }

    /// Returns the statistic of these values; 0 if there are no values.
    pub(crate) fn compute(self, values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        weighted(&sorted, &vec![1; sorted.len()], self)
    }
}

/// The difference between two series, relative to the first series.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Change {
    /// The change as a fraction: 0.02 is 2 %. In JSON it is `null` if it is infinite.
    pub relative: f64,
    /// The 95 % confidence interval of `relative`; `None` if there are too few values, or if an end of the interval
    /// would be infinite.
    pub interval: Option<(f64, f64)>,
}

/// A series of values in a form from which resamples can be drawn quickly.
struct Series {
    sorted: Vec<f64>,
    /// For each value in the original order, its index in `sorted`.
    places: Vec<u32>,
    block: usize,
}

impl Series {
    fn new(values: &[f64]) -> Self {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by(|a, b| values[*a as usize].total_cmp(&values[*b as usize]));
        let mut places = vec![0; values.len()];
        for (place, index) in (0..).zip(&order) {
            places[*index as usize] = place;
        }
        Self {
            sorted: order.iter().map(|index| values[*index as usize]).collect(),
            places,
            block: block_length(values),
        }
    }

    /// Returns the length of the series as a number of blocks, which may be fractional.
    fn blocks(&self) -> f64 {
        self.places.len() as f64 / self.block as f64
    }

    /// Draws a resample. Afterwards, `counts` has for each value of `sorted` the number of times
    /// that the value is in the resample.
    fn draw(&self, random: &mut SplitMix, counts: &mut Vec<u32>) {
        let length = self.places.len();
        counts.clear();
        counts.resize(length, 0);
        let mut left = length;
        while left > 0 {
            let start = random.below(length);
            let take = self.block.min(left);
            let ahead = take.min(length - start);
            let parts = [start..start + ahead, 0..take - ahead];
            for place in parts.into_iter().flat_map(|part| &self.places[part]) {
                counts[*place as usize] += 1;
            }
            left -= take;
        }
    }
}

/// Returns a statistic of sorted values, in which each value occurs as often as its entry in
/// `counts` says.
fn weighted(sorted: &[f64], counts: &[u32], statistic: Statistic) -> f64 {
    let values = || sorted.iter().zip(counts);
    let length = sorted.len().max(1) as f64;
    match statistic {
        Statistic::Mean => {
            let sum: f64 = values()
                .map(|(value, count)| value * f64::from(*count))
                .sum();
            sum / length
        }
        Statistic::Quantile(share) => {
            let rank = ((share * length).ceil() as u64).max(1);
            let mut seen = 0;
            let mut found = values().filter(|(_, count)| {
                seen += u64::from(**count);
                seen >= rank
            });
            found.next().map_or(0.0, |(value, _)| *value)
        }
    }
}

/// Returns the change of each statistic from the series `base` to the series `other`. Neither
/// series may be empty.
pub(crate) fn changes(base: &[f64], other: &[f64], statistics: &[Statistic]) -> Vec<Change> {
    let sides = [Series::new(base), Series::new(other)];
    let whole = sides.each_ref().map(|side| vec![1; side.sorted.len()]);
    let mut found: Vec<Vec<f64>> = statistics.iter().map(|_| Vec::new()).collect();
    let fewest = base.len().min(other.len());
    let mut random = SplitMix(0x7465_6c6c_6d70_726f);
    let mut counts = [Vec::new(), Vec::new()];
    let wanted = statistics
        .iter()
        .any(|statistic| fewest >= statistic.least());
    let resamples =
        (MAX_DRAWN_VALUES / (base.len() + other.len()).max(1)).clamp(MIN_RESAMPLES, MAX_RESAMPLES);
    for _ in 0..if wanted { resamples } else { 0 } {
        for (side, counts) in sides.iter().zip(&mut counts) {
            side.draw(&mut random, counts);
        }
        for (statistic, found) in statistics.iter().zip(&mut found) {
            let [base, other] =
                [0, 1].map(|side| weighted(&sides[side].sorted, &counts[side], *statistic));
            found.push(relative(base, other));
        }
    }
    let widening = sides
        .iter()
        .map(|side| widening(side.blocks()))
        .fold(1.0, f64::max);
    statistics
        .iter()
        .zip(found)
        .map(|(statistic, found)| {
            let [base, other] =
                [0, 1].map(|side| weighted(&sides[side].sorted, &whole[side], *statistic));
            let relative = relative(base, other);
            let interval =
                (fewest >= statistic.least()).then(|| interval(found, relative, widening));
            Change {
                relative,
                interval: interval.flatten(),
            }
        })
        .collect()
}

/// Returns the change from `base` to `other`, relative to `base`.
fn relative(base: f64, other: f64) -> f64 {
    if base == other {
        0.0
    } else {
        other / base - 1.0
    }
}

/// Returns the interval that contains the middle 95 % of the resampled changes, widened by the factor `widening`. The
/// factor corrects for a small number of blocks. Returns `None` if an end of the interval is infinite.
fn interval(mut found: Vec<f64>, estimate: f64, widening: f64) -> Option<(f64, f64)> {
    found.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (share * (found.len() as f64 - 1.0)).round() as usize;
        let value = *found.get(place)?;
        value
            .is_finite()
            .then_some(estimate + (value - estimate) * widening)
    };
    let tail = (1.0 - COVERAGE) / 2.0;
    Some((at(tail)?, at(1.0 - tail)?))
}

/// Returns the factor by which the bootstrap's interval must be widened if the series has only
/// `pieces` independent pieces. The bootstrap divides the variance by n instead of n - 1, and uses
/// the normal distribution instead of Student's.
fn widening(pieces: f64) -> f64 {
    const NORMAL: f64 = 1.959_964;
    let (freedom, z) = ((pieces - 1.0).max(1.0), NORMAL);
    // This series in powers of 1/freedom approximates the quantile of Student's distribution
    // (Abramowitz and Stegun, 26.7.5).
    let student = z
        + (z.powi(3) + z) / (4.0 * freedom)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z)
            / (384.0 * freedom.powi(3));
    student / z * ((freedom + 1.0) / freedom).sqrt()
}

/// Returns the best length of blocks, in values, for estimating the mean of a series, by the method of Politis and
/// White (see the top of this file).
fn block_length(values: &[f64]) -> usize {
    let length = values.len();
    let size = length as f64;
    let mean = values.iter().sum::<f64>() / size;
    let covariance = |lag: usize| {
        let pairs = values.iter().zip(values.iter().skip(lag));
        pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / size
    };
    let variance = covariance(0);
    if !variance.is_normal() || length < 8 {
        return 1;
    }
    // If the covariances at `few` consecutive distances are small, the covariances at all larger distances are regarded
    // as random.
    let few = 5.max(size.log10().sqrt() as usize);
    let furthest = (size.sqrt().ceil() as usize + few)
        .min(MAX_LAG)
        .min(length - 1);
    let chance = 2.0 * (size.log10() / size).sqrt() * variance;
    let mut covariances = vec![variance];
    let mut quiet = 0;
    for lag in 1..=furthest {
        covariances.push(covariance(lag));
        quiet = if covariances[lag].abs() < chance {
            quiet + 1
        } else {
            0
        };
        if quiet == few {
            break;
        }
    }
    let last = covariances.len() - 1;
    let significant = (last - quiet.min(last)).max(1);
    let reach = (2 * significant).min(furthest);
    let (mut spread, mut bend) = (variance, 0.0);
    for lag in 1..=reach {
        let covariance = covariances
            .get(lag)
            .copied()
            .unwrap_or_else(|| covariance(lag));
        // The weight is 1 for distances up to half of `reach`, and then falls linearly to 0.
        let share = lag as f64 / reach as f64;
        let weight = if share <= 0.5 {
            1.0
        } else {
            2.0 * (1.0 - share)
        };
        spread += 2.0 * weight * covariance;
        bend += 2.0 * weight * lag as f64 * covariance;
    }
    let longest = (3.0 * size.sqrt()).min(size / 3.0).ceil() as usize;
    let best = (1.5 * (bend / spread).powi(2) * size).cbrt();
    if spread > 0.0 && best.is_finite() {
        (best.round() as usize).clamp(1, longest.max(1))
    } else {
        1
    }
}

/// A generator of pseudo-random numbers (SplitMix, by Steele, Lea and Flood, 2014). Unlike a
/// library's generator, it returns the same numbers in every version.
struct SplitMix(u64);

impl SplitMix {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `limit`, which may be at most 2^32.
    const fn below(&mut self, limit: usize) -> usize {
        (((self.next() >> 32) * limit as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a series of random times with the expected value `mean`. Their logarithms are normally distributed.
    /// `like` is the correlation between the logarithms of consecutive times.
    fn series(random: &mut SplitMix, length: usize, mean: f64, like: f64) -> Vec<f64> {
        let mut state = 0.0;
        (0..length + 50)
            .map(|_| {
                let uniform = |random: &mut SplitMix| {
                    (random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30)
                };
                let (radius, angle) = (uniform(random), uniform(random));
                let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
                state = like * state + (1.0 - like * like).sqrt() * normal;
                mean * (0.1 * state - 0.005).exp()
            })
            .skip(50)
            .collect()
    }

    /// Returns the fraction of confidence intervals that contain the true value, over many random
    /// series.
    fn coverage(length: usize, like: f64, statistic: Statistic) -> f64 {
        let mut random = SplitMix(length as u64);
        let rounds = 120;
        let held = (0..rounds).filter(|_| {
            let base = series(&mut random, length, 10.0, like);
            let other = series(&mut random, length * 3 / 2, 9.0, like);
            let change = changes(&base, &other, &[statistic])[0];
            change
                .interval
                .is_some_and(|(low, high)| (low..=high).contains(&-0.1))
        });
        held.count() as f64 / f64::from(rounds)
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        for (length, like, statistic) in [
            (20, 0.0, Statistic::Mean),
            (200, 0.0, Statistic::Mean),
            (200, 0.5, Statistic::Mean),
            (400, 0.7, Statistic::Mean),
            (200, 0.0, Statistic::Quantile(0.5)),
            (200, 0.3, Statistic::Quantile(0.9)),
        ] {
            let held = coverage(length, like, statistic);
            assert!(
                (0.9..=0.99).contains(&held),
                "{length} {like} {statistic:?}: {held}"
            );
        }
    }

    #[test]
    fn blocks_are_longer_where_values_are_alike() {
        let mut random = SplitMix(1);
        let lengths =
            [0.0, 0.5, 0.9].map(|like| block_length(&series(&mut random, 1000, 1.0, like)));
        assert!(
            lengths[0] < lengths[1] && lengths[1] < lengths[2],
            "{lengths:?}"
        );
        assert_eq!(block_length(&[1.0; 100]), 1);
        assert_eq!(block_length(&[1.0, 2.0]), 1);
    }

    #[test]
    fn the_same_series_give_the_same_interval() {
        let mut random = SplitMix(3);
        let [a, b] = [10.0, 11.0].map(|mean| series(&mut random, 100, mean, 0.3));
        let statistics = [Statistic::Mean, Statistic::Quantile(0.99)];
        let first = changes(&a, &b, &statistics);
        assert_eq!(first, changes(&a, &b, &statistics));
        assert!(first[0].interval.is_some());
        assert_eq!(
            first[1].interval, None,
            "one value is beyond the 99th percentile"
        );
        assert_eq!(changes(&a, &a, &statistics)[0].relative, 0.0);
        assert_eq!(
            changes(&[1.0; 7], &[2.0; 9], &statistics)[0],
            Change {
                relative: 1.0,
                interval: None
            }
        );
        let zeros = changes(&[0.0; 9], &[2.0; 9], &statistics)[0];
        assert_eq!(zeros.interval, None);
    }
}
