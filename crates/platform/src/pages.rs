//! Memory outside the heap that is never given back: a hook must not allocate, and other threads
//! read it without a lock.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};

use tllmprof_sync::Published;

/// The alignment of a mapping.
const PAGE: usize = 4096;

/// A type of which a value may begin as bytes of all zeros.
///
/// # Safety
/// Bytes of all zeros are a value of the type.
pub unsafe trait Zeroed {}

/// Implements [`Zeroed`] for types whose documentation says that zeros are a value.
macro_rules! zeroed {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: an integer, or an atomic of one, is zero.
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

// SAFETY: any bytes are an uninitialised value.
unsafe impl<T> Zeroed for MaybeUninit<T> {}
// SAFETY: a cell has the values of what it holds.
unsafe impl<T: Zeroed> Zeroed for Cell<T> {}
// SAFETY: a cell has the values of what it holds.
unsafe impl<T: Zeroed> Zeroed for UnsafeCell<T> {}
// SAFETY: each of its elements is zeros.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}
// SAFETY: a null pointer is zeros.
unsafe impl<T> Zeroed for AtomicPtr<T> {}
// SAFETY: nothing is published: a null pointer, which is zeros.
unsafe impl<T> Zeroed for Published<T> {}

/// `count` values of zeros in new pages. None if there is no memory.
pub fn batch<T: Zeroed>(count: usize) -> Option<&'static mut [T]> {
    const { assert!(align_of::<T>() <= PAGE) };
    let bytes = count.checked_mul(size_of::<T>())?;
    let place = map(bytes)?;
    // SAFETY: a new mapping that nobody else has and that is never unmapped; it has room for
    // `count` values, is aligned to a page, and holds zeros, which are values of the type.
    Some(unsafe { core::slice::from_raw_parts_mut(place.cast(), count) })
}

/// As [`batch`], of what `make` makes.
pub fn batch_with<T>(count: usize, make: impl Fn() -> T) -> Option<&'static mut [T]> {
    let places = batch::<MaybeUninit<T>>(count)?;
    for place in places.iter_mut() {
        place.write(make());
    }
    // SAFETY: all of them have been written, and a `MaybeUninit<T>` lies in memory as a `T` does.
    Some(unsafe { &mut *(core::ptr::from_mut(places) as *mut [T]) })
}

/// As [`batch`], of values that are zeros again in every copy of the process, also in one that runs
/// no fork handler. Where the kernel cannot do that (before Linux 4.14), the fork handlers have to.
pub fn batch_wiped_on_fork<T: Zeroed>(count: usize) -> Option<&'static mut [T]> {
    let batch = batch::<T>(count)?;
    // SAFETY: the pages of the mapping, all of it; what a copy of the process finds there are
    // zeros, which are values of the type.
    unsafe {
        libc::madvise(
            batch.as_mut_ptr().cast(),
            size_of_val(batch),
            libc::MADV_WIPEONFORK,
        );
    }
    Some(batch)
}

/// A new anonymous mapping.
fn map(bytes: usize) -> Option<*mut u8> {
    // SAFETY: the kernel chooses where the mapping lies, so that it replaces none.
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

    use super::*;

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
    fn a_fork_finds_zeros() {
        let _forks = crate::lifecycle::tests::FORKS.lock();
        let batch = batch_wiped_on_fork::<u64>(2).unwrap();
        batch[1] = 5;
        // SAFETY: the child only reads a word and exits, without a destructor.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let word = i32::from(batch[1] != 0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(word) };
        }
        let mut status = -1;
        // SAFETY: writes the status to the local.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert_eq!(batch[1], 5);
    }
}
