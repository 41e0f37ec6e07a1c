//! Which thread is the engine that is followed.

use crate::history::Entry;
use crate::trail::THREADS;

/// The last entries, in which a thread that still launches does so.
pub(crate) const LATE: usize = 32;

/// Work of each thread.
pub(crate) fn totals(entries: &[Entry]) -> [u32; THREADS] {
    let mut totals = [0u32; THREADS];
    for entry in entries {
        if let Some(total) = totals.get_mut(entry.thread as usize) {
            *total = total.saturating_add(entry.work().weight());
        }
    }
    totals
}

/// The thread that launched most, of those that still launch. The one that is `followed` stays
/// so unless another does more than twice as much.
pub(crate) fn leader(
    entries: &[Entry],
    totals: &[u32; THREADS],
    followed: Option<usize>,
) -> Option<usize> {
    let late = |last| {
        let begin = entries.len().saturating_sub(last);
        self::totals(entries.get(begin..).unwrap_or(&[]))
    };
    if let Some(followed) = followed {
        let active = |late: [u32; THREADS]| {
            let most = late.iter().max().copied().unwrap_or(0);
            late.get(followed).is_some_and(|&work| work > most / 2)
        };
        if active(late(LATE)) || active(late(LATE / 4)) {
            return Some(followed);
        }
    }
    let late = late(LATE);
    (0..THREADS)
        .filter(|&thread| late[thread] > 0)
        .max_by_key(|&thread| (totals[thread], THREADS - thread))
}

/// Whether this thread has its part in what is launched of late.
pub(crate) fn active(entries: &[Entry], thread: usize) -> bool {
    let late = totals(
        entries
            .get(entries.len().saturating_sub(LATE)..)
            .unwrap_or(&[]),
    );
    let most = late.iter().max().copied().unwrap_or(0);
    late.get(thread).is_some_and(|&work| work > most / 2)
}

/// The thread that launched most.
pub(crate) fn most_active(entries: &[Entry]) -> usize {
    let totals = totals(entries);
    let most = (0..THREADS).max_by_key(|&thread| (totals[thread], THREADS - thread));
    most.unwrap_or(0)
}

/// Whether another thread than the one that is `followed` launches now.
pub(crate) fn handed_over(entries: &[Entry], followed: usize) -> bool {
    let leader = leader(entries, &totals(entries), Some(followed));
    leader.is_some_and(|leader| leader != followed)
}

/// Whether the thread that launched most has stopped, and others go on.
pub(crate) fn stale(entries: &[Entry]) -> bool {
    let now = leader(entries, &totals(entries), None);
    now.is_some_and(|now| now != most_active(entries))
}

/// The threads that launch at least half as much as `leader`, as bits.
pub(crate) fn engines(totals: &[u32; THREADS], leader: usize) -> u64 {
    totals
        .iter()
        .enumerate()
        .filter(|&(_, &total)| total > 0 && total >= totals[leader] / 2)
        .map(|(thread, _)| 1 << thread)
        .sum()
}

/// Other threads that launch as engines do, as bits.
pub(crate) fn rivals(totals: &[u32; THREADS], leader: usize) -> u64 {
    totals
        .iter()
        .enumerate()
        .filter(|&(thread, &total)| thread != leader && total > totals[leader] / 16)
        .map(|(thread, _)| 1 << thread)
        .sum()
}
