//! The NVTX ranges that one thread has pushed and not popped yet, in all NVTX domains. When a range ends, the record
//! needs the time at which the range began.

/// The largest number of open ranges of a thread. It is chosen so that [`OpenRanges`] fits into 32 KiB. If a thread
/// has more open ranges, its ranges are not recorded until the next window.
const MAX_OPEN: usize = 1360;

/// An NVTX range that has begun and not ended yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Begun {
    /// The number of the window in which the range began, counted from 1.
    pub window: u32,
    /// The time when the range began, in ticks (the record's unit of time).
    pub since: u64,
    /// The ids of two strings in the record: the name of the range's NVTX domain, and the name of the range.
    pub domain: u32,
    pub name: u32,
}

#[derive(Clone, Copy)]
struct ThreadRange {
    /// The handle of the range's domain. Each domain has a stack of its own.
    stack: usize,
    since: u64,
    domain: u32,
    name: u32,
}

/// The open ranges of a thread. All zeros is a valid value and means that no range is open.
pub struct OpenRanges {
    /// The number of the window in which the stored ranges began. Ranges of earlier windows are
    /// dropped.
    window: u32,
    used: u32,
    /// True if the thread had more than `MAX_OPEN` open ranges in this window, so that ranges can no longer be
    /// matched with their ends.
    is_lost: bool,
    ranges: [ThreadRange; MAX_OPEN],
}

const _: () = assert!(size_of::<OpenRanges>() <= 32 << 10);

impl OpenRanges {
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a range that was pushed on the stack of an NVTX domain. Returns false if `MAX_OPEN` ranges are already
    /// open, or if that has happened before in the same window.
    #[inline]
    pub fn push(&mut self, stack: usize, begun: Begun) -> bool {
        if self.window != begun.window {
            self.window = begun.window;
            self.used = 0;
            self.is_lost = false;
        }
        let place = self.ranges.get_mut(self.used as usize);
        let Some(place) = place.filter(|_| !self.is_lost) else {
            // It is no longer known which pop belongs to which range, so no range is recorded until the next window.
            self.is_lost = true;
            self.used = 0;
            return false;
        };
        *place = ThreadRange {
            stack,
            since: begun.since,
            domain: begun.domain,
            name: begun.name,
        };
        self.used += 1;
        true
    }

    /// Removes and returns the latest range on the stack of an NVTX domain, because the program has popped
    /// it. Returns `None` if the range began before the window, or if the thread had more than `MAX_OPEN` open ranges.
    #[inline]
    pub fn pop(&mut self, stack: usize) -> Option<Begun> {
        let used = self.used as usize;
        let open = self.ranges.get_mut(..used)?;
        let at = open.iter().rposition(|range| range.stack == stack)?;
        let range = open[at];
        open.copy_within(at + 1.., at);
        self.used -= 1;
        Some(Begun {
            window: self.window,
            since: range.since,
            domain: range.domain,
            name: range.name,
        })
    }

    /// Drops all ranges, so that another thread can use this value.
    pub const fn clear(&mut self) {
        self.used = 0;
        self.window = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Box<OpenRanges> {
        let ranges = [ThreadRange {
            stack: 0,
            since: 0,
            domain: 0,
            name: 0,
        }; MAX_OPEN];
        Box::new(OpenRanges {
            window: 0,
            used: 0,
            is_lost: false,
            ranges,
        })
    }

    fn begun(window: u32, name: u32) -> Begun {
        Begun {
            window,
            since: u64::from(name) * 10,
            domain: 1,
            name,
        }
    }

    #[test]
    fn domains_have_stacks_of_their_own() {
        let mut open = none();
        for (stack, name) in [(0, 1), (16, 2), (0, 3), (32, 4)] {
            assert!(open.push(stack, begun(1, name)));
        }
        let mut names = |stack| open.pop(stack).map(|range| range.name);
        assert_eq!(names(16), Some(2));
        assert_eq!(names(16), None);
        assert_eq!(
            (names(0), names(32), names(0), names(0)),
            (Some(3), Some(4), Some(1), None)
        );
        assert!(open.is_empty());
    }

    #[test]
    fn what_an_older_window_left_is_given_up() {
        let mut open = none();
        open.push(0, begun(1, 1));
        open.push(0, begun(1, 2));
        assert_eq!(open.pop(0), Some(begun(1, 2)));
        open.push(0, begun(2, 3));
        assert_eq!(open.pop(0), Some(begun(2, 3)));
        assert_eq!(open.pop(0), None);
    }

    #[test]
    fn too_many_are_given_up_until_the_next_window() {
        let mut open = none();
        for name in 0..MAX_OPEN as u32 {
            assert!(open.push(0, begun(1, name)));
        }
        assert!(!open.push(0, begun(1, 0)));
        assert_eq!(open.pop(0), None);
        assert!(!open.push(0, begun(1, 0)));
        assert!(open.push(0, begun(2, 7)));
        assert_eq!(open.pop(0), Some(begun(2, 7)));
    }
}
