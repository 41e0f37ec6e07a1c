//! The open scopes (ranges, modules and functions) of each thread.

use core::cell::Cell;

use tllmprof_platform::pages::{self, Zeroed};
use tllmprof_platform::stack as machine;
use tllmprof_platform::thread::{self, Part};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;

use crate::driver::CapturePoint;
use crate::entry::{DEEPEST, NATIVE, NativeCalls, OpenScope, Within};
use crate::paths;

/// The number of the domain (a separate stack of scopes) for scopes that the library opens itself:
/// Python functions and modules.
pub const OWN: usize = 1;

/// The open scopes of a thread, and its current call that may create a graph node. Only this thread uses them.
pub(crate) struct OpenScopes {
    entries: [OpenScope; DEEPEST],
    depth: Cell<usize>,
    /// Number of open scopes that were not stored, because [`DEEPEST`] scopes were open already.
    beyond: Cell<usize>,
    /// The scope that was last written to the record for this thread. The lower 32 bits are the number of its path
    /// plus 1, and the upper 32 bits are the number of the window. 0 if none was written.
    written: Cell<u64>,
    pub pending: Pending,
    pub calls: NativeCalls,
}

/// A call of the program that may create a graph node, and that has not returned.
pub(crate) struct Pending {
    /// The address that identifies the call; 0 if the thread is in no call that may create a node.
    frame: Cell<usize>,
    graph: Cell<usize>,
    node: Cell<usize>,
}

impl Pending {
    pub(crate) fn set(&self, frame: usize, captured: CapturePoint) {
        self.frame.set(frame);
        self.graph.set(captured.graph);
        self.node.set(captured.node);
    }

    /// Removes and returns the address that identifies the current call, and the state of the
    /// capture before this call.
    pub(crate) fn take(&self) -> (usize, CapturePoint) {
        let captured = CapturePoint {
            graph: self.graph.take(),
            node: self.node.take(),
        };
        (self.frame.take(), captured)
    }
}

// SAFETY: only the owning thread uses the cells, because `with` passes the calling thread's value.
// Another thread takes the value over only after the owner has ended.
unsafe impl Sync for OpenScopes {}
// SAFETY: the type consists of cells of numbers and options, and zeros are valid values of them.
unsafe impl Zeroed for OpenScopes {}

// SAFETY: no other type uses `ThreadComponent::Scopes`.
unsafe impl Part for OpenScopes {
    const KIND: thread::ThreadComponent = thread::ThreadComponent::Scopes;

    fn thread_ends(&'static self) {}
}

/// Runs `act` with the calling thread's open scopes. The first call creates them. Returns `None` if there is no
/// memory.
pub(crate) fn with<T>(act: impl FnOnce(&OpenScopes) -> T) -> Option<T> {
    let open = thread::part::<OpenScopes>().or_else(begin)?;
    Some(act(open))
}

#[cold]
fn begin() -> Option<&'static OpenScopes> {
    thread::begin_part(|_, left: Option<&'static OpenScopes>| {
        let open = match left {
            Some(left) => left,
            None => pages::batch::<OpenScopes>(1)?.first()?,
        };
        open.depth.set(0);
        open.beyond.set(0);
        open.written.set(0);
        open.pending.take();
        open.calls.begin();
        Some(open)
    })
}

impl OpenScopes {
    /// Returns the open scopes that are stored, the outermost first.
    pub(crate) fn open_entries(&self) -> &[OpenScope] {
        &self.entries[..self.depth.get()]
    }

    /// Returns true if another scope can be stored.
    pub(crate) fn has_room(&self) -> bool {
        self.beyond.get() == 0 && self.depth.get() < DEEPEST
    }

    /// Returns the index of the innermost open native call, if there is one.
    pub(crate) fn last_native(&self) -> Option<usize> {
        let open = self.open_entries();
        open.iter().rposition(|entry| entry.domain.get() == NATIVE)
    }

    /// Closes the native call at the index `at`.
    pub(crate) fn remove_native(&self, at: usize) {
        let calls = &self.calls;
        calls.open.set(calls.open.get().saturating_sub(1));
        calls.is_over_full.set(false);
        self.remove(at);
    }

    /// Closes native calls that are no longer on the stack. Returns false if the open scopes cannot be determined,
    /// for example because the thread runs on another stack.
    pub(crate) fn settle(&self) -> bool {
        let calls = &self.calls;
        let stack = calls.stack();
        if !stack.is_empty() {
            let here = machine::here();
            if !stack.contains(&here) {
                return false;
            }
            while calls.open.get() > 0
                && let Some(last) = self.last_native()
                && !self.open_entries()[last].is_under_way(here)
            {
                self.remove_native(last);
            }
        }
        !calls.is_over_full.get()
    }

    /// Returns the number of the path of open scopes, or [`paths::UNKNOWN`] if these cannot be determined.
    pub(crate) fn scope(&self) -> u32 {
        if !self.settle() {
            return paths::UNKNOWN;
        }
        self.innermost()
    }

    fn innermost(&self) -> u32 {
        match self.depth.get().checked_sub(1) {
            _ if self.beyond.get() > 0 => paths::UNKNOWN,
            Some(last) => self.entries[last].scope(),
            None => paths::NONE,
        }
    }

    pub(crate) fn push(&self, domain: usize, name: &[u8], within: Option<&'static dyn Within>) {
        let depth = self.depth.get();
        match self.entries.get(depth) {
            Some(entry) if self.beyond.get() == 0 => {
                entry.path.set(paths::within(self.innermost(), name));
                entry.domain.set(domain);
                entry.within.set(within);
                self.depth.set(depth + 1);
            }
            _ => self.beyond.set(self.beyond.get() + 1),
        }
    }

    fn pop(&self, domain: usize) {
        if self.beyond.get() > 0 {
            return self.beyond.set(self.beyond.get() - 1);
        }
        let open = self.open_entries();
        if let Some(at) = open.iter().rposition(|entry| entry.domain.get() == domain) {
            self.remove(at);
        }
    }

    /// Closes the scope at the index `at`. Scopes that were opened inside it stay open.
    pub(crate) fn remove(&self, at: usize) {
        let open = self.open_entries();
        let mut around = match at.checked_sub(1) {
            Some(last) => open[last].path.get(),
            None => paths::NONE,
        };
        for (to, from) in open[at..].iter().zip(&open[at + 1..]) {
            // Add the name of the entry to the path, unless the entry stands for code that several scopes share. Such
            // an entry has no name of its own.
            if from.within.get().is_none() {
                around = match paths::name(from.path.get()) {
                    Some(name) => paths::within(around, name),
                    None => paths::UNKNOWN,
                };
            }
            to.path.set(around);
            to.become_that_of(from);
        }
        self.depth.set(open.len() - 1);
    }
}

/// Opens a scope on the calling thread. `domain` selects the stack of scopes to which it belongs.
pub fn push(domain: usize, name: &[u8]) {
    with(|open| open.push(domain, name, None));
}

/// Called when the calling thread starts to run code that several scopes share. At each launch, `within` returns the
/// innermost part of the scope.
pub fn push_within(within: &'static dyn Within) {
    with(|open| open.push(OWN, b"", Some(within)));
}

/// Closes the scope that the calling thread opened last in this domain (a separate stack of
/// scopes).
pub fn pop(domain: usize) {
    with(|open| open.pop(domain));
}

/// Returns the innermost part of the calling thread's current scope, or `None` if no scope is open or the scope is
/// unknown.
pub fn innermost() -> Option<&'static [u8]> {
    paths::name(with(OpenScopes::scope)?)
}

/// Called when the calling thread launches a kernel while no stream is being captured. If calls are being recorded,
/// writes the current scope to the record, unless it is the one that was last written for this thread in this window.
pub fn launches() {
    if !recorder::is_keeping() {
        return;
    }
    with(|open| {
        let scope = open.scope();
        let window = u64::from(recorder::ranges::window());
        let written = (window << 32) + u64::from(scope) + 1;
        if open.written.replace(written) != written {
            recorder::event(
                recorder::ticks(),
                0,
                What::InScope {
                    scope: paths::write(scope),
                },
            );
        }
    });
}
