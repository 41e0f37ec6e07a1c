//! A set of NVTX handles that can be read without a lock.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use tllmprof_sync::hash::spread;
use tllmprof_sync::{Lock, OnlyThread, Published};

const FREE: usize = 0;
/// The value of an entry of the table whose handle was removed from the set.
const GONE: usize = usize::MAX;
const FIRST_SIZE: usize = 64;
/// The longest time that a thread waits to change the set while another thread changes it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// A set of any number of handles, which may be addresses or small numbers. 0 and `usize::MAX` are not valid handles
/// and are never in the set.
pub struct Handles {
    /// The table, whose size is a power of two; none before the first handle is added. A table that got too
    /// small is not freed, because another thread may still be reading it. If handles are only added, all earlier
    /// tables together are smaller than the current one.
    table: Published<Vec<AtomicUsize>>,
    used: Lock<Used>,
}

struct Used {
    /// The number of entries of the table that hold a handle or have held one.
    places: usize,
    /// Earlier tables that got too small, which other threads may still be reading.
    before: Vec<&'static Vec<AtomicUsize>>,
}

impl Handles {
    pub const fn new() -> Self {
        Self {
            table: Published::none(),
            used: Lock::new(Used {
                places: 0,
                before: Vec::new(),
            }),
        }
    }

    fn table(&self) -> &[AtomicUsize] {
        self.table.get().map_or(&[], Vec::as_slice)
    }

    /// Returns true if `handle` is in the set. Takes no lock.
    pub fn contains(&self, handle: usize) -> bool {
        is_one(handle) && position(self.table(), handle).is_some()
    }

    /// Adds `handle` to the set if `belongs`, otherwise removes it. Has no effect if another thread changes the set for
    /// longer than `LOCK_TIMEOUT`.
    pub fn set(&self, handle: usize, belongs: bool) {
        if !is_one(handle) || belongs == self.contains(handle) {
            return;
        }
        let Some(mut used) = self.used.lock_for(LOCK_TIMEOUT) else {
            return;
        };
        match (position(self.table(), handle), belongs) {
            (Some(index), false) => self.table()[index].store(GONE, Ordering::Release),
            (None, true) => {
                if (used.places + 1) * 2 > self.table().len() {
                    used.before.extend(self.table.get());
                    used.places = self.grow();
                }
                put(self.table(), handle);
                used.places += 1;
            }
            _ => {}
        }
    }

    /// Replaces the table with one that has room for more handles. Returns the number of used entries of the
    /// new table.
    fn grow(&self) -> usize {
        let live = || {
            let all = self
                .table()
                .iter()
                .map(|place| place.load(Ordering::Relaxed));
            all.filter(|&handle| is_one(handle))
        };
        let count = live().count();
        let size = ((count + 1) * 4).next_power_of_two().max(FIRST_SIZE);
        let table: Vec<AtomicUsize> = (0..size).map(|_| AtomicUsize::new(FREE)).collect();
        live().for_each(|handle| put(&table, handle));
        self.table.set(Some(Box::leak(Box::new(table))));
        count
    }

    /// Releases the lock in the child of a fork, whichever thread held it.
    pub fn in_child(&self, alone: &OnlyThread) {
        self.used.break_open(alone);
    }
}

fn is_one(handle: usize) -> bool {
    !matches!(handle, FREE | GONE)
}

/// Returns the indexes of the entries where `handle` may be stored, in the order of the search.
fn places(table: &[AtomicUsize], handle: usize) -> impl Iterator<Item = usize> {
    let mask = table.len().wrapping_sub(1);
    let first = spread(handle as u64);
    (0..table.len()).map(move |step| first.wrapping_add(step) & mask)
}

fn position(table: &[AtomicUsize], handle: usize) -> Option<usize> {
    for index in places(table, handle) {
        match table[index].load(Ordering::Acquire) {
            FREE => return None,
            found if found == handle => return Some(index),
            _ => {}
        }
    }
    None
}

/// Stores a new handle in a free entry of the table. Does nothing if the table has no free entry.
fn put(table: &[AtomicUsize], handle: usize) {
    let free = places(table, handle).find(|&index| table[index].load(Ordering::Relaxed) == FREE);
    if let Some(index) = free {
        table[index].store(handle, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn holds_what_it_was_given() {
        let handles = Handles::new();
        assert!(!handles.contains(0x1000));
        for handle in (0x1000..0x9000).step_by(16) {
            handles.set(handle, true);
            handles.set(handle, true);
        }
        for handle in (0x1000..0x9000).step_by(32) {
            handles.set(handle, false);
        }
        for handle in (0x1000..0x9000).step_by(16) {
            assert_eq!(handles.contains(handle), handle % 32 == 16, "{handle:x}");
        }
        handles.set(1, true);
        assert!(handles.contains(1) && !handles.contains(2));
        for nothing in [0, usize::MAX] {
            handles.set(nothing, true);
            assert!(!handles.contains(nothing));
        }
    }

    #[test]
    fn coming_and_going_does_not_fill_it_up() {
        let handles = Handles::new();
        for handle in (16..1_600_000).step_by(16) {
            handles.set(handle, true);
            assert!(handles.contains(handle));
            handles.set(handle, false);
            assert!(!handles.contains(handle));
        }
        assert_eq!(handles.table().len(), FIRST_SIZE);
    }

    #[test]
    fn readers_see_what_stays_while_others_come_and_go() {
        let handles = Handles::new();
        handles.set(0x10, true);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(handles.contains(0x10));
                }
            });
            for handle in (0x20..0x20000).step_by(16) {
                handles.set(handle, true);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
