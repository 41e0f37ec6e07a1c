//! Identifies the place in the program at which a wait or a copy to the host occurs. The place is identified by this
//! call and the calls that the same thread made before it.

use crate::call::{SiteCall, token};
use crate::trail::{DEPTH, Trails};

/// For each level of context, the number of preceding calls that identify a call site in addition to the call
/// itself.
pub(crate) const REACH: [usize; LEVELS] = [0, 1, 2, 4, 8];

pub(crate) const LEVELS: usize = 5;

/// A call site's keys (hashes), one for each level: level 0 includes only the call, level 4 the call and the
/// eight calls before it.
pub(crate) type Keys = [u32; LEVELS];

/// Returns the keys (hashes with more and more preceding calls) of the latest call in the thread's trail (list of
/// recent calls).
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

/// Returns the key of a call at one level of context. The key equals the element `level` of the result of [`keys`].
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

/// Returns the key of the latest launch in the thread's trail (list of recent calls): a hash of the thread, this launch
/// and up to seven launches before it. The key of the first launch after a copy to the device differs from that of
/// other launches. So if a step consists of launches of a single kernel, the copy of the step's inputs shows where the
/// step begins.
pub(crate) fn launch_key(trails: &Trails, thread: u32) -> u32 {
    let mut hash = u64::from(thread);
    if trails.follows_copy_to_device(thread) {
        hash = mix(hash, token::COPY_TO_DEVICE);
    }
    let mut graphs = 0;
    for launch in trails.launches(thread) {
        hash = mix(hash, launch);
        graphs += u32::from(launch == token::GRAPH);
        // A graph is a large part of a pass over the model. So two graph launches are enough context: the loop stops at
        // the second graph launch, counted back from the latest launch.
        if graphs == 2 {
            break;
        }
    }
    fold(hash)
}

/// Returns the calls that identify the latest launch in the thread's trail (list of recent calls), the latest first:
/// this launch and the launches before it. If the thread has copied something to the device between its latest two
/// launches, the result contains this copy, too.
pub(crate) fn launch_context(trails: &Trails, thread: u32) -> [u64; DEPTH] {
    let copy = trails
        .follows_copy_to_device(thread)
        .then_some(token::COPY_TO_DEVICE);
    let mut launches = trails.launches(thread);
    let calls = launches.next().into_iter().chain(copy).chain(launches);
    let mut context = [0; DEPTH];
    for (token, call) in context.iter_mut().zip(calls) {
        *token = call;
    }
    context
}

fn start(call: SiteCall, helper: bool) -> u64 {
    mix(call as u64 + 1, u64::from(helper))
}

/// Adds the thread to the hash if it is a helper thread, which only copies and waits. Helper threads often form a pool.
/// At level 0, whose key does not use this hash, the whole pool is one call site. At the other levels, each thread of
/// the pool is a separate call site. For threads that launch, the key does not include the thread: the learner stores
/// separately which of these threads it follows.
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
