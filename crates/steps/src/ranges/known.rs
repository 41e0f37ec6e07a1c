//! A table of fixed size that maps NVTX handles to values. It is read and written without a lock.

use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_sync::Published;
use tllmprof_sync::hash::spread;

/// The number of successive entries in which a handle may be stored. The first is the entry that its hash selects.
const REACH: usize = 32;

struct KnownHandle<T: 'static> {
    /// The handle; 0 if the entry is free.
    handle: AtomicUsize,
    /// The owner of the handle, such as the NVTX domain of a registered string. The same handle may have another
    /// value for another owner.
    owner: AtomicUsize,
    /// The value of the handle; none until a thread has stored it.
    value: Published<T>,
}

/// A table with room for `SIZE` handles and the value of each. A handle is never 0.
pub struct Known<T: 'static, const SIZE: usize>([KnownHandle<T>; SIZE]);

impl<T: Sync, const SIZE: usize> Known<T, SIZE> {
    pub const fn new() -> Self {
        Self(
            [const {
                KnownHandle {
                    handle: AtomicUsize::new(0),
                    owner: AtomicUsize::new(0),
                    value: Published::none(),
                }
            }; SIZE],
        )
    }

    /// Returns the entries where `handle` may be stored, in the order of the search.
    fn places(&self, handle: usize) -> impl Iterator<Item = &KnownHandle<T>> {
        let first = spread(handle as u64);
        (0..REACH.min(SIZE)).map(move |step| &self.0[first.wrapping_add(step) % SIZE])
    }

    /// Sets the value of `handle` for `owner`. Returns false if the table has no room.
    pub fn set(&self, owner: usize, handle: usize, value: &'static T) -> bool {
        if handle == 0 {
            return false;
        }
        for place in self.places(handle) {
            let taken = place.handle.load(Ordering::Acquire);
            let is_known = taken == handle && place.owner.load(Ordering::Relaxed) == owner;
            let is_new = || {
                let free =
                    place
                        .handle
                        .compare_exchange(0, handle, Ordering::AcqRel, Ordering::Relaxed);
                free.is_ok()
            };
            if is_known || taken == 0 && is_new() {
                place.owner.store(owner, Ordering::Relaxed);
                place.value.set(Some(value));
                return true;
            }
        }
        false
    }

    /// Returns the value of `handle` for `owner`. If `owner` has none, returns the value of the same handle
    /// for another owner.
    #[inline]
    pub fn get(&self, owner: usize, handle: usize) -> Option<&'static T> {
        let mut others = None;
        for place in self.places(handle) {
            match place.handle.load(Ordering::Acquire) {
                0 => break,
                found if found == handle => {
                    let value = place.value.get();
                    if place.owner.load(Ordering::Relaxed) == owner {
                        return value;
                    }
                    others = others.or(value);
                }
                _ => {}
            }
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static VALUES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn a_handle_stands_for_what_was_said_last() {
        let known = Known::<u32, 64>::new();
        assert_eq!(known.get(0, 0x10), None);
        assert!(known.set(0, 0x10, &VALUES[1]));
        assert!(known.set(0, 0x20, &VALUES[2]));
        assert!(known.set(7, 0x10, &VALUES[3]));
        assert_eq!(known.get(0, 0x10), Some(&1));
        assert_eq!(known.get(7, 0x10), Some(&3));
        assert_eq!(known.get(7, 0x20), Some(&2));
        known.set(0, 0x10, &VALUES[4]);
        assert_eq!(known.get(0, 0x10), Some(&4));
        assert!(!known.set(0, 0, &VALUES[1]));
        assert_eq!(known.get(0, 0), None);
    }

    #[test]
    fn no_more_are_known_than_there_is_room_for() {
        let known = Known::<u32, 64>::new();
        let all = (16..1_600_000).step_by(16);
        let kept = all.filter(|handle| known.set(0, *handle, &VALUES[5]));
        assert_eq!(kept.count(), 64);
    }
}
