//! Decides when a sample of GPU kernels (a short window that the library opens at intervals) is due.

use core::time::Duration;

use tllmprof_config::kernels::KernelSamples;

/// Decides for each iteration if a sample of GPU kernels is due.
///
/// The time since the epoch is divided into periods of the length [`KernelSamples::every`]. A sample is due once in
/// each period after the one in which the first iteration begins. All ranks on a machine share the system's clock, so
/// they are sampled together. If each rank were sampled at another time, it would be slower than the others at that
/// time, and the others would have to wait for it.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    samples: KernelSamples,
    /// The number of the latest period for which no further sample is due: a sample was taken in it, or the first
    /// iteration began in it. `None` before the first iteration.
    over: Option<u64>,
}

impl Sampler {
    pub const fn new(samples: KernelSamples) -> Self {
        let over = None;
        Self { samples, over }
    }

    pub const fn samples(&self) -> KernelSamples {
        self.samples
    }

    /// Called when an iteration begins. `now` is the time since the epoch. If a sample is due and `may_open` returns
    /// true, marks the current period as sampled and returns true.
    pub fn begins(&mut self, now: Duration, may_open: impl FnOnce() -> bool) -> bool {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let period = ns(now) / ns(self.samples.every).max(1);
        let over = *self.over.get_or_insert(period);
        let opens = over != period && may_open();
        if opens {
            self.over = Some(period);
        }
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(ms: impl IntoIterator<Item = u64>, may_open: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut sampler = Sampler::new(KernelSamples {
            steps: 2,
            every: Duration::from_secs(10),
        });
        let is_one = |ms: &u64| sampler.begins(Duration::from_millis(*ms), || may_open(*ms));
        ms.into_iter().filter(is_one).collect()
    }

    #[test]
    fn a_sample_is_due_once_in_each_period_but_the_first() {
        assert_eq!(
            sampled((3..40_000).step_by(7), |_| true),
            [10_006, 20_002, 30_005]
        );
        // Here the process waits for requests from 7000 ms to 93000 ms. Several samples are due in that time, but only
        // one is taken when the process works again.
        assert_eq!(sampled([5000, 7000, 93_000, 95_000], |_| true), [93_000]);
    }

    #[test]
    fn a_sample_that_cannot_open_waits_and_the_next_keeps_its_time() {
        let free = |ms| !(9000..14_000).contains(&ms) && !(19_000..45_000).contains(&ms);
        assert_eq!(
            sampled((0..60_000).step_by(500), free),
            [14_000, 45_000, 50_000]
        );
    }

    #[test]
    fn a_clock_that_is_set_back_makes_one_sample_more() {
        assert_eq!(
            sampled([15_000, 21_000, 12_000, 13_000, 22_000], |_| true),
            [21_000, 12_000, 22_000]
        );
    }
}
