//! Counts the launches of GPU work by thread, to find a thread that launches the work of other
//! threads' iterations.

use super::by_thread::ByThread;

/// Minimum share of all launches, as a fraction, for a thread to be called the launcher of other
/// threads' work.
const MIN_LAUNCH_SHARE: f64 = 0.9;

/// Number of launches that each thread made.
#[derive(Debug, Default)]
pub(crate) struct Launchers {
    threads: ByThread<u64>,
}

impl Launchers {
    /// Counts a launch by a thread.
    #[inline]
    pub(crate) fn add(&mut self, thread: u32) {
        if let Some(launches) = self.threads.get_mut(thread) {
            *launches += 1;
        }
    }

    /// Returns the thread that launches the work of other threads' iterations, if there is one.
    /// That thread makes nearly all launches and has no iterations itself. `is_own` returns true
    /// for a thread that has iterations.
    pub(crate) fn of_others(&self, is_own: impl Fn(u32) -> bool) -> Option<u32> {
        let all: u64 = self.threads.iter().map(|(_, launches)| launches).sum();
        let (thread, launches) = self.threads.iter().max_by_key(|(_, launches)| **launches)?;
        let most = *launches as f64 >= MIN_LAUNCH_SHARE * all as f64;
        (most && !is_own(thread)).then_some(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_launches_for_the_others_if_it_makes_nearly_all_launches() {
        let of = |launches: &[(u32, u64)], own: u32| {
            let mut launchers = Launchers::default();
            for (thread, count) in launches {
                (0..*count).for_each(|_| launchers.add(*thread));
            }
            launchers.of_others(|thread| thread == own)
        };
        assert_eq!(of(&[(7, 95), (8, 5)], 8), Some(7));
        // No launcher is found if the launching thread has iterations itself, if two threads
        // launch, or if there are no launches.
        assert_eq!(of(&[(7, 95), (8, 5)], 7), None);
        assert_eq!(of(&[(7, 60), (8, 40)], 9), None);
        assert_eq!(of(&[], 9), None);
    }
}
