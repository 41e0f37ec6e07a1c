//! Engines: groups of threads whose launches belong to the same loop.

use crate::history::HistoryEntry;
use crate::rule::LearnedRule;
use crate::trail::{THREADS, Threads};

/// Number of the latest history entries in which a thread must have launched work. Otherwise the thread counts as
/// having stopped.
pub(crate) const LATEST_ENTRIES: usize = 32;
/// A thread counts as taking turns with other threads if it seldom has unfinished work when another thread waits: such
/// work (`Loads::stray`) must be at most the thread's whole work divided by this number.
const MAX_STRAY_DIVISOR: u32 = 8;
/// Size, in bits, of the hash set that holds the call sites of a thread.
const SITE_BITS: usize = 2048;
/// The call sites of threads are compared at this level of context: the call itself and the one before it.
const SITE_LEVEL: usize = 1;

/// An engine (the threads whose launches are followed), and the other threads that launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    /// The thread of the engine that launches most work, among the engine's threads that wait for the GPU.
    pub lead: usize,
    pub threads: Threads,
    /// Threads outside the engine (the threads whose launches are followed) that launch at least half as much as
    /// `lead`.
    pub others: Threads,
    /// Threads outside the engine (the threads whose launches are followed) that launch more than a sixteenth as much
    /// as `lead`.
    pub rivals: Threads,
}

impl Engine {
    /// Returns true if an entry may be an occurrence of a call site of this engine: a wait or copy by one of its
    /// threads, or by a helper thread (a thread that only waits and copies) that is not in `others`.
    pub(crate) fn counts(&self, entry: &HistoryEntry) -> bool {
        let thread = 1 << entry.thread;
        entry.call.is_some()
            && (self.threads & thread != 0 || entry.helper && self.others & thread == 0)
    }
}

/// The work (launches) and calls of each thread, indexed by thread slot.
struct Loads {
    work: [u32; THREADS],
    /// For each thread, the work that was unfinished when another thread waited: the thread had launched it after its
    /// own last wait or copy.
    stray: [u32; THREADS],
    /// The part of `stray` that was found unfinished by waits of other threads that launch work. Waits of helper
    /// threads, which launch nothing, do not count.
    found: [u32; THREADS],
    /// Number of waits and copies of each thread, without those that helper threads make.
    calls: [u32; THREADS],
    /// The set of threads that have launched any work in the history.
    present: Threads,
}

/// Returns the indices of the threads in the set, in ascending order.
fn each(threads: Threads) -> impl Iterator<Item = usize> {
    let mut left = threads;
    core::iter::from_fn(move || {
        let thread = left.trailing_zeros() as usize;
        left &= left.checked_sub(1)?;
        Some(thread)
    })
}

impl Loads {
    fn sum(entries: &[HistoryEntry]) -> Self {
        let mut loads = Self {
            work: [0; THREADS],
            stray: [0; THREADS],
            found: [0; THREADS],
            calls: [0; THREADS],
            present: 0,
        };
        let mut by_helper = false;
        // Each wait is recorded after the entries for the unfinished work that it found. So in reverse order the wait
        // comes first.
        for entry in entries.iter().rev() {
            let thread = entry.thread as usize % THREADS;
            let work = entry.work().weight();
            add(&mut loads.work[thread], work);
            loads.present |= u64::from(work > 0) << thread;
            if entry.call.is_none() {
                add(&mut loads.stray[thread], work);
                add(&mut loads.found[thread], if by_helper { 0 } else { work });
                continue;
            }
            by_helper = entry.helper;
            loads.calls[thread] += u32::from(!entry.helper);
        }
        loads
    }

    /// Returns the thread in `among` that launched most work.
    fn most(&self, among: Threads) -> Option<usize> {
        each(among & self.present).max_by_key(|&thread| (self.work[thread], THREADS - thread))
    }

    fn that(&self, holds: impl Fn(usize) -> bool) -> Threads {
        let those = each(self.present).filter(|&thread| holds(thread));
        those.fold(0, |threads, thread| threads | 1 << thread)
    }

    /// Returns the "hands": threads that launch but never wait, and for whose work other launching threads wait. An
    /// example is PyTorch's backward thread.
    fn hands(&self) -> Threads {
        self.that(|thread| self.calls[thread] == 0 && self.found[thread] > self.work[thread] / 2)
    }

    /// Returns the threads in `among` that launch more than half as much as the busiest of them.
    fn foremost(&self, among: Threads) -> Threads {
        let most = self.most(among).map_or(0, |thread| self.work[thread]);
        among & self.that(|thread| self.work[thread] > most / 2)
    }

    fn takes_turns(&self, thread: usize) -> bool {
        self.stray[thread] <= self.work[thread] / MAX_STRAY_DIVISOR
    }
}

fn add(sum: &mut u32, work: u32) {
    *sum = sum.saturating_add(work);
}

/// Returns the engine whose waits are examined: the engine of the thread that launches most work, among the threads
/// that still launch. The engine of `followed` is kept unless, in the latest entries, a thread outside it launches at
/// least twice as much as its busiest thread.
pub(crate) fn engine(entries: &[HistoryEntry], followed: Option<&LearnedRule>) -> Option<Engine> {
    let loads = Loads::sum(entries);
    let late = Loads::sum(late(entries, LATEST_ENTRIES));
    // A "hand" is a thread that launches and never waits. If it still launches after the threads
    // that waited for it have stopped, it is an engine itself.
    let hands = loads.hands() & !(late.that(|_| true) & !late.hands());
    let kept = followed
        .filter(|rule| is_active(entries, rule.threads))
        .and_then(|rule| {
            let lead = Some(rule.thread as usize).filter(|&lead| late.work[lead] > 0);
            lead.or_else(|| late.most(rule.threads & !hands))
                .or_else(|| late.most(rule.threads))
        });
    let lead = kept
        .or_else(|| loads.most(late.foremost(!hands)))
        .or_else(|| loads.most(late.foremost(!0)))?;
    let threads = 1 << lead | hands | relay(entries, &loads, lead);
    let work = loads.work[lead];
    let outside = |thread: usize| threads & 1 << thread == 0;
    Some(Engine {
        lead,
        threads,
        others: loads.that(|thread| outside(thread) && loads.work[thread] >= work / 2),
        rivals: loads.that(|thread| outside(thread) && loads.work[thread] > work / 16),
    })
}

/// Returns the threads that take turns with `lead` at the same work, such as the threads of a pool, or one thread for
/// each request. Two separate engines do not take turns: when a thread of one engine waits, the other engine has
/// unfinished work.
fn relay(entries: &[HistoryEntry], loads: &Loads, lead: usize) -> Threads {
    let takes_turns = |thread| loads.calls[thread] > 0 && loads.takes_turns(thread);
    let candidates = loads.that(takes_turns);
    if candidates & !(1 << lead) == 0 || !takes_turns(lead) {
        return 0;
    }
    let mut known = [0u64; SITE_BITS / 64];
    let place = |entry: &HistoryEntry| {
        let key = entry.keys[SITE_LEVEL] as usize % SITE_BITS;
        (key / 64, 1u64 << (key % 64))
    };
    for entry in entries.iter().filter(|e| is_wait_of(e, lead)) {
        let (word, bit) = place(entry);
        known[word] |= bit;
    }
    let mut common = [0u32; THREADS];
    for entry in entries.iter().filter(|e| e.call.is_some() && !e.helper) {
        let (word, bit) = place(entry);
        common[entry.thread as usize % THREADS] += u32::from(known[word] & bit != 0);
    }
    candidates & loads.that(|thread| common[thread] * 2 >= loads.calls[thread])
}

fn is_wait_of(entry: &HistoryEntry, thread: usize) -> bool {
    entry.call.is_some() && !entry.helper && entry.thread as usize == thread
}

fn late(entries: &[HistoryEntry], last: usize) -> &[HistoryEntry] {
    let begin = entries.len().saturating_sub(last);
    entries.get(begin..).unwrap_or(&[])
}

/// Returns true if the busiest of `threads` still launches: in the latest entries it launches more than half as much
/// as any thread outside `threads`.
pub(crate) fn is_active(entries: &[HistoryEntry], threads: Threads) -> bool {
    let active = |last| {
        let loads = Loads::sum(late(entries, last));
        let own = loads.most(threads).map_or(0, |thread| loads.work[thread]);
        let most = loads.most(!threads).map_or(0, |thread| loads.work[thread]);
        own > most / 2
    };
    active(LATEST_ENTRIES) || active(LATEST_ENTRIES / 4)
}

/// Returns the thread that launched most work in these entries.
pub(crate) fn most_active(entries: &[HistoryEntry]) -> usize {
    Loads::sum(entries).most(!0).unwrap_or(0)
}

/// Returns true if the followed threads (those that launch for the loop) no longer launch most of the work, because
/// another group of threads has taken over.
pub(crate) fn handed_over(entries: &[HistoryEntry], followed: &LearnedRule) -> bool {
    engine(entries, Some(followed)).is_some_and(|engine| followed.threads & 1 << engine.lead == 0)
}

/// Returns the number of history entries since the last entry of the thread that launched most work, if other threads
/// have replaced it: it has stopped, and they launch for another loop. Otherwise returns `None`.
pub(crate) fn since_stale(entries: &[HistoryEntry]) -> Option<usize> {
    let most = most_active(entries);
    let engine = engine(entries, None)?;
    let last = entries.iter().rev();
    (engine.threads & 1 << most == 0).then(|| {
        last.take_while(|entry| entry.thread as usize != most)
            .count()
    })
}
