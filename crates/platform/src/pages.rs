//! Memory outside the heap that is never freed. It is needed because a hook must not allocate, and because other
//! threads read this memory without a lock.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};

use tllmprof_sync::Published;

/// The alignment in bytes that each new mapping has at least.
const PAGE: usize = 4096;

/// A type for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes are a valid value of the type.
pub unsafe trait Zeroed {}

/// Implements [`Zeroed`] for types for which all-zero bytes are a valid value, according to their
/// documentation.
macro_rules! zeroed {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: zeros are the number 0 or the value false, also in an atomic.
            unsafe impl Zeroed for $type {}
        )*
    };
}
zeroed!(bool, u8, u16, u32, u64, usize, i32, i64, isize);
zeroed!(
    AtomicBool,
    AtomicU8,
    AtomicU32,
    AtomicU64,
    AtomicUsize,
    AtomicI32,
    AtomicI64
);

// SAFETY: any bytes are valid for an uninitialised value.
unsafe impl<T> Zeroed for MaybeUninit<T> {}
// SAFETY: a cell has the same valid values as its content.
unsafe impl<T: Zeroed> Zeroed for Cell<T> {}
// SAFETY: a cell has the same valid values as its content.
unsafe impl<T: Zeroed> Zeroed for UnsafeCell<T> {}
// SAFETY: zeros are valid for each element.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}
// SAFETY: zeros are a null pointer, which is valid.
unsafe impl<T> Zeroed for AtomicPtr<T> {}
// SAFETY: zeros are a null pointer, which means that nothing is published.
unsafe impl<T> Zeroed for Published<T> {}

/// Returns `count` values of all zeros in new pages, or `None` if `count` is 0 or there is no memory.
pub fn batch<T: Zeroed>(count: usize) -> Option<&'static mut [T]> {
    const { assert!(align_of::<T>() <= PAGE) };
    let bytes = count.checked_mul(size_of::<T>())?;
    let place = map(bytes)?;
    // SAFETY: the mapping is new, nothing else uses it, and it is never unmapped. It has room for `count` values, is
    // aligned to a page, and holds zeros, which are valid for the type.
    Some(unsafe { core::slice::from_raw_parts_mut(place.cast(), count) })
}

/// Returns `count` values in new pages, like [`batch`], each of them made by `make`.
pub fn batch_with<T>(count: usize, make: impl Fn() -> T) -> Option<&'static mut [T]> {
    let places = batch::<MaybeUninit<T>>(count)?;
    for place in places.iter_mut() {
        place.write(make());
    }
    // SAFETY: all elements have been written, and a `MaybeUninit<T>` has the layout of a `T`.
    Some(unsafe { &mut *(core::ptr::from_mut(places) as *mut [T]) })
}

/// Returns `count` values of all zeros in new pages, like [`batch`]. The values become zeros again in every
/// child process, even in one that runs no fork handler. If the kernel does not support this (before Linux
/// 4.14), the fork handlers have to reset the values.
pub fn batch_wiped_on_fork<T: Zeroed>(count: usize) -> Option<&'static mut [T]> {
    let batch = batch::<T>(count)?;
    // SAFETY: these are all pages of the mapping. A forked child finds zeros in them, which are valid for the type.
    unsafe {
        libc::madvise(
            batch.as_mut_ptr().cast(),
            size_of_val(batch),
            libc::MADV_WIPEONFORK,
        );
    }
    Some(batch)
}

/// A value that can be an element of the linked list in a [`Spare`].
pub trait Chained: Sync + Sized + 'static {
    /// Returns the link to the next value in the list.
    fn next(&self) -> &Published<Self>;
}

/// A linked list of values that were allocated together and that no thread has used yet. It needs no lock:
/// each value is taken once, by any thread.
pub struct Spare<T: 'static> {
    first: Published<T>,
}

impl<T: Chained> Spare<T> {
    #[must_use]
    pub const fn none() -> Self {
        Self {
            first: Published::none(),
        }
    }

    /// Removes one value from the list and returns it. No thread has used this value before. If the list is empty,
    /// `make` allocates a batch of values. Returns `None` if there is no memory.
    pub fn take(&self, make: impl FnOnce() -> Option<&'static mut [T]>) -> Option<&'static T> {
        // This thread takes the whole list for a moment, so that no other thread uses it. It puts
        // the rest of the list back afterwards.
        let value = self.first.take().or_else(|| chained(make()?))?;
        if let Some(rest) = value.next().take() {
            // If another thread has put a list back at the same time, the rest of this list is
            // lost: at most one batch of values.
            let _ = self.first.set_if_none(rest);
        }
        Some(value)
    }

    /// Forgets all values in the list. Called in the child of a fork, where the kernel has filled their memory with
    /// zeros.
    pub fn forget(&self) {
        self.first.set(None);
    }
}

/// Links the values of a batch into a list, and returns the first value.
fn chained<T: Chained>(batch: &'static [T]) -> Option<&'static T> {
    for pair in batch.windows(2) {
        pair[0].next().set(pair.get(1));
    }
    batch.first()
}

/// Returns true if the process can map `bytes` more bytes.
pub(crate) fn can_map(bytes: usize) -> bool {
    let place = map(bytes);
    if let Some(place) = place {
        // SAFETY: the mapping was made above, and nothing uses it.
        unsafe { libc::munmap(place.cast(), bytes) };
    }
    place.is_some()
}

/// Returns a new anonymous mapping, or `None` if the system refuses.
fn map(bytes: usize) -> Option<*mut u8> {
    // SAFETY: the kernel chooses the address of the mapping, so it replaces none.
    let place = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    (place != libc::MAP_FAILED).then_some(place.cast())
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;
    use std::collections::HashSet;
    use std::thread::scope;

    use super::*;

    struct Link {
        next: Published<Link>,
    }

    // SAFETY: zeros are an empty link.
    unsafe impl Zeroed for Link {}

    impl Chained for Link {
        fn next(&self) -> &Published<Self> {
            &self.next
        }
    }

    const LINKS: usize = 4;

    fn address(link: &'static Link) -> usize {
        core::ptr::from_ref(link).addr()
    }

    #[test]
    fn a_batch_is_zeros_that_can_be_written() {
        let batch = batch::<AtomicU64>(1000).unwrap();
        assert_eq!(batch.len(), 1000);
        assert!(batch.iter().all(|n| n.load(Ordering::Relaxed) == 0));
        for n in batch.iter() {
            n.store(7, Ordering::Relaxed);
        }
        assert!(batch.iter_mut().all(|n| *n.get_mut() == 7));
    }

    #[test]
    fn a_batch_is_what_was_made() {
        let batch = batch_with(300, || Box::new(3)).unwrap();
        assert_eq!(batch.iter().map(|n| **n).sum::<i32>(), 900);
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        assert!(batch::<u64>(usize::MAX / 2).is_none());
        assert!(batch::<u64>(0).is_none());
    }

    #[test]
    fn a_spare_value_is_taken_once_and_a_batch_is_made_where_none_is_left() {
        let (spare, made) = (Spare::none(), Cell::new(0));
        let take = || {
            spare.take(|| {
                made.set(made.get() + 1);
                batch::<Link>(LINKS)
            })
        };
        let taken: HashSet<_> = (0..2 * LINKS).map(|_| address(take().unwrap())).collect();
        assert_eq!((taken.len(), made.get()), (2 * LINKS, 2));
        let last = take().unwrap();
        assert_eq!(made.get(), 3);
        assert!(last.next.get().is_none() && !taken.contains(&address(last)));
    }

    #[test]
    fn forgotten_values_are_not_taken_again() {
        let spare = Spare::none();
        assert!(spare.take(|| batch::<Link>(LINKS)).is_some());
        spare.forget();
        assert!(spare.take(|| None).is_none());
        assert!(spare.take(|| batch::<Link>(0)).is_none());
    }

    #[test]
    fn threads_never_take_the_same_value() {
        const EACH: usize = 500;
        let spare = Spare::none();
        let take = || address(spare.take(|| batch::<Link>(LINKS)).unwrap());
        let take_many = || (0..EACH).map(|_| take()).collect::<Vec<_>>();
        let taken: Vec<_> = scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take_many)).collect();
            let taken = threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap());
            taken.collect()
        });
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), taken.len());
    }

    #[test]
    fn a_fork_finds_zeros() {
        let _forks = crate::lifecycle::tests::FORKS.lock();
        let batch = batch_wiped_on_fork::<u64>(2).unwrap();
        batch[1] = 5;
        // SAFETY: the child only reads a word and exits, without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let word = i32::from(batch[1] != 0);
            // SAFETY: `_exit` ends the child.
            unsafe { libc::_exit(word) };
        }
        let mut status = -1;
        // SAFETY: `waitpid` writes the status to the local variable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert_eq!(batch[1], 5);
    }
}
