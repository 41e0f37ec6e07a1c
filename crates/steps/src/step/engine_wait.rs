//! The wait for the step function of a known engine.
//!
//! The calls of an engine's warm-up have patterns of their own: the engine profiles, compiles and captures graphs,
//! often with the same calls many times. So while the module of an engine is in the process and the engine's step
//! function has not been called, no learnt pattern counts iterations. There is no wait if a pattern has already counted
//! reliable iterations before the module was imported. If the function is never called (for example because another
//! version of the engine runs other code), the wait ends when a reliable pattern has recurred for [`MIN_STEADY`] and
//! [`MIN_PERIODS`].

/// Minimum time in nanoseconds for which a reliable pattern has to recur before the wait ends.
const MIN_STEADY: u64 = 10_000_000_000;
/// Minimum number of periods (recurrences of the pattern) before the wait ends.
const MIN_PERIODS: u32 = 64;
/// The longest part of a period, in nanoseconds, that counts towards [`MIN_STEADY`]. Without this limit, a pause of the
/// process would count as time in which the pattern recurs.
const LONGEST_COUNTED: u64 = 250_000_000;

/// The wait for the step function of a known engine, with the steady time of the learnt pattern so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineWait {
    /// The number of imports of engine modules when the latest period began. Another import restarts the measurement.
    imports: u32,
    /// The number of successive periods of a reliable pattern, without a stream capture or an import of an engine
    /// module.
    periods: u32,
    /// The duration of these periods in nanoseconds, each at most [`LONGEST_COUNTED`].
    steady: u64,
    /// The time in nanoseconds when the latest period began; `None` if none has begun since the measurement was
    /// restarted.
    last: Option<u64>,
    is_over: bool,
}

impl EngineWait {
    /// Returns true if the wait has ended without a call of the step function.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Restarts the measurement of the steady time, because the engine may still be in its warm-up.
    pub(crate) fn interrupt(&mut self) {
        (self.periods, self.steady, self.last) = (0, 0, None);
    }

    /// Called when a period of the learnt pattern begins at the time `now`, in nanoseconds. `imports` is the number of
    /// imports of engine modules so far, and `is_reliable` is true if the pattern counts as reliable. Returns true if
    /// the wait is over.
    pub(crate) fn begins(&mut self, imports: u32, is_reliable: bool, now: u64) -> bool {
        if imports != self.imports || !is_reliable {
            self.imports = imports;
            self.interrupt();
            return false;
        }
        if let Some(last) = self.last.replace(now) {
            self.periods += 1;
            self.steady += now.saturating_sub(last).min(LONGEST_COUNTED);
        }
        self.is_over = self.periods >= MIN_PERIODS && self.steady >= MIN_STEADY;
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the number of the period at which the wait ends, if a period begins every `apart` nanoseconds. `act`
    /// runs before each period, and returns the number of imports and whether the pattern is reliable. Periods are
    /// numbered from 0.
    fn ends_at(apart: u64, act: impl Fn(&mut EngineWait, u64) -> (u32, bool)) -> Option<u64> {
        let mut wait = EngineWait::default();
        (0..2000).find(|&period| {
            let (imports, is_reliable) = act(&mut wait, period);
            wait.begins(imports, is_reliable, period * apart)
        })
    }

    #[test]
    fn it_ends_after_a_long_steady_time() {
        // Period 0 finds a new import and only restarts the measurement. Period 1 begins it.
        assert_eq!(ends_at(20 * MS, |_, _| (1, true)), Some(501));
        assert_eq!(ends_at(200 * MS, |_, _| (1, true)), Some(65));
    }

    #[test]
    fn a_pause_is_no_steady_time() {
        assert_eq!(ends_at(100_000 * MS, |_, _| (1, true)), Some(65));
        let mut wait = EngineWait::default();
        let mut now = 0;
        for period in 0..100 {
            now += if period == 50 { 60_000 * MS } else { MS };
            assert!(!wait.begins(1, true, now), "{period}");
        }
    }

    #[test]
    fn an_import_a_capture_or_an_unreliable_pattern_restarts_the_time() {
        let import = |_: &mut EngineWait, period: u64| (1 + u32::from(period >= 300), true);
        assert_eq!(ends_at(20 * MS, import), Some(801));
        let unreliable = |_: &mut EngineWait, period: u64| (1, period != 300);
        assert_eq!(ends_at(20 * MS, unreliable), Some(801));
        let capture = |wait: &mut EngineWait, period: u64| {
            if period == 300 {
                wait.interrupt();
            }
            (1, true)
        };
        assert_eq!(ends_at(20 * MS, capture), Some(800));
    }
}
