//! NVTX ranges for windows, iterations and batches, in the domain `tllmprof`.
//!
//! These ranges are start/end ranges, which belong to the process and not to a thread. Push/pop ranges cannot be used,
//! because an iteration may end on another thread than it began on. The domain separates these ranges from the
//! program's ranges. The library makes the ranges only if an NVTX tool is attached
//! ([`tllmprof_platform::injection`]).

use core::mem::ManuallyDrop;
use std::ffi::CString;

use tllmprof_platform::lifecycle;

use ::nvtx::domain::{Range, RegisteredString};
use ::nvtx::{Domain, Payload};
use tllmprof_config::NvtxName;
use tllmprof_recorder::Batch;
use tllmprof_sync::Published;

/// Returns the NVTX domain `tllmprof`. The first call loads the NVTX tool and registers the domain with it.
///
/// The child process after a fork registers the domain again. nsys starts anew in the child, and would confuse the
/// parent's domain with the first domain that the child registers.
pub(crate) fn domain() -> &'static Domain {
    lifecycle::global! {
        stage: Sinks;

        #[fork(reset)]
        static DOMAIN: Published<Domain> = Published::none();
    }
    DOMAIN.get_or(|| Domain::new(c"tllmprof"))
}

/// A text that is registered with the NVTX tool. A child process after a fork registers the text again.
pub(crate) struct RegisteredText {
    text: CString,
    registered: Published<Registered>,
}

struct Registered {
    string: RegisteredString<'static>,
    domain: &'static Domain,
}

// SAFETY: a registered string is a handle of the tool, which is valid in all threads.
unsafe impl Send for Registered {}
// SAFETY: a registered string never changes, and the tool accepts it from all threads.
unsafe impl Sync for Registered {}

impl RegisteredText {
    /// Registers `text` with the NVTX tool. The result is leaked, so it exists until the process ends.
    pub(crate) fn register(text: CString) -> &'static Self {
        let new = Self {
            text,
            registered: Published::none(),
        };
        new.get();
        Box::leak(Box::new(new))
    }

    /// Returns the registered string. After a fork, registers the text again in the child process.
    pub(crate) fn get(&self) -> RegisteredString<'static> {
        let domain = domain();
        let known = self.registered.get();
        if let Some(known) = known
            && core::ptr::eq(known.domain, domain)
        {
            return known.string;
        }
        let string = domain.register_string(self.text.clone());
        self.registered
            .publish(known, Registered { string, domain });
        string
    }
}

/// The NVTX ranges that are open, and the names with which further ranges are opened.
pub(crate) struct Ranges {
    capture: &'static RegisteredText,
    name: NvtxName,
    text: String,
    window: Option<Range<'static>>,
    iteration: Option<Range<'static>>,
    /// Number of the open iteration. `None` if no iteration is open.
    number: Option<u64>,
    /// The range that shows the contents of the iteration's batch.
    batch: Option<Range<'static>>,
}

impl Ranges {
    /// Registers the domain and the name of the capture range with the tool.
    pub(crate) fn new(name: &NvtxName) -> Self {
        Self {
            capture: RegisteredText::register(c"capture".to_owned()),
            name: name.clone(),
            text: String::new(),
            window: None,
            iteration: None,
            number: None,
            batch: None,
        }
    }

    /// Opens the NVTX range of iteration `n`.
    pub(crate) fn begin_iteration(&mut self, n: u64) {
        self.text.clear();
        // Writing to a `String` cannot fail.
        let _ = self.name.write(n, &mut self.text);
        let domain = domain();
        let attributes = domain
            .event_attributes_builder()
            .payload(Payload::Uint64(n));
        let attributes = match CString::new(self.text.as_str()) {
            Ok(text) => attributes.message(text).build(),
            Err(_) => attributes.build(),
        };
        self.iteration = Some(domain.range(attributes));
        self.number = Some(n);
    }

    /// Opens the range that shows the contents of a batch. The batch belongs to `iteration`, or to the open iteration
    /// if `iteration` is `None`. Does nothing if `iteration` is not open. The range carries the iteration's number, and
    /// ends when the iteration ends.
    pub(crate) fn begin_batch(&mut self, iteration: Option<u64>, batch: Batch) {
        let Some(open) = self.number else { return };
        if iteration.is_some_and(|iteration| iteration != open) {
            return;
        }
        let domain = domain();
        let attributes = domain
            .event_attributes_builder()
            .payload(Payload::Uint64(open));
        self.batch = None;
        if let Ok(text) = CString::new(batch.to_string()) {
            self.batch = Some(domain.range(attributes.message(text).build()));
        }
    }

    /// Ends the NVTX ranges of the iteration and of its batch.
    pub(crate) fn end_iteration(&mut self) {
        self.batch = None;
        self.iteration = None;
        self.number = None;
    }

    /// Opens the NVTX range `capture`, which lasts as long as the window (the range of profiled iterations) is open.
    pub(crate) fn begin_window(&mut self) {
        self.window = Some(domain().range(self.capture.get()));
    }

    /// Ends the NVTX range `capture`.
    pub(crate) fn end_window(&mut self) {
        self.window = None;
    }

    /// Drops the open ranges without ending them. Needed in the child process after a fork, because the ranges belong
    /// to the parent process.
    pub(crate) fn forget(&mut self) {
        let _window = ManuallyDrop::new(self.window.take());
        let _iteration = ManuallyDrop::new(self.iteration.take());
        let _batch = ManuallyDrop::new(self.batch.take());
        self.number = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_a_window_follow_its_iterations() {
        let mut ranges = Ranges::new(&NvtxName::parse("batch {n}").unwrap());
        ranges.begin_window();
        for (n, name) in [(3, "batch 3"), (4, "batch 4")] {
            ranges.begin_iteration(n);
            assert!(ranges.window.is_some() && ranges.iteration.is_some());
            assert_eq!(ranges.text, name);
            ranges.end_iteration();
            assert!(ranges.iteration.is_none());
        }
        ranges.end_window();
        assert!(ranges.window.is_none());
        let batch = Batch::new(16, 20, 4).unwrap();
        ranges.begin_batch(None, batch);
        assert!(ranges.batch.is_none());
        ranges.begin_iteration(4);
        ranges.begin_batch(Some(3), batch);
        assert!(ranges.batch.is_none());
        ranges.begin_batch(Some(4), batch);
        assert!(ranges.batch.is_some());
        ranges.end_iteration();
        assert!(ranges.batch.is_none());
        ranges.begin_window();
        ranges.begin_iteration(5);
        ranges.forget();
        assert!(ranges.window.is_none() && ranges.iteration.is_none());
    }
}
