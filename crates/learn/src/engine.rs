//! Which threads launch for one and the same loop.

use crate::history::Entry;
use crate::rule::Rule;
use crate::trail::{THREADS, Threads};

/// The last entries, in which a thread that still launches does so.
pub(crate) const LATE: usize = 32;
/// The part of its work at which others' waits may find a thread that takes turns with them.
const STRAY: u32 = 8;
/// Places that turns have in common are remembered by so many bits.
const COMMON: usize = 2048;
/// The level of the keys by which they are compared: the call and the one before it.
const COMMON_LEVEL: usize = 1;

/// The threads whose launches are followed, and those that launch besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    /// The one that launches most, of those that wait.
    pub lead: usize,
    pub threads: Threads,
    /// Those outside that launch at least half as much as the lead.
    pub others: Threads,
    /// Those outside that launch a good part of what the lead does.
    pub rivals: Threads,
}

impl Engine {
    /// Whether an entry may be an occurrence of a site of this engine.
    pub fn counts(&self, entry: &Entry) -> bool {
        let thread = 1 << entry.thread;
        entry.call.is_some()
            && (self.threads & thread != 0 || entry.helper && self.others & thread == 0)
    }
}

/// What each thread did.
struct Loads {
    work: [u32; THREADS],
    /// Of it, what another thread's wait found under way.
    stray: [u32; THREADS],
    /// Of that, what a thread found that launches itself.
    found: [u32; THREADS],
    /// Waits and copies.
    calls: [u32; THREADS],
    /// The threads that launched.
    present: Threads,
}

/// Those of `threads`, by number.
fn each(threads: Threads) -> impl Iterator<Item = usize> {
    let mut left = threads;
    core::iter::from_fn(move || {
        let thread = left.trailing_zeros() as usize;
        left &= left.checked_sub(1)?;
        Some(thread)
    })
}

impl Loads {
    fn of(entries: &[Entry]) -> Self {
        let mut loads = Self {
            work: [0; THREADS],
            stray: [0; THREADS],
            found: [0; THREADS],
            calls: [0; THREADS],
            present: 0,
        };
        let mut by_helper = false;
        // The entry of the wait comes after those of what it found.
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

    /// The thread that launched most, of those in `among`.
    fn most(&self, among: Threads) -> Option<usize> {
        each(among & self.present).max_by_key(|&thread| (self.work[thread], THREADS - thread))
    }

    fn that(&self, holds: impl Fn(usize) -> bool) -> Threads {
        let those = each(self.present).filter(|&thread| holds(thread));
        those.fold(0, |threads, thread| threads | 1 << thread)
    }

    /// Threads that launch and never wait, while others do both.
    fn hands(&self) -> Threads {
        self.that(|thread| self.calls[thread] == 0 && self.found[thread] > self.work[thread] / 2)
    }

    /// Those of `among` that launch at least half as much as any of them.
    fn foremost(&self, among: Threads) -> Threads {
        let most = self.most(among).map_or(0, |thread| self.work[thread]);
        among & self.that(|thread| self.work[thread] > most / 2)
    }

    fn takes_turns(&self, thread: usize) -> bool {
        self.stray[thread] <= self.work[thread] / STRAY
    }
}

fn add(sum: &mut u32, work: u32) {
    *sum = sum.saturating_add(work);
}

/// Whose waits are looked at: that of the thread that launches most, of those that still launch.
/// The engine that is `followed` stays so unless another does more than twice as much.
pub(crate) fn engine(entries: &[Entry], followed: Option<&Rule>) -> Option<Engine> {
    let loads = Loads::of(entries);
    let late = Loads::of(late(entries, LATE));
    // What was a hand is none where it goes on alone.
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

/// Threads that take turns with `lead` at the same work: a pool, or one for each request. Two
/// engines are found in the midst of an iteration by each other's waits.
fn relay(entries: &[Entry], loads: &Loads, lead: usize) -> Threads {
    let takes_turns = |thread| loads.calls[thread] > 0 && loads.takes_turns(thread);
    let candidates = loads.that(takes_turns);
    if candidates & !(1 << lead) == 0 || !takes_turns(lead) {
        return 0;
    }
    let mut known = [0u64; COMMON / 64];
    let place = |entry: &Entry| {
        let key = entry.keys[COMMON_LEVEL] as usize % COMMON;
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

fn is_wait_of(entry: &Entry, thread: usize) -> bool {
    entry.call.is_some() && !entry.helper && entry.thread as usize == thread
}

fn late(entries: &[Entry], last: usize) -> &[Entry] {
    let begin = entries.len().saturating_sub(last);
    entries.get(begin..).unwrap_or(&[])
}

/// Whether these threads have their part in what is launched of late.
pub(crate) fn is_active(entries: &[Entry], threads: Threads) -> bool {
    let active = |last| {
        let loads = Loads::of(late(entries, last));
        let own = loads.most(threads).map_or(0, |thread| loads.work[thread]);
        let most = loads.most(!threads).map_or(0, |thread| loads.work[thread]);
        own > most / 2
    };
    active(LATE) || active(LATE / 4)
}

/// The thread that launched most.
pub(crate) fn most_active(entries: &[Entry]) -> usize {
    Loads::of(entries).most(!0).unwrap_or(0)
}

/// Whether another engine than the one that is followed launches now.
pub(crate) fn handed_over(entries: &[Entry], followed: &Rule) -> bool {
    engine(entries, Some(followed)).is_some_and(|engine| followed.threads & 1 << engine.lead == 0)
}

/// Where the thread that launched most has stopped, and others go on with something else: how many
/// entries came after its last.
pub(crate) fn since_stale(entries: &[Entry]) -> Option<usize> {
    let most = most_active(entries);
    let engine = engine(entries, None)?;
    let last = entries.iter().rev();
    (engine.threads & 1 << most == 0).then(|| {
        last.take_while(|entry| entry.thread as usize != most)
            .count()
    })
}
