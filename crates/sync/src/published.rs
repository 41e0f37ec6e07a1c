//! A reference that one thread publishes and other threads read without a lock.

use core::marker::PhantomData;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A reference to a value that lives as long as the process, or no reference.
#[repr(transparent)]
pub struct Published<T: 'static> {
    place: AtomicPtr<T>,
    shares: PhantomData<&'static T>,
}

impl<T: Sync> Published<T> {
    /// Returns a `Published` that holds no reference.
    pub const fn none() -> Self {
        Self {
            place: AtomicPtr::new(null_mut()),
            shares: PhantomData,
        }
    }

    /// Returns the published reference, or `None` if there is none.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        Self::reference(self.place.load(Ordering::Acquire))
    }

    /// Publishes `value`. If it is `None`, removes the published reference.
    pub fn set(&self, value: Option<&'static T>) {
        self.place.store(Self::address(value), Ordering::Release);
    }

    /// Removes the published reference and returns it.
    pub fn take(&self) -> Option<&'static T> {
        Self::reference(self.place.swap(null_mut(), Ordering::AcqRel))
    }

    /// Publishes `value` if nothing is published. Returns true if it was published.
    pub fn set_if_none(&self, value: &'static T) -> bool {
        self.replace(None, Some(value)).is_ok()
    }

    /// Replaces the published reference with `new`, if the published reference is `old`. References are compared by
    /// address.
    ///
    /// # Errors
    /// If another reference is published, nothing changes, and the error contains that reference.
    pub fn replace(
        &self,
        old: Option<&'static T>,
        new: Option<&'static T>,
    ) -> Result<(), Option<&'static T>> {
        let (old, new) = (Self::address(old), Self::address(new));
        let replaced = self
            .place
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        replaced.map(|_| ()).map_err(Self::reference)
    }

    /// Publishes a new value in place of `old`. Returns the published reference. If another thread has replaced `old`
    /// first, returns the other thread's reference and drops the new value.
    pub fn publish(&self, old: Option<&'static T>, new: T) -> Option<&'static T> {
        let new = Box::into_raw(Box::new(new));
        // SAFETY: a published value is never freed. A value that was not published belongs only to this function.
        unsafe {
            match self.replace(old, Some(&*new)) {
                Ok(()) => Some(&*new),
                Err(first) => {
                    drop(Box::from_raw(new));
                    first
                }
            }
        }
    }

    /// Returns the published reference. If there is none, publishes the result of `make`.
    ///
    /// If several threads call this function at the same time, the first result is published, and the other results are
    /// leaked.
    pub fn get_or(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(known) = self.get() {
            return known;
        }
        let new = Box::leak(Box::new(make()));
        match self.replace(None, Some(new)) {
            Err(Some(first)) => first,
            Ok(()) | Err(None) => new,
        }
    }

    fn address(value: Option<&'static T>) -> *mut T {
        value.map_or(null_mut(), |value| from_ref(value).cast_mut())
    }

    #[inline]
    fn reference(place: *mut T) -> Option<&'static T> {
        // SAFETY: the pointer is null, or comes from a reference that lives as long as the process. Any thread may use
        // a shared reference to a `Sync` type.
        unsafe { place.as_ref() }
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

    #[test]
    fn of_two_new_values_the_first_stays() {
        let (place, dropped) = (Published::none(), std::sync::Arc::new(()));
        let first = place.publish(None, (1, dropped.clone())).unwrap();
        let second = place.publish(None, (2, dropped.clone())).unwrap();
        assert_eq!((first.0, second.0), (1, 1));
        assert_eq!(std::sync::Arc::strong_count(&dropped), 2, "one was dropped");
        assert_eq!(place.publish(Some(first), (3, dropped)).unwrap().0, 3);
    }

    #[test]
    fn replace_takes_only_the_place_of_what_it_was_given() {
        static VALUES: [u32; 2] = [1, 2];
        let place = Published::none();
        assert_eq!(place.replace(None, Some(&VALUES[0])), Ok(()));
        assert_eq!(place.replace(None, Some(&VALUES[1])), Err(Some(&1)));
        assert_eq!(place.replace(Some(&VALUES[0]), Some(&VALUES[1])), Ok(()));
        assert_eq!(place.get(), Some(&2));
    }
}
