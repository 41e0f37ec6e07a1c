//! What the thread that makes the steps uses of the machine in each iteration of a window.
//!
//! Called with the session's turn or its lock: by one thread at a time. Two system calls an iteration.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::system::{self, Used as Usage};
use tllmprof_platform::{ids, lifecycle};
use tllmprof_record::{Event, Used, What};

use super::{clock, writers};

lifecycle::global! {
    stage: Sinks;

    /// The thread that was last asked about, and what it had used by then.
    #[fork(keep = "stored where a window opens")]
    static THREAD: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "stored where a window opens")]
    static SO_FAR: [AtomicU64; PARTS] = [const { AtomicU64::new(0) }; PARTS];
}
const PARTS: usize = 7;

/// A window opens: the calling thread is likely to make its steps.
pub fn window_opens() {
    let now = system::used().unwrap_or_default();
    take(now, system::delayed().unwrap_or_default());
}

/// The calling thread has ended an iteration.
pub fn iteration_ends(n: u64) {
    let Some(now) = system::used() else {
        return;
    };
    let [ran, in_kernel, left, preempted, faults, disk, delayed] =
        SO_FAR.each_ref().map(|part| part.load(Ordering::Relaxed));
    // A thread that was not taken off a processor has waited for none to speak of, and is not asked.
    let is_preempted = now.preempted > preempted;
    let is_same = THREAD.load(Ordering::Relaxed) == this_thread();
    let waited = match is_preempted || !is_same {
        true => system::delayed().unwrap_or(delayed),
        false => delayed,
    };
    take(now, waited);
    if !is_same {
        return;
    }
    let used = [
        (
            Used::Ran,
            now.ran.saturating_sub(ran),
            now.left.saturating_sub(left),
        ),
        (
            Used::Kernel,
            now.in_kernel.saturating_sub(in_kernel),
            now.faults.saturating_sub(faults),
        ),
        (
            Used::Delayed,
            waited.saturating_sub(delayed),
            now.preempted.saturating_sub(preempted),
        ),
        (Used::Disk, 0, now.disk_faults.saturating_sub(disk)),
    ];
    let at = clock::ticks();
    for (what, ns, count) in used {
        if what != Used::Ran && ns == 0 && count == 0 {
            continue;
        }
        let what = What::Used {
            what: Some(what),
            iteration: n as u32,
            count: u32::try_from(count).unwrap_or(u32::MAX),
        };
        writers::write(&Event::new(at, ns, what));
    }
}

/// Remembers what the calling thread has used.
fn take(used: Usage, delayed: u64) {
    THREAD.store(this_thread(), Ordering::Relaxed);
    let parts = [
        used.ran,
        used.in_kernel,
        used.left,
        used.preempted,
        used.faults,
        used.disk_faults,
        delayed,
    ];
    for (place, part) in SO_FAR.iter().zip(parts) {
        place.store(part, Ordering::Relaxed);
    }
}

fn this_thread() -> u64 {
    u64::from(ids::thread().cast_unsigned())
}
