//! Tracks the NVTX ranges that a thread has pushed and whose end also ends an iteration.
//!
//! A pop does not say which range it ends. So after the push of a range whose end matters, the thread's pushes and
//! pops in the range's domain are counted until they balance. Most of the time no such range is open, and nothing is
//! counted.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The largest number of ranges that are tracked at a time. If there are more, the outermost ones are dropped, and
/// their iterations end where the next iterations begin.
const MAX_FOLLOWED: usize = 8;

struct StepRange {
    domain: AtomicUsize,
    iteration: AtomicU64,
    /// The number of open ranges inside the tracked range that are in the same domain and are not tracked themselves.
    inner: AtomicU64,
}

/// The tracked ranges of one thread, the innermost last. Only that thread uses them.
pub struct OpenRanges {
    count: AtomicUsize,
    ranges: [StepRange; MAX_FOLLOWED],
}

impl OpenRanges {
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            ranges: [const {
                StepRange {
                    domain: AtomicUsize::new(0),
                    iteration: AtomicU64::new(0),
                    inner: AtomicU64::new(0),
                }
            }; MAX_FOLLOWED],
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Called when the thread has pushed an NVTX range. `iteration` is the iteration that ends with
    /// the range, if there is one.
    pub fn pushed(&self, domain: usize, iteration: Option<u64>) {
        match iteration {
            Some(iteration) => self.follow(domain, iteration),
            None => {
                if let Some(index) = self.innermost(domain) {
                    let inner = &self.ranges[index].inner;
                    inner.store(inner.load(Relaxed) + 1, Relaxed);
                }
            }
        }
    }

    /// Called when the thread has popped a range in `domain`. Returns the iteration that ends with the range,
    /// if there is one.
    pub fn popped(&self, domain: usize) -> Option<u64> {
        let index = self.innermost(domain)?;
        let range = &self.ranges[index];
        match range.inner.load(Relaxed) {
            0 => {
                let iteration = range.iteration.load(Relaxed);
                self.remove(index);
                Some(iteration)
            }
            inner => {
                range.inner.store(inner - 1, Relaxed);
                None
            }
        }
    }

    /// Drops all tracked ranges.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
    }

    fn innermost(&self, domain: usize) -> Option<usize> {
        let count = self.count.load(Relaxed);
        let followed = self.ranges.get(..count)?;
        followed
            .iter()
            .rposition(|range| range.domain.load(Relaxed) == domain)
    }

    fn follow(&self, domain: usize, iteration: u64) {
        if self.count.load(Relaxed) == MAX_FOLLOWED {
            self.remove(0);
        }
        let count = self.count.load(Relaxed);
        let range = &self.ranges[count];
        range.domain.store(domain, Relaxed);
        range.iteration.store(iteration, Relaxed);
        range.inner.store(0, Relaxed);
        self.count.store(count + 1, Relaxed);
    }

    fn remove(&self, index: usize) {
        let count = self.count.load(Relaxed);
        for (range, next) in self.ranges[..count]
            .iter()
            .zip(&self.ranges[1..])
            .skip(index)
        {
            range.domain.store(next.domain.load(Relaxed), Relaxed);
            range.iteration.store(next.iteration.load(Relaxed), Relaxed);
            range.inner.store(next.inner.load(Relaxed), Relaxed);
        }
        self.count.store(count - 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pop_ends_the_range_that_its_push_began() {
        let open = OpenRanges::new();
        assert_eq!(open.popped(0), None);
        open.pushed(0, None);
        open.pushed(0, Some(7));
        open.pushed(0, None);
        open.pushed(0, None);
        assert_eq!(open.popped(0), None);
        assert_eq!(open.popped(0), None);
        assert_eq!(open.popped(0), Some(7));
        assert_eq!(open.popped(0), None);
    }

    #[test]
    fn nested_ones_end_from_the_inside() {
        let open = OpenRanges::new();
        open.pushed(0, Some(1));
        open.pushed(0, None);
        open.pushed(0, Some(2));
        assert_eq!(open.popped(0), Some(2));
        assert_eq!(open.popped(0), None);
        assert_eq!(open.popped(0), Some(1));
    }

    #[test]
    fn each_domain_has_a_stack_of_its_own() {
        let open = OpenRanges::new();
        open.pushed(1, Some(1));
        open.pushed(2, Some(2));
        open.pushed(3, None);
        assert_eq!(open.popped(3), None);
        assert_eq!(open.popped(1), Some(1));
        assert_eq!(open.popped(1), None);
        assert_eq!(open.popped(2), Some(2));
    }

    #[test]
    fn ranges_that_nothing_pops_are_given_up() {
        let open = OpenRanges::new();
        for iteration in 0..20 {
            open.pushed(0, Some(iteration));
        }
        let ended: Vec<_> = core::iter::from_fn(|| open.popped(0)).collect();
        assert_eq!(ended, [19, 18, 17, 16, 15, 14, 13, 12]);
        open.pushed(0, Some(1));
        open.clear();
        assert_eq!(open.popped(0), None);
    }
}
