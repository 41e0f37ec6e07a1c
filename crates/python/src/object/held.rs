//! References that outlive whoever has the GIL.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::lifecycle::Reset;

use super::{Object, Python, Raw};

/// A reference that is owned by a static, or by something else that outlives the GIL's holders.
///
/// Whoever keeps one forgets it when interpreters start anew in the process: the object is gone
/// then. Otherwise it stays: an interpreter may have ended with it.
pub struct Held(AtomicPtr<c_void>);

impl Reset for Held {
    fn reset(&self, initial: Self) {
        self.0.store(initial.0.into_inner(), Ordering::Release);
    }
}

impl Held {
    /// Nothing yet.
    pub const fn none() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// That object.
    pub fn new(object: Object<'_>) -> Self {
        Self(AtomicPtr::new(object.release()))
    }

    /// The object, if one is held.
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        let raw = self.0.load(Ordering::Acquire);
        // SAFETY: the reference is owned, so that the object is alive.
        (!raw.is_null()).then(|| unsafe { py.share(raw) })?
    }

    /// Holds `object` from here on. What was held is not given back: it may be in use.
    pub fn set(&self, object: Object<'_>) {
        self.0.store(object.release(), Ordering::Release);
    }

    /// Holds nothing any more, and gives the reference over.
    pub fn take<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        let raw = self.0.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the reference was owned, and nobody else has it now.
        (!raw.is_null()).then(|| unsafe { py.own(raw) })?
    }

    /// Holds nothing any more: the object has gone with its interpreter.
    pub fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }

    /// Whether an object is held.
    pub fn is_some(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }

    /// Where the object lies; 0 for none.
    pub fn addr(&self) -> usize {
        self.0.load(Ordering::Relaxed).addr()
    }
}

/// The name of an attribute: a str that is held, or none any more.
pub struct AttributeName(Held);

impl AttributeName {
    pub fn new(py: Python<'_>, name: &CStr) -> Option<Self> {
        Some(Self(Held::new(py.c().intern(name)?)))
    }

    pub(super) fn raw(&self) -> Option<Raw> {
        let raw = self.0.0.load(Ordering::Acquire);
        (!raw.is_null()).then_some(raw)
    }

    /// The str.
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        self.0.get(py)
    }

    /// Gives the str up.
    pub fn release(&self, py: Python<'_>) {
        drop(self.0.take(py));
    }
}
