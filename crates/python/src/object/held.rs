//! References to Python objects that the library keeps after it has released the GIL.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::lifecycle::Reset;

use super::{Object, Python, Raw};

/// A reference to a Python object that is kept beyond one hold of the GIL, for example in a static.
///
/// The owner calls [`Held::forget`] when a new interpreter starts in the process, because the object ended with the
/// old one. If a `Held` is dropped, its object is not released, because the interpreter may have ended.
pub struct Held(AtomicPtr<c_void>);

impl Reset for Held {
    fn reset(&self, initial: Self) {
        self.0.store(initial.0.into_inner(), Ordering::Release);
    }
}

impl Held {
    pub const fn none() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Takes over the reference to the object.
    pub fn new(object: Object<'_>) -> Self {
        Self(AtomicPtr::new(object.release()))
    }

    /// Returns a new reference to the object; `None` if no object is held.
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        let raw = self.0.load(Ordering::Acquire);
        // SAFETY: the reference is owned, so the object is alive.
        (!raw.is_null()).then(|| unsafe { py.share(raw) })?
    }

    /// Replaces the object. The old object is not released, because it may be in use.
    pub fn set(&self, object: Object<'_>) {
        self.0.store(object.release(), Ordering::Release);
    }

    /// Takes the object out and leaves the reference empty. Returns `None` if no object is held.
    pub fn take<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        let raw = self.0.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the reference was owned, and has no other owner now.
        (!raw.is_null()).then(|| unsafe { py.own(raw) })?
    }

    /// Empties the reference without releasing the object, which ended with its interpreter.
    pub fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }

    pub fn is_some(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }

    /// Returns the address of the object, or 0 if none is held.
    pub fn addr(&self) -> usize {
        self.0.load(Ordering::Relaxed).addr()
    }
}

/// The name of an attribute as a Python str. The str is kept until `release`.
pub struct AttributeName(Held);

impl AttributeName {
    pub fn new(py: Python<'_>, name: &CStr) -> Option<Self> {
        Some(Self(Held::new(py.c().intern(name)?)))
    }

    pub(super) fn raw(&self) -> Option<Raw> {
        let raw = self.0.0.load(Ordering::Acquire);
        (!raw.is_null()).then_some(raw)
    }

    /// Returns the str.
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        self.0.get(py)
    }

    /// Releases the str and leaves the name empty.
    pub fn release(&self, py: Python<'_>) {
        drop(self.0.take(py));
    }
}
