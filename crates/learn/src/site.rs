//! Where in the program a wait is: the call and what its thread called before it.

use crate::call::SiteCall;
use crate::trail::Trails;

/// How many calls back the levels of a context reach.
pub(crate) const REACH: [usize; LEVELS] = [0, 1, 2, 4, 8];

pub(crate) const LEVELS: usize = 5;

/// A site's keys, from the call alone to the call and the eight before it.
pub(crate) type Keys = [u32; LEVELS];

/// The keys of the call that this thread noted last.
pub(crate) fn keys(trails: &Trails, thread: u32, call: SiteCall, helper: bool) -> Keys {
    let mut keys = [0; LEVELS];
    let mut hash = start(call, helper);
    keys[0] = fold(hash);
    hash = with_thread(hash, thread, helper);
    let mut level = 1;
    for (back, token) in trails.before(thread).enumerate() {
        hash = mix(hash, token);
        if level < LEVELS && REACH[level] == back + 1 {
            keys[level] = fold(hash);
            level += 1;
        }
    }
    keys
}

/// One of them.
#[inline]
pub(crate) fn key(trails: &Trails, thread: u32, call: SiteCall, helper: bool, level: usize) -> u32 {
    let hash = start(call, helper);
    if level == 0 {
        return fold(hash);
    }
    let reach = REACH.get(level).copied().unwrap_or(0);
    let tokens = trails.before(thread).take(reach);
    fold(tokens.fold(with_thread(hash, thread, helper), mix))
}

fn start(call: SiteCall, helper: bool) -> u64 {
    mix(call as u64 + 1, u64::from(helper))
}

/// Threads that launch are distinguished by the learner, which follows one of them. Threads that only
/// copy and wait are often a pool: one site at the first level, one for each thread at the others.
fn with_thread(hash: u64, thread: u32, helper: bool) -> u64 {
    if helper {
        mix(hash, u64::from(thread))
    } else {
        hash
    }
}

#[inline]
fn mix(hash: u64, token: u64) -> u64 {
    let mixed = (hash ^ token).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}
