//! The pushed ranges that one thread has open, of all domains, for the record.

/// Ranges that are kept open at a time. Of a thread that has more nothing is known until the next
/// window.
const MOST: usize = 1360;

/// A range that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Begun {
    /// The window that it began in, from 1.
    pub window: u32,
    /// When, in ticks.
    pub since: u64,
    /// What it is called: the numbers of the domain's string and of its own.
    pub domain: u32,
    pub name: u32,
}

#[derive(Clone, Copy)]
struct Range {
    /// The domain's handle: each domain has its own stack.
    stack: usize,
    since: u64,
    domain: u32,
    name: u32,
}

/// A thread's open ranges. All zeros are none.
pub struct Open {
    /// The window that they began in: older ones are given up.
    window: u32,
    used: u32,
    /// There were too many in this window.
    is_lost: bool,
    ranges: [Range; MOST],
}

const _: () = assert!(size_of::<Open>() <= 32 << 10);

impl Open {
    /// Whether nothing is open.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// A range has been pushed on the stack of a domain; false where there is no room.
    #[inline]
    pub fn push(&mut self, stack: usize, begun: Begun) -> bool {
        if self.window != begun.window {
            self.window = begun.window;
            self.used = 0;
            self.is_lost = false;
        }
        let place = self.ranges.get_mut(self.used as usize);
        let Some(place) = place.filter(|_| !self.is_lost) else {
            // What is popped from here on cannot be distinguished from what was not kept.
            self.is_lost = true;
            self.used = 0;
            return false;
        };
        *place = Range {
            stack,
            since: begun.since,
            domain: begun.domain,
            name: begun.name,
        };
        self.used += 1;
        true
    }

    /// The last range on the stack of a domain has been popped. None where that began before the
    /// window.
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

    /// Another thread has the place.
    pub const fn clear(&mut self) {
        self.used = 0;
        self.window = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Box<Open> {
        let ranges = [Range {
            stack: 0,
            since: 0,
            domain: 0,
            name: 0,
        }; MOST];
        Box::new(Open {
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
        for name in 0..MOST as u32 {
            assert!(open.push(0, begun(1, name)));
        }
        assert!(!open.push(0, begun(1, 0)));
        assert_eq!(open.pop(0), None);
        assert!(!open.push(0, begun(1, 0)));
        assert!(open.push(0, begun(2, 7)));
        assert_eq!(open.pop(0), Some(begun(2, 7)));
    }
}
