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
}
