//! The time limits of system calls in which threads sleep.

use tllmprof_platform::peek;
use tllmprof_platform::system::{SystemClock, nanoseconds};

/// The longest time, in nanoseconds, from a sample to the end of a short time limit. A thread that waits with such a
/// limit usually looks for new work, finds none, and waits again. A client that waits for an answer has a longer limit.
const SHORT_NS: u64 = 250_000_000;

/// The time limit of a system call, or the address of the time limit in the thread's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeLimit {
    None,
    Milliseconds(u32),
    /// The address of the length of the wait: a `timespec`, or a `timeval`.
    Timespec(u64),
    Timeval(u64),
    /// The address of a `timespec` with the time at which the wait ends, by the real-time clock or the monotonic clock.
    Until {
        address: u64,
        is_real_time: bool,
    },
}

impl TimeLimit {
    /// Returns the limit that a timeout argument of `poll` or `epoll_wait` gives. It is an `int`; a negative number is
    /// no limit.
    pub(crate) fn of_milliseconds(argument: u64) -> Self {
        u32::try_from(argument as i32).map_or(Self::None, Self::Milliseconds)
    }

    /// Returns the limit of a call to `futex`: a length of time, or a time at which the wait ends, as the operation says.
    pub(crate) const fn of_futex(operation: u64, address: u64) -> Self {
        let operation = operation as i32;
        match operation & libc::FUTEX_CMD_MASK {
            _ if address == 0 => Self::None,
            libc::FUTEX_WAIT => Self::Timespec(address),
            _ => Self::Until {
                address,
                is_real_time: operation & libc::FUTEX_CLOCK_REALTIME != 0,
            },
        }
    }

    pub(crate) const fn is_given(self) -> bool {
        match self {
            Self::None => false,
            Self::Milliseconds(_) => true,
            Self::Timespec(address) | Self::Timeval(address) | Self::Until { address, .. } => {
                address != 0
            }
        }
    }

    /// Returns true if the call ends at most [`SHORT_NS`] from now, whatever happens. Call this while the thread sleeps
    /// in the call: the time limit may lie on the thread's stack.
    pub(crate) fn is_short(self) -> bool {
        let left = match self {
            Self::None => None,
            Self::Milliseconds(length) => Some(u64::from(length) * 1_000_000),
            Self::Timespec(address) => time(address, 1),
            Self::Timeval(address) => time(address, 1000),
            Self::Until {
                address,
                is_real_time,
            } => {
                let clock = match is_real_time {
                    true => SystemClock::Realtime,
                    false => SystemClock::Monotonic,
                };
                time(address, 1).map(|end| end.saturating_sub(nanoseconds(clock)))
            }
        };
        left.is_some_and(|left| left <= SHORT_NS)
    }
}

/// Returns the time at `address` in nanoseconds. It is two words: seconds, and parts of a second, each of `unit`
/// nanoseconds.
fn time(address: u64, unit: u64) -> Option<u64> {
    let mut words = [0; 16];
    peek::copy(usize::try_from(address).ok()?, &mut words)?;
    let (seconds, parts) = words.split_at(8);
    let [seconds, parts] = [seconds, parts].map(|word| word.try_into().map(u64::from_ne_bytes));
    let seconds = seconds.ok()?.checked_mul(1_000_000_000)?;
    seconds.checked_add(parts.ok()?.checked_mul(unit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(time: &[u64; 2]) -> u64 {
        time.as_ptr().addr() as u64
    }

    #[test]
    fn a_time_limit_is_short_if_it_ends_soon() {
        let milliseconds = |argument| TimeLimit::of_milliseconds(argument);
        assert!(milliseconds(5).is_short());
        assert!(!milliseconds(30_000).is_short());
        assert!(!milliseconds(u64::from(u32::MAX)).is_given(), "-1 is none");
        let (brief, long) = ([0, 5_000_000], [30, 0]);
        assert!(TimeLimit::Timespec(address(&brief)).is_short());
        assert!(!TimeLimit::Timespec(address(&long)).is_short());
        assert!(TimeLimit::Timeval(address(&[0, 5000])).is_short());
        assert!(!TimeLimit::Timeval(address(&[0, 300_000])).is_short());
        assert!(!TimeLimit::Timespec(16).is_short(), "no memory is there");
    }

    #[test]
    fn a_futex_has_a_length_or_an_end() {
        let wait = |operation: i32, time: &[u64; 2]| {
            TimeLimit::of_futex(u64::from(operation.cast_unsigned()), address(time))
        };
        assert!(wait(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, &[0, 9]).is_short());
        let until = |clock| {
            let now = nanoseconds(clock);
            [now / 1_000_000_000, now % 1_000_000_000]
        };
        let bitset = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
        let [seconds, parts] = until(SystemClock::Monotonic);
        assert!(wait(bitset, &[seconds, parts]).is_short());
        assert!(!wait(bitset, &[seconds + 30, parts]).is_short());
        let real = bitset | libc::FUTEX_CLOCK_REALTIME;
        let [seconds, parts] = until(SystemClock::Realtime);
        assert!(wait(real, &[seconds, parts]).is_short());
        assert!(!wait(real, &[seconds + 30, parts]).is_short());
        assert!(!TimeLimit::of_futex(0, 0).is_given());
    }
}
