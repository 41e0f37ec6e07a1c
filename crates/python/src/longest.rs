//! The longest wait for the GIL among threads that have ended.
//!
//! Totals are stored in thread slots (each the state of one thread at a time), and a new thread may get the slot
//! of a thread that ended. So the longest wait is stored here, with the name of the thread that waited.

use core::time::Duration;

use super::thread_name::NameCopy;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

const LOCK_TIMEOUT: Duration = Duration::from_millis(10);

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    #[restart(keep)]
    static LONGEST: Lock<Option<Longest>> = Lock::new(None);
}

/// The duration of a wait for the GIL in ns, with the name of the waiting thread.
pub(crate) struct Longest {
    pub time: u64,
    pub name: NameCopy,
}

/// Stores the longest wait of a thread that has ended, unless a longer one is stored.
pub(crate) fn keep(wait: Longest) {
    if let Some(mut longest) = LONGEST.lock_for(LOCK_TIMEOUT)
        && longest
            .as_ref()
            .is_none_or(|longest| longest.time < wait.time)
    {
        *longest = Some(wait);
    }
}

/// Returns the longest wait and removes it. Returns `None` if no wait is stored, or if the lock is not free in time.
pub(crate) fn take() -> Option<Longest> {
    LONGEST
        .lock_for(LOCK_TIMEOUT)
        .and_then(|mut longest| longest.take())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_name::ThreadName;

    #[test]
    fn the_longest_is_kept_until_it_is_taken() {
        let of = |time, name: &str| {
            let kept = ThreadName::new();
            kept.set_pythons(name.as_bytes());
            keep(Longest {
                time,
                name: kept.get(1),
            });
        };
        // These times are longer than the waits that other tests of this process store.
        of(u64::MAX - 2, "first");
        of(u64::MAX - 1, "second");
        of(u64::MAX - 2, "third");
        let longest = take().unwrap();
        assert_eq!(longest.time, u64::MAX - 1);
        assert_eq!(longest.name.to_string(), "second");
        assert!(take().is_none_or(|other| other.time < u64::MAX - 2));
    }
}
