//! What is open on each thread.

use core::cell::Cell;

use tllmprof_platform::pages::{self, Zeroed};
use tllmprof_platform::thread::{self, Part};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;

use crate::driver::Captured;
use crate::paths;

/// How deep it may be: what lies deeper is not known.
const DEEPEST: usize = 64;
/// The domain of what the library marks itself: functions and modules.
pub const OWN: usize = 1;

/// What a thread has open, and how far it is in a call. Only the thread itself uses it.
pub struct Open {
    entries: [Entry; DEEPEST],
    depth: Cell<usize>,
    /// What is open beyond.
    beyond: Cell<usize>,
    /// One more than the scope that the record has of the thread, and in which window; 0: none.
    written: Cell<u64>,
    pub pending: Pending,
}

/// Of ranges each domain has a stack of its own.
struct Entry {
    domain: Cell<usize>,
    path: Cell<u32>,
    /// Says what is open within the path, from moment to moment.
    within: Cell<Option<&'static dyn Within>>,
}

/// Code that several scopes have launches in without opening them, as a compiled model's.
pub trait Within: Sync {
    /// The innermost part of the scope that the calling thread is in now; `None`: there is none. May be called while the thread
    /// is in a call of CUDA: it takes no lock and allocates nothing.
    fn now(&self) -> Option<&'static [u8]>;
}

impl Entry {
    fn scope(&self) -> u32 {
        let path = self.path.get();
        match self.within.get().and_then(Within::now) {
            Some(name) => paths::within(path, name),
            None => path,
        }
    }
}

/// A call that is under way on a thread.
pub struct Pending {
    /// Where its frame lies; 0: there is none.
    frame: Cell<usize>,
    graph: Cell<usize>,
    node: Cell<usize>,
}

impl Pending {
    pub fn set(&self, frame: usize, captured: Captured) {
        self.frame.set(frame);
        self.graph.set(captured.graph);
        self.node.set(captured.node);
    }

    /// The frame of the call that is under way, and the graph; there is none any more.
    pub fn take(&self) -> (usize, Captured) {
        let captured = Captured {
            graph: self.graph.take(),
            node: self.node.take(),
        };
        (self.frame.take(), captured)
    }
}

// SAFETY: only the thread that has it uses its cells (`with` is given the calling thread's), and what another thread takes
// over is one that has ended.
unsafe impl Sync for Open {}
// SAFETY: cells of numbers, of which zeros are a value.
unsafe impl Zeroed for Open {}

// SAFETY: `Kind::Scopes` is this type's alone.
unsafe impl Part for Open {
    const KIND: thread::Kind = thread::Kind::Scopes;

    fn thread_ends(&'static self) {}
}

/// The calling thread's, which it has from its first range or launch on.
pub fn with<T>(act: impl FnOnce(&Open) -> T) -> Option<T> {
    let open = thread::part::<Open>().or_else(begin)?;
    Some(act(open))
}

#[cold]
fn begin() -> Option<&'static Open> {
    thread::begin_part(|_, left: Option<&'static Open>| {
        let open = match left {
            Some(left) => left,
            None => pages::batch::<Open>(1)?.first()?,
        };
        open.depth.set(0);
        open.beyond.set(0);
        open.written.set(0);
        open.pending.take();
        Some(open)
    })
}

impl Open {
    /// The scope.
    pub fn scope(&self) -> u32 {
        match self.depth.get().checked_sub(1) {
            _ if self.beyond.get() > 0 => paths::UNKNOWN,
            Some(last) => self.entries[last].scope(),
            None => paths::NONE,
        }
    }

    fn push(&self, domain: usize, name: &[u8], within: Option<&'static dyn Within>) {
        let depth = self.depth.get();
        match self.entries.get(depth) {
            Some(entry) if self.beyond.get() == 0 => {
                entry.path.set(paths::within(self.scope(), name));
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
        let open = &self.entries[..self.depth.get()];
        let Some(at) = open.iter().rposition(|entry| entry.domain.get() == domain) else {
            return;
        };
        // What another domain has opened within it stays open.
        let mut around = match at.checked_sub(1) {
            Some(last) => open[last].path.get(),
            None => paths::NONE,
        };
        for (to, from) in open[at..].iter().zip(&open[at + 1..]) {
            // What says itself what is open has no part of its own.
            if from.within.get().is_none() {
                around = match paths::name(from.path.get()) {
                    Some(name) => paths::within(around, name),
                    None => paths::UNKNOWN,
                };
            }
            to.path.set(around);
            to.domain.set(from.domain.get());
            to.within.set(from.within.get());
        }
        self.depth.set(open.len() - 1);
    }
}

/// The calling thread opens something; `domain`: on whose stack.
pub fn push(domain: usize, name: &[u8]) {
    with(|open| open.push(domain, name, None));
}

/// The calling thread begins to run code that is `within` what is open, and that says itself what more is.
pub fn push_within(within: &'static dyn Within) {
    with(|open| open.push(OWN, b"", Some(within)));
}

/// The calling thread closes what it has opened last in this domain.
pub fn pop(domain: usize) {
    with(|open| open.pop(domain));
}

/// The scope that the calling thread is in, and its innermost part.
pub fn here() -> (u32, Option<&'static [u8]>) {
    let scope = with(Open::scope).unwrap_or(paths::UNKNOWN);
    (scope, paths::name(scope))
}

/// The calling thread launches something outside a capture: the record has its scope, if it keeps calls.
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
