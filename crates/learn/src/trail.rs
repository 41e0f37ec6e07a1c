//! What each thread has called lately.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::call::token;

/// How many threads are told apart; ids are taken modulo this.
pub const THREADS: usize = 64;

/// How many calls back a site's context reaches.
pub(crate) const DEPTH: usize = 8;

/// The trails of all threads. Launches go here and nowhere else, without a lock: each thread
/// writes only its own trail, and a reader on another thread wants no more than its counters.
#[derive(Debug)]
pub struct Trails {
    trails: [Trail; THREADS],
    /// One more than the highest thread slot in use.
    used: AtomicU32,
    /// An iteration opens at the next launch.
    armed: AtomicBool,
}

#[derive(Debug)]
struct Trail {
    tokens: [AtomicU64; DEPTH],
    calls: AtomicU32,
    /// `calls` when the last launch was made.
    launched: AtomicU32,
    launches: AtomicU32,
    graphs: AtomicU32,
    capturing: AtomicBool,
}

/// How much a thread has launched, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Work {
    pub launches: u32,
    pub graphs: u32,
}

impl Work {
    /// What was launched since `before`.
    pub const fn since(self, before: Self) -> Self {
        Self {
            launches: self.launches.wrapping_sub(before.launches),
            graphs: self.graphs.wrapping_sub(before.graphs),
        }
    }

    /// This and more.
    pub const fn plus(self, more: Self) -> Self {
        Self {
            launches: self.launches.wrapping_add(more.launches),
            graphs: self.graphs.wrapping_add(more.graphs),
        }
    }

    /// One number for it. A graph stands for many kernels.
    pub const fn weight(self) -> u32 {
        self.launches
            .saturating_add(self.graphs.saturating_mul(GRAPH_WEIGHT))
    }
}

/// Launches that a graph counts for when threads and intervals are compared.
pub(crate) const GRAPH_WEIGHT: u32 = 32;

impl Trail {
    const fn new() -> Self {
        Self {
            tokens: [const { AtomicU64::new(0) }; DEPTH],
            calls: AtomicU32::new(0),
            launched: AtomicU32::new(0),
            launches: AtomicU32::new(0),
            graphs: AtomicU32::new(0),
            capturing: AtomicBool::new(false),
        }
    }

    #[inline]
    fn push(&self, token: u64) -> u32 {
        let calls = self.calls.load(Relaxed);
        self.tokens[calls as usize % DEPTH].store(token, Relaxed);
        self.calls.store(calls.wrapping_add(1), Relaxed);
        calls.wrapping_add(1)
    }
}

impl Trails {
    /// No thread has called anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            trails: [const { Trail::new() }; THREADS],
            used: AtomicU32::new(0),
            armed: AtomicBool::new(false),
        }
    }

    /// Notes a kernel launch. Where it says so, an iteration may open before the launch goes on:
    /// tell [`Learner::launch`](crate::Learner::launch).
    #[inline]
    pub fn launch(&self, thread: u32, kernel: u64) -> bool {
        let trail = self.trail(thread);
        if trail.capturing.load(Relaxed) {
            return false;
        }
        self.mark_used(thread);
        let now = trail.push(kernel);
        trail.launched.store(now, Relaxed);
        let launches = trail.launches.load(Relaxed);
        trail.launches.store(launches.wrapping_add(1), Relaxed);
        self.armed.load(Relaxed)
    }

    /// Notes a graph launch, as [`Trails::launch`] does a kernel's.
    #[inline]
    pub fn graph_launch(&self, thread: u32) -> bool {
        let trail = self.trail(thread);
        if trail.capturing.load(Relaxed) {
            return false;
        }
        self.mark_used(thread);
        let now = trail.push(token::GRAPH);
        trail.launched.store(now, Relaxed);
        let graphs = trail.graphs.load(Relaxed);
        trail.graphs.store(graphs.wrapping_add(1), Relaxed);
        self.armed.load(Relaxed)
    }

    /// Notes a copy to the device.
    #[inline]
    pub fn copy_to_device(&self, thread: u32) {
        let trail = self.trail(thread);
        if !trail.capturing.load(Relaxed) {
            trail.push(token::COPY_TO_DEVICE);
        }
    }

    /// A stream capture begins or ends on this thread.
    pub fn capture(&self, thread: u32, under_way: bool) {
        self.trail(thread).capturing.store(under_way, Relaxed);
    }

    /// Whether the calls of this thread are being captured.
    pub(crate) fn capturing(&self, thread: u32) -> bool {
        self.trail(thread).capturing.load(Relaxed)
    }

    pub(crate) fn push(&self, thread: u32, token: u64) {
        self.trail(thread).push(token);
        self.mark_used(thread);
    }

    /// The thread slots that have been used.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    #[inline]
    fn mark_used(&self, thread: u32) {
        let slot = slot(thread) as u32;
        if self.used.load(Relaxed) <= slot {
            self.used.fetch_max(slot + 1, Relaxed);
        }
    }

    /// The thread's last calls, the latest first; 0 for none.
    pub(crate) fn last(&self, thread: u32) -> impl Iterator<Item = u64> {
        let trail = self.trail(thread);
        let calls = trail.calls.load(Relaxed);
        (1..=DEPTH as u32)
            .map(move |back| trail.tokens[calls.wrapping_sub(back) as usize % DEPTH].load(Relaxed))
    }

    /// Whether the thread has launched nothing in its last [`DEPTH`] calls.
    pub(crate) fn helper(&self, thread: u32) -> bool {
        let trail = self.trail(thread);
        let calls = trail.calls.load(Relaxed);
        let launched = trail.launched.load(Relaxed);
        launched == 0 || calls.wrapping_sub(launched) >= DEPTH as u32
    }

    pub(crate) fn work(&self, thread: u32) -> Work {
        let trail = self.trail(thread);
        Work {
            launches: trail.launches.load(Relaxed),
            graphs: trail.graphs.load(Relaxed),
        }
    }

    pub(crate) fn arm(&self, armed: bool) {
        self.armed.store(armed, Relaxed);
    }

    fn trail(&self, thread: u32) -> &Trail {
        &self.trails[slot(thread)]
    }
}

impl Default for Trails {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a thread's things are kept.
pub(crate) const fn slot(thread: u32) -> usize {
    thread as usize % THREADS
}
