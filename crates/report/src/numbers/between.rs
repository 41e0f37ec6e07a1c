//! Confidence intervals for the difference between two groups of runs. Each run contributes one
//! value, so the interval expresses the variation between runs.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::bootstrap::Change;

/// Probability that a confidence interval contains the true value.
const COVERAGE: f64 = 0.95;

/// The number of values of one group, the mean of their logarithms, and the variance of that mean.
struct Logs {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Logs {
    fn new(values: &[f64]) -> Option<Self> {
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let variance = squares / (count - 1.0).max(1.0) / count;
        mean.is_finite().then_some(Self {
            count,
            mean,
            variance,
        })
    }
}

/// Returns the change of the geometric mean from `base` to `other`, by Welch's t-test on the
/// logarithms. If one side has a single run, its variance is assumed to be that of the other side.
/// If both sides have a single run, there is no interval. Returns `None` if a side has no runs or a
/// value that is not positive.
pub(crate) fn change(base: &[f64], other: &[f64]) -> Option<Change> {
    let mut sides = [Logs::new(base)?, Logs::new(other)?];
    let [base, other] = &sides;
    let difference = other.mean - base.mean;
    let relative = difference.exp_m1();
    if base.count < 2.0 && other.count < 2.0 {
        return Some(Change {
            relative,
            interval: None,
        });
    }
    let [of_base, of_other] = [base.variance * base.count, other.variance * other.count];
    let freedom = match (base.count < 2.0, other.count < 2.0) {
        (true, _) => {
            sides[0].variance = of_other;
            sides[1].count - 1.0
        }
        (_, true) => {
            sides[1].variance = of_base;
            sides[0].count - 1.0
        }
        _ => freedom(base, other),
    };
    let spread = (sides[0].variance + sides[1].variance).sqrt();
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let half = student.inverse_cdf(0.5 + COVERAGE / 2.0) * spread;
    Some(Change {
        relative,
        interval: Some(((difference - half).exp_m1(), (difference + half).exp_m1())),
    })
}

/// Returns the degrees of freedom for Welch's t-test.
fn freedom(base: &Logs, other: &Logs) -> f64 {
    let part = |side: &Logs| side.variance.powi(2) / (side.count - 1.0);
    let sum = (base.variance + other.variance).powi(2);
    let freedom = sum / (part(base) + part(other));
    match freedom.is_finite() {
        true => freedom.max(1.0),
        // If both variances are 0, the formula would divide 0 by 0.
        false => base.count + other.count - 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_welchs_test() {
        // The expected interval was calculated by hand: the 0.975 quantile of Student's
        // distribution with 4 degrees of freedom is 2.776.
        let e = |log: f64| log.exp();
        let base = [e(0.0), e(0.1), e(0.2)];
        let other = [e(1.0), e(1.1), e(1.2)];
        let found = change(&base, &other).unwrap();
        let half = 2.776_445 * (2.0 * 0.01 / 3.0_f64).sqrt();
        let (low, high) = found.interval.unwrap();
        assert!((found.relative - 1.0_f64.exp_m1()).abs() < 1e-9);
        assert!((low - (1.0 - half).exp_m1()).abs() < 1e-5, "{low}");
        assert!((high - (1.0 + half).exp_m1()).abs() < 1e-5, "{high}");
    }

    #[test]
    fn one_run_varies_as_those_of_the_other_side() {
        let [few, many] = [&[10.0][..], &[10.0, 11.0, 12.0]];
        let (low, high) = change(few, many).unwrap().interval.unwrap();
        let (turned, round) = change(many, few).unwrap().interval.unwrap();
        assert!(low < 0.0 && high > 0.1);
        assert!((1.0 / (1.0 + high) - 1.0 - turned).abs() < 1e-9);
        assert!((1.0 / (1.0 + low) - 1.0 - round).abs() < 1e-9);
        assert_eq!(change(few, few).unwrap().interval, None);
        assert_eq!(change(few, &[]), None);
        assert_eq!(change(&[0.0, 1.0], many), None);
        assert_eq!(
            change(&[2.0, 2.0], &[2.0, 2.0]).unwrap().interval,
            Some((0.0, 0.0))
        );
    }
}
