//! The table of marked code objects: those whose calls the library records or counts.
//!
//! Threads read the table without a lock, at each event that the interpreter reports for a call of a Python function.
//! It is a hash table with open addressing, and stores the address of a code object and its mark in separate words.
//! The table keeps a reference to each code object, so that no other object gets the same address.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use crate::object::{Object, Python};
use crate::spans::{Mark, Watch};
use tllmprof_platform::lifecycle;
use tllmprof_platform::lifecycle::attic;
use tllmprof_sync::hash::spread;
use tllmprof_sync::{Lock, Published};

struct MarkSlot {
    /// The address of a marked code object, or one of the values `FREE` and `GONE`.
    code: AtomicUsize,
    mark: Published<Mark>,
}

const FREE: usize = 0;
/// Value of [`MarkSlot::code`] after the code object was removed. Entries that were inserted later
/// may follow this slot, so a search must not stop at the slot.
const GONE: usize = 1;

impl MarkSlot {
    /// Removes the code object from this slot of the table.
    fn go(&self) {
        self.code.store(GONE, Ordering::Release);
    }
}

/// A hash table of marks, by the address of the marked code object. The number of slots is a power
/// of two.
struct MarkTable(Box<[MarkSlot]>);

lifecycle::global! {
    stage: Sinks;

    /// The current table; `None` before the first mark. Replaced tables are never freed, because a thread may still
    /// be reading them. If marks are only added, each table is four times as large as the one before, so all replaced
    /// tables together are smaller than the current one.
    #[fork(keep = "code objects are copied as they are")]
    #[restart(by = clear)]
    static TABLE: Published<MarkTable> = Published::none();
    /// Held while the table of marks is changed. Code that holds this lock calls no Python
    /// function.
    #[fork(free)]
    #[restart(keep)]
    static CHANGING: Lock<()> = Lock::new(());
}
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const MIN_SLOTS: usize = 64;

impl MarkTable {
    fn new(size: usize) -> Self {
        let slot = || MarkSlot {
            code: AtomicUsize::new(FREE),
            mark: Published::none(),
        };
        Self(core::iter::repeat_with(slot).take(size).collect())
    }

    /// Returns the slots of the table that may hold `code`, in the order of the search.
    #[inline]
    fn places(&self, code: usize) -> impl Iterator<Item = &MarkSlot> {
        let first = spread(code as u64);
        let mask = self.0.len() - 1;
        (0..self.0.len()).filter_map(move |step| self.0.get((first + step) & mask))
    }

    #[inline]
    fn find(&self, code: usize) -> Option<&MarkSlot> {
        for slot in self.places(code) {
            let there = slot.code.load(Ordering::Acquire);
            if there == code {
                return Some(slot);
            }
            if there == FREE {
                break;
            }
        }
        None
    }

    fn insert(&self, code: usize, mark: &'static Mark) {
        let mut places = self.places(code);
        // The slot of a removed entry is not reused: another thread may have just read the old address
        // from the slot, and would then take the new mark for that of the old code object.
        if let Some(slot) = places.find(|slot| slot.code.load(Ordering::Relaxed) == FREE) {
            slot.mark.set(Some(mark));
            slot.code.store(code, Ordering::Release);
        }
    }

    fn marks(&self) -> impl Iterator<Item = (&MarkSlot, &'static Mark)> {
        self.0.iter().filter_map(|slot| {
            let is_there = slot.code.load(Ordering::Acquire) > GONE;
            is_there.then(|| Some((slot, slot.mark.get()?)))?
        })
    }

    /// Returns a larger table with the entries of `old`.
    fn grown(old: Option<&Self>) -> Self {
        let count = old.map_or(0, |old| old.marks().count());
        let new = Self::new(((count + 1) * 4).next_power_of_two().max(MIN_SLOTS));
        for (slot, mark) in old.into_iter().flat_map(Self::marks) {
            new.insert(slot.code.load(Ordering::Relaxed), mark);
        }
        new
    }

    fn is_crowded(&self) -> bool {
        let used = |slot: &&MarkSlot| slot.code.load(Ordering::Relaxed) != FREE;
        (self.0.iter().filter(used).count() + 1) * 2 > self.0.len()
    }
}

/// Returns the mark of the code object at this address. The mark contains the receiver of the code object's calls.
#[inline]
pub(crate) fn find(code: usize) -> Option<&'static Mark> {
    TABLE.get()?.find(code)?.mark.get()
}

/// Returns true if the table has no marks, so that no calls have to be reported.
pub(crate) fn is_empty() -> bool {
    TABLE
        .get()
        .is_none_or(|table| table.marks().next().is_none())
}

/// Adds the mark of a code object whose calls are to be reported. Returns false if the code object already has a
/// different mark, or if another thread holds the lock for too long.
pub(crate) fn add(py: Python<'_>, mark: Mark) -> bool {
    let code = mark.code();
    let changing = CHANGING.lock_for(LOCK_TIMEOUT);
    let there = find(code);
    if changing.is_none() || there.is_some() {
        drop(changing);
        mark.release(py);
        return there.is_some_and(|there| there.is_alike(&mark));
    }
    let table = match TABLE.get() {
        Some(table) if !table.is_crowded() => table,
        old => grow(old),
    };
    table.insert(code, Box::leak(Box::new(mark)));
    true
}

fn grow(old: Option<&'static MarkTable>) -> &'static MarkTable {
    let new: &'static MarkTable = Box::leak(Box::new(MarkTable::grown(old)));
    TABLE.set(Some(new));
    // Other threads may still be reading the old table, so it is never freed.
    attic::put(old);
    new
}

/// Returns the marked code objects of the calling thread's interpreter.
pub(crate) fn codes<'py>(py: Python<'py>) -> Vec<Object<'py>> {
    let number = py.interpreter();
    let marks = TABLE.get().into_iter().flat_map(MarkTable::marks);
    let own = marks.filter(|(_, mark)| mark.interpreter == number);
    own.filter_map(|(_, mark)| mark.code_object(py)).collect()
}

/// Removes the mark of the code object at the address `code`.
pub(crate) fn remove_one(py: Python<'_>, code: usize) {
    let mut gone = None;
    if let Some(_changing) = CHANGING.lock_for(LOCK_TIMEOUT)
        && let Some(slot) = TABLE.get().and_then(|table| table.find(code))
    {
        slot.go();
        gone = slot.mark.get();
    }
    if let Some(mark) = gone {
        mark.release(py);
    }
}

/// Removes each mark of the calling thread's interpreter if `is_meant` returns true for the mark's receiver of calls.
/// Also releases the references of these marks.
pub(crate) fn remove(py: Python<'_>, is_meant: impl Fn(Watch) -> bool) {
    let number = py.interpreter();
    let mut gone = Vec::new();
    if let Some(_changing) = CHANGING.lock_for(LOCK_TIMEOUT)
        && let Some(table) = TABLE.get()
    {
        for (slot, mark) in table.marks() {
            if mark.interpreter == number && is_meant(mark.watch) {
                slot.go();
                gone.push(mark);
            }
        }
    }
    for mark in gone {
        mark.release(py);
    }
}

/// Empties the table of marks when a new interpreter starts in the process. The marked code objects were freed with
/// the old interpreter.
fn clear() {
    if let Some(_changing) = CHANGING.lock_for(LOCK_TIMEOUT) {
        TABLE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::tests::mark;

    #[test]
    fn a_code_object_is_found_by_its_address() {
        let (table, one, two) = (MarkTable::new(8), mark(), mark());
        table.insert(0x1000, one);
        table.insert(0x2000, two);
        let found = |code| table.find(code).and_then(|slot| slot.mark.get());
        assert!(core::ptr::eq(found(0x1000).unwrap(), one));
        assert!(core::ptr::eq(found(0x2000).unwrap(), two));
        assert!(found(0x3000).is_none());
        assert_eq!(table.marks().count(), 2);
    }

    #[test]
    fn what_lies_behind_one_that_has_gone_is_found() {
        // Two code objects collide in the table only for some of these addresses, so the test tries
        // several addresses.
        for first in (0..64).map(|n| 0x1000 + n * 16) {
            let (table, mark) = (MarkTable::new(4), mark());
            let codes = [first, first + 0x10_0000, first + 0x20_0000];
            for code in codes {
                table.insert(code, mark);
            }
            table.find(codes[0]).unwrap().go();
            assert!(table.find(codes[0]).is_none());
            assert!(codes[1..].iter().all(|code| table.find(*code).is_some()));
            assert_eq!(table.marks().count(), 2);
        }
    }

    #[test]
    fn a_crowded_table_grows_and_drops_what_has_gone() {
        let mut table = MarkTable::grown(None);
        assert_eq!(table.0.len(), MIN_SLOTS);
        let codes = || (1..=100).map(|n| n * 0x40);
        for code in codes() {
            if table.is_crowded() {
                table = MarkTable::grown(Some(&table));
            }
            table.insert(code, mark());
        }
        assert!(table.0.len().is_power_of_two() && table.0.len() >= 200);
        assert!(codes().all(|code| table.find(code).is_some()));
        for code in codes().skip(5) {
            table.find(code).unwrap().go();
        }
        let table = MarkTable::grown(Some(&table));
        assert_eq!((table.0.len(), table.marks().count()), (MIN_SLOTS, 5));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let table = MarkTable::new(2);
        for code in [0x10, 0x20, 0x30] {
            table.insert(code, mark());
        }
        assert_eq!(table.marks().count(), 2);
        assert!(table.find(0x40).is_none());
    }
}
