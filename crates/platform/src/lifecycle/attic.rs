//! Stores bytewise copies of values that are no longer used but must not be dropped, such as the parent's values in a
//! forked child. The heap memory that these values own is leaked on purpose. A leak checker searches the statics of
//! libraries for pointers to heap memory. It finds these pointers in the static buffer of this module, so it reports no
//! leak.

use core::cell::UnsafeCell;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::from_ref;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::lifecycle;

/// The number of words in the buffer: enough for several generations of forked children. Values that no longer fit
/// are leaked without being stored here.
const WORDS: usize = 1 << 13;

/// A buffer for copies of the values. No code reads the buffer.
struct AtticWords(UnsafeCell<[MaybeUninit<usize>; WORDS]>);

// SAFETY: each word is written once, by the thread that reserved it in `USED`, and is never read.
unsafe impl Sync for AtticWords {}

lifecycle::global! {
    #[fork(keep = "what the parent has put away is leaked in the child, too")]
    #[together(tables)]
    static ROOM: AtticWords = AtticWords(UnsafeCell::new([MaybeUninit::uninit(); WORDS]));
    #[fork(keep = "as the words")]
    static USED: AtomicUsize = AtomicUsize::new(0);
}

/// Copies the bytes of a value that is never dropped to the buffer, unless the buffer is full. Does not allocate or
/// free memory.
pub fn put<T>(value: T) {
    let value = ManuallyDrop::new(value);
    let words = size_of::<T>().div_ceil(size_of::<usize>());
    let take = |used: usize| used.checked_add(words).filter(|end| *end <= WORDS);
    if let Ok(at) = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
        // SAFETY: the words from `at` on are within the array, belong only to this call, and are enough for the value's
        // bytes. The value lies elsewhere, and is no longer used as a value.
        unsafe {
            let place = ROOM.0.get().cast::<MaybeUninit<usize>>().add(at);
            from_ref(&value)
                .cast::<u8>()
                .copy_to_nonoverlapping(place.cast(), size_of::<T>());
        }
        // Without this line the optimizer would remove the stores, because no code reads the buffer.
        core::hint::black_box(ROOM.0.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_there_as_it_was_and_too_large_a_one_is_forgotten() {
        struct Alarm(#[allow(dead_code)] [u64; 3], Box<u8>);
        impl Drop for Alarm {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let alarm = Alarm([1, 2, 3], Box::new(4));
        let owned = from_ref(&*alarm.1).addr();
        put(alarm);
        let used = USED.load(Ordering::Relaxed);
        // SAFETY: these words were written, each as a whole word of the value.
        let words = unsafe { &*ROOM.0.get() }[..used]
            .iter()
            .map(|word| unsafe { word.assume_init() });
        assert!(words.into_iter().any(|word| word == owned));
        put([0_usize; WORDS]);
        assert!(USED.load(Ordering::Relaxed) < WORDS);
    }
}
