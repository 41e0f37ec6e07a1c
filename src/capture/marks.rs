//! NVTX ranges and marks of what happens inside the program: collections, the GIL, functions.
//!
//! In the domain `tllmprof`, like the iterations, with names that are registered once.

use core::mem::ManuallyDrop;
use std::ffi::CString;

use ::nvtx::Payload;
use ::nvtx::domain::{LocalRange, Range, RegisteredString};
use once_cell::race::OnceBox;

use super::nvtx::domain;
use crate::injection;

/// What ranges and marks are called.
#[derive(Clone, Copy)]
pub struct Name(RegisteredString<'static>);

// SAFETY: a registered string is a handle of the tool's, which is good in any thread.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

/// A range on the stack of the thread that pushed it.
pub struct Pushed(LocalRange<'static>);

/// A range that may end on another thread, and beside others.
pub struct Started(Range<'static>);

/// A range that was pushed once. All of them are alike: what a range on a thread's stack refers to
/// is the domain alone.
struct AnyPushed(ManuallyDrop<LocalRange<'static>>);

// SAFETY: it is not used but to make copies of it.
unsafe impl Send for AnyPushed {}
// SAFETY: as above.
unsafe impl Sync for AnyPushed {}

static ANY_PUSHED: OnceBox<AnyPushed> = OnceBox::new();

/// Ends the range that the thread has begun last, by [`Name::push_until_pop`].
pub fn pop() {
    if let Some(any) = ANY_PUSHED.get() {
        // SAFETY: the value is never dropped itself and owns no memory: dropping a copy of it pops
        // one range off the calling thread's stack, which the caller has pushed.
        drop(unsafe { core::ptr::read(&raw const *any.0) });
    }
}

/// Whether anybody listens, so that names are worth registering.
///
/// Ask once something is to be marked, not earlier: a profiler that is preloaded, too, sets its
/// variables in its constructor.
pub fn are_wanted() -> bool {
    crate::settings().is_some_and(|settings| settings.nvtx) && injection::has_tool()
}

impl Name {
    /// Registers `text`, for which the tool is loaded if it is not there yet: not for a hook.
    /// None where nobody listens.
    pub fn new(text: &str) -> Option<Self> {
        let text = CString::new(text).ok()?;
        are_wanted().then(|| Self::register(text))
    }

    /// As [`Name::new`], whether anybody listens or not.
    pub fn register(text: CString) -> Self {
        Self(domain().register_string(text))
    }

    /// Begins a range that ends on this thread, before what was pushed earlier ends.
    #[must_use = "the range ends when it is dropped"]
    pub fn push(self) -> Pushed {
        Pushed(domain().local_range(self.0))
    }

    /// Begins a range that ends with the thread's next [`pop`].
    pub fn push_until_pop(self) {
        let range = ManuallyDrop::new(domain().local_range(self.0));
        ANY_PUSHED.get_or_init(|| Box::new(AnyPushed(range)));
    }

    /// Begins a range that may cross others, with a number if that is not 0.
    #[must_use = "the range ends when it is dropped"]
    pub fn start(self, payload: u64) -> Started {
        if payload == 0 {
            return Started(domain().range(self.0));
        }
        let builder = domain().event_attributes_builder();
        let attributes = builder.message(self.0).payload(Payload::Uint64(payload));
        Started(domain().range(attributes.build()))
    }

    /// Marks this moment, with a number.
    pub fn mark(self, payload: u64) {
        let builder = domain().event_attributes_builder();
        let attributes = builder.message(self.0).payload(Payload::Uint64(payload));
        domain().mark(attributes.build());
    }
}

impl Pushed {
    /// Gives the range up without ending it: it is another process's.
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self.0);
    }
}

impl Started {
    /// As [`Pushed::forget`].
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self.0);
    }
}
