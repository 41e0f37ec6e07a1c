//! A reference that one thread publishes and others read without a lock.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Nothing, or a reference that lives as long as the process.
pub struct Published<T: 'static> {
    place: AtomicPtr<T>,
    shares: PhantomData<&'static T>,
}

impl<T: Sync> Published<T> {
    /// Nothing yet.
    pub const fn none() -> Self {
        Self {
            place: AtomicPtr::new(core::ptr::null_mut()),
            shares: PhantomData,
        }
    }

    /// What was published last.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a reference that lives as long as the process; shared references of
        // a `Sync` type may be used by any thread.
        unsafe { self.place.load(Ordering::Acquire).as_ref() }
    }

    /// Publishes `value`, or nothing.
    pub fn set(&self, value: Option<&'static T>) {
        let place = value.map_or(core::ptr::null_mut(), |value| {
            core::ptr::from_ref(value).cast_mut()
        });
        self.place.store(place, Ordering::Release);
    }

    /// Takes what was published last.
    pub fn take(&self) -> Option<&'static T> {
        // SAFETY: null, or from a reference that lives as long as the process; shared references of
        // a `Sync` type may be used by any thread.
        unsafe {
            self.place
                .swap(core::ptr::null_mut(), Ordering::AcqRel)
                .as_ref()
        }
    }

    /// Publishes `value` where nothing is published; whether that was so.
    pub fn set_if_none(&self, value: &'static T) -> bool {
        let place = core::ptr::from_ref(value).cast_mut();
        let none = core::ptr::null_mut();
        self.place
            .compare_exchange(none, place, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_taken_once() {
        let place = Published::none();
        assert!(place.set_if_none(&1));
        assert!(!place.set_if_none(&2));
        assert_eq!(place.get(), Some(&1));
        assert_eq!(place.take(), Some(&1));
        assert_eq!((place.take(), place.get()), (None, None));
        assert!(place.set_if_none(&2));
        place.set(None);
        assert_eq!(place.get(), None);
    }
}
