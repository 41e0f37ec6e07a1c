//! Trails: the latest calls of each thread. From them the learner computes the contexts of call sites.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use tllmprof_calls::Wait;

use crate::call::token;

/// Number of threads that are distinguished. Thread ids are taken modulo this number.
pub const THREADS: usize = 64;

/// A set of threads: bit n stands for the threads whose id modulo [`THREADS`] is n.
pub(crate) type Threads = u64;

/// Number of earlier calls that a call site's longest context contains.
pub(crate) const DEPTH: usize = 8;

/// The trails (lists of the latest calls) of all threads. Each call is added to its thread's trail before the learner
/// examines the call. This needs no lock: a thread writes only its own trail, and other threads only read the trail's
/// counters. Two threads whose ids are equal modulo [`THREADS`] share a trail, in which calls may then get lost.
#[derive(Debug)]
pub struct Trails {
    trails: [Trail; THREADS],
    /// One more than the highest index of a trail (list of recent calls) that a thread uses.
    used: AtomicU32,
}

/// The trail of a thread: its latest calls, in a layout that the library's assembly code can write. A new
/// call's token is stored at index `calls` modulo [`Trail::LENGTH`], then `calls` is incremented. For a
/// launch, `launches` or `graphs` is incremented as well. The token is the kernel's handle, or a constant
/// such as [`Trail::GRAPH`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Trail {
    tokens: [AtomicU64; Self::LENGTH],
    calls: AtomicU32,
    launches: AtomicU32,
    graphs: AtomicU32,
    capturing: AtomicBool,
}

/// The work of a thread: the numbers of kernels and graphs that it has launched. The numbers wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ThreadLaunches {
    pub launches: u32,
    pub graphs: u32,
}

impl ThreadLaunches {
    pub(crate) const NONE: Self = Self {
        launches: 0,
        graphs: 0,
    };

    /// Returns the work between `before`, an earlier value, and this value.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            launches: self.launches.wrapping_sub(before.launches),
            graphs: self.graphs.wrapping_sub(before.graphs),
        }
    }

    /// Returns the sum of this work and `more`.
    pub(crate) const fn plus(self, more: Self) -> Self {
        Self {
            launches: self.launches.wrapping_add(more.launches),
            graphs: self.graphs.wrapping_add(more.graphs),
        }
    }

    /// Returns the work as one number. A graph counts as [`GRAPH_WEIGHT`] launches.
    pub(crate) const fn weight(self) -> u32 {
        self.launches
            .saturating_add(self.graphs.saturating_mul(GRAPH_WEIGHT))
    }
}

/// Number of launches that a graph counts as when the work of threads or intervals is compared.
pub(crate) const GRAPH_WEIGHT: u32 = 32;

impl Trail {
    /// Number of tokens in a trail, a power of two. A trail has room for a call with its longest context of eight
    /// calls, and for some calls of another thread that shares the trail.
    pub const LENGTH: usize = 16;
    /// Offset in bytes of the tokens in a trail (a thread's recent calls), for the assembly code.
    pub const TOKENS: usize = core::mem::offset_of!(Self, tokens);
    /// Offset in bytes of the count of all calls in a trail (a thread's recent calls), for the assembly code. The
    /// count has 32 bits and wraps around.
    pub const CALLS: usize = core::mem::offset_of!(Self, calls);
    /// Offset in bytes of the count of kernel launches in a trail (a thread's recent calls), for the assembly code.
    /// The count has 32 bits and wraps around.
    pub const LAUNCHES: usize = core::mem::offset_of!(Self, launches);
    /// Offset in bytes of the count of graph launches in a trail (a thread's recent calls), for the assembly code.
    /// The count has 32 bits and wraps around.
    pub const GRAPHS: usize = core::mem::offset_of!(Self, graphs);
    /// The token (the number that stands for a call in a trail) of a graph launch.
    pub const GRAPH: u64 = token::GRAPH;
    /// The token of a copy to the host that may return before it is done.
    pub const COPY_TO_HOST: u64 = token::COPY_TO_HOST;
    /// The token of a copy to the device.
    pub const COPY_TO_DEVICE: u64 = token::COPY_TO_DEVICE;

    /// Returns the token (the number that stands for a call in a trail) of a wait of this kind.
    #[must_use]
    pub const fn wait(wait: Wait) -> u64 {
        token::WAIT + wait as u64
    }

    const fn new() -> Self {
        Self {
            tokens: [const { AtomicU64::new(0) }; Self::LENGTH],
            calls: AtomicU32::new(0),
            launches: AtomicU32::new(0),
            graphs: AtomicU32::new(0),
            capturing: AtomicBool::new(false),
        }
    }

    /// Adds a call's token to the trail (the thread's recent calls), without counting a launch.
    #[inline]
    pub fn note(&self, token: u64) {
        let calls = self.calls.load(Relaxed);
        if let Some(place) = self.tokens.get(calls as usize % Self::LENGTH) {
            place.store(token, Relaxed);
        }
        self.calls.store(calls.wrapping_add(1), Relaxed);
    }

    /// Adds a kernel launch to the trail (the thread's recent calls), and counts it.
    #[inline]
    pub fn note_kernel(&self, kernel: u64) {
        self.note(kernel);
        add(&self.launches);
    }

    /// Adds a graph launch to the trail (the thread's recent calls), and counts it.
    #[inline]
    pub fn note_graph(&self) {
        self.note(token::GRAPH);
        add(&self.graphs);
    }

    /// Returns the token (the number that stands for a call) of the thread's latest call, or 0 if there was no call.
    #[must_use]
    pub fn newest(&self) -> u64 {
        let calls = self.calls.load(Relaxed);
        self.back(calls, 1)
    }

    fn back(&self, calls: u32, back: u32) -> u64 {
        let place = calls.wrapping_sub(back) as usize % Self::LENGTH;
        self.tokens
            .get(place)
            .map_or(0, |token| token.load(Relaxed))
    }
}

fn add(counter: &AtomicU32) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Trails {
    /// Returns empty trails: no thread has called anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            trails: [const { Trail::new() }; THREADS],
            used: AtomicU32::new(0),
        }
    }

    /// Returns the trail (list of recent calls) of a thread.
    #[inline]
    pub fn get(&self, thread: u32) -> &Trail {
        &self.trails[slot(thread)]
    }

    /// Marks a thread's trail (list of recent calls) as used, so that sums over all threads include the thread's work.
    #[inline]
    pub fn mark_used(&self, thread: u32) {
        let slot = slot(thread) as u32;
        if self.used.load(Relaxed) <= slot {
            self.used.fetch_max(slot + 1, Relaxed);
        }
    }

    /// Stores whether a stream capture is active on this thread.
    pub(crate) fn capture(&self, thread: u32, under_way: bool) {
        self.get(thread).capturing.store(under_way, Relaxed);
    }

    /// Returns true if a stream capture is active on this thread.
    pub(crate) fn capturing(&self, thread: u32) -> bool {
        self.get(thread).capturing.load(Relaxed)
    }

    /// Returns the number of graph launches of all threads. The number wraps around at 2^32.
    #[must_use]
    pub fn graphs(&self) -> u32 {
        (0..self.used()).fold(0, |sum, thread| sum.wrapping_add(self.work(thread).graphs))
    }

    /// Returns one more than the highest thread slot in use.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Returns the tokens of the calls before the thread's latest call, the latest first. A token is 0 if
    /// there were fewer calls.
    #[inline]
    pub(crate) fn before(&self, thread: u32) -> impl Iterator<Item = u64> {
        let trail = self.get(thread);
        let calls = trail.calls.load(Relaxed);
        (2..=DEPTH as u32 + 1).map(move |back| trail.back(calls, back))
    }

    /// Returns the tokens of the thread's last launches, the latest first: at most [`DEPTH`], as far back as its
    /// trail (list of recent calls) contains them.
    #[inline]
    pub(crate) fn launches(&self, thread: u32) -> impl Iterator<Item = u64> {
        let trail = self.get(thread);
        let calls = trail.calls.load(Relaxed);
        let tokens = (1..=Trail::LENGTH as u32).map(move |back| trail.back(calls, back));
        tokens.filter(|&token| token::launches(token)).take(DEPTH)
    }

    /// Returns true if the thread has copied something to the device between its latest launch and the launch before
    /// that. The latest launch must be the thread's latest call.
    #[inline]
    pub(crate) fn follows_copy_to_device(&self, thread: u32) -> bool {
        let mut between = self
            .before(thread)
            .take_while(|&token| !token::launches(token));
        between.any(|token| token == token::COPY_TO_DEVICE)
    }

    /// Returns true if the thread is a helper (a thread that only waits and copies): it has never launched anything,
    /// or there is no launch among the [`DEPTH`] calls before its latest one.
    pub(crate) fn helper(&self, thread: u32) -> bool {
        self.work(thread) == ThreadLaunches::default() || !self.before(thread).any(token::launches)
    }

    /// Returns the numbers of kernels and graphs that these threads have launched together.
    pub(crate) fn work_of(&self, threads: Threads) -> ThreadLaunches {
        let mut left = threads;
        let mut sum = ThreadLaunches::default();
        while left != 0 {
            sum = sum.plus(self.work(left.trailing_zeros()));
            left &= left - 1;
        }
        sum
    }

    pub(crate) fn work(&self, thread: u32) -> ThreadLaunches {
        let trail = self.get(thread);
        ThreadLaunches {
            launches: trail.launches.load(Relaxed),
            graphs: trail.graphs.load(Relaxed),
        }
    }
}

impl Default for Trails {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the index of a thread in arrays that have one element for each trail: the thread's id modulo [`THREADS`].
pub(crate) const fn slot(thread: u32) -> usize {
    thread as usize % THREADS
}
