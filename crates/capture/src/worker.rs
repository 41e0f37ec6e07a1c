//! The worker: a thread for work that must not block its caller forever.
//!
//! Waiting for the device, or closing a window (a range of profiled iterations) when the process ends, may take long;
//! on a device that hangs, the wait never ends. So the worker runs such jobs, and the thread that requests one waits
//! only for a limited time. The worker is started with the first window and sleeps until it is needed, because a
//! process that is ending can no longer start a thread.
//!
//! The worker must not keep the process from ending ([`own_threads`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use once_cell::race::OnceBox;

use tllmprof_platform::driver::Driver;
use tllmprof_platform::elf;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::own_threads::{self, OwnThread, ThreadKind};
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::name_thread;
use tllmprof_platform::thread::uncounted;
use tllmprof_sync::{wait, wait_until_woken, wake};

/// A job that the worker thread runs.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    /// Wait until the device is idle.
    Drain,
    /// Close the window (the range of profiled iterations) and all NVTX ranges at the end of the process.
    Close {
        /// Number of iterations that the process has made.
        iterations: u64,
        /// True if the job must first wait until the device is idle.
        drain: bool,
    },
    /// Create the driver events with which GPU times are measured.
    Events,
    /// Run one of the jobs that attach, detach, flush or release CUPTI.
    Cupti(CuptiJob),
}

/// A job of the worker that attaches, detaches, flushes or releases CUPTI.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum CuptiJob {
    Attach = 0,
    Leave = 1,
    /// Make CUPTI hand over its remaining records when the process ends.
    Flush = 2,
    /// Release CUPTI for another profiler.
    Release = 3,
}

const NO_THREAD: u32 = 0;
const ASLEEP: u32 = 1;
const DRAINING: u32 = 2;
const CLOSING: u32 = 3;
const CLOSING_AFTER_DRAIN: u32 = 4;
const MAKING_ROOM: u32 = 5;
const MAKING_EVENTS: u32 = 6;
/// The code, stored in `WORD`, that requests the end of the worker thread.
const ENDING: u32 = 7;
/// First code of the CUPTI jobs. The code of a CUPTI job is this number plus the job's own number.
const FIRST_CUPTI_CODE: u32 = 8;

lifecycle::global! {
    stage: Sinks;

    /// The code of the worker's current job; `ASLEEP` if it has none, `ENDING` if it has been asked to end, and
    /// `NO_THREAD` if there is no worker. A thread that requests a job sets this word, and the worker sets it back to
    /// `ASLEEP` when the job is done.
    #[fork(reset)]
    static WORD: AtomicU32 = AtomicU32::new(NO_THREAD);
    #[fork(keep = "stored with each job")]
    static ITERATIONS: AtomicU64 = AtomicU64::new(0);
    /// True if the worker has ended because the process lacks memory that calls of the driver need.
    #[fork(reset)]
    static LACKS_MEMORY: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    /// The function that the worker thread calls to run a job.
    #[fork(keep = "it is the same function")]
    static DO: OnceBox<fn(Job)> = OnceBox::new();
}

/// Interval at which the worker checks if it is the only remaining thread of the process. This check is made only after
/// the main thread has ended.
const ALONE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Wakes all threads that wait for `WORD`: those that requested a job, and the worker.
fn wake_all() {
    wake(&WORD, i32::MAX);
}

/// Requests that the worker end, if the worker is idle. Does not wait for its end.
pub(crate) fn ends() {
    let is_idle = WORD.compare_exchange(ASLEEP, ENDING, Ordering::AcqRel, Ordering::Relaxed);
    if is_idle.is_ok() {
        own_threads::ends(ThreadKind::Worker);
        wake_all();
    }
}

/// Stack size of the worker thread, in bytes. Code of a profiler may run on this stack, too.
const STACK_BYTES: usize = 1 << 20;

/// Starts the worker if it does not run yet. The worker calls `act` for each job.
pub(crate) fn start(act: fn(Job)) {
    let _ = DO.set(Box::new(act));
    if WORD
        .compare_exchange(NO_THREAD, ASLEEP, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    LACKS_MEMORY.store(false, Ordering::Relaxed);
    if !own_threads::start(ThreadKind::Worker, STACK_BYTES, main) {
        WORD.store(NO_THREAD, Ordering::Release);
    }
}

/// Returns true if the worker thread exists and has not been asked to end.
pub(crate) fn is_there() -> bool {
    !matches!(WORD.load(Ordering::Acquire), NO_THREAD | ENDING)
}

/// Returns true if the worker has ended because the process lacks memory that calls of the driver need.
pub(crate) fn lacks_memory() -> bool {
    LACKS_MEMORY.load(Ordering::Acquire)
}

impl Job {
    const fn code(self) -> u32 {
        match self {
            Self::Drain => DRAINING,
            Self::Close { drain: false, .. } => CLOSING,
            Self::Close { drain: true, .. } => CLOSING_AFTER_DRAIN,
            Self::Events => MAKING_EVENTS,
            Self::Cupti(job) => FIRST_CUPTI_CODE + job as u32,
        }
    }

    /// Returns the job with this code, or `None` if the code does not stand for a job.
    fn decode(code: u32) -> Option<Self> {
        let close = |drain| Self::Close {
            iterations: ITERATIONS.load(Ordering::Relaxed),
            drain,
        };
        const ATTACH: u32 = Job::Cupti(CuptiJob::Attach).code();
        const LEAVE: u32 = Job::Cupti(CuptiJob::Leave).code();
        const FLUSH: u32 = Job::Cupti(CuptiJob::Flush).code();
        const RELEASE: u32 = Job::Cupti(CuptiJob::Release).code();
        Some(match code {
            DRAINING => Self::Drain,
            CLOSING => close(false),
            CLOSING_AFTER_DRAIN => close(true),
            MAKING_EVENTS => Self::Events,
            ATTACH => Self::Cupti(CuptiJob::Attach),
            LEAVE => Self::Cupti(CuptiJob::Leave),
            FLUSH => Self::Cupti(CuptiJob::Flush),
            RELEASE => Self::Cupti(CuptiJob::Release),
            _ => return None,
        })
    }
}

/// Returns true if the worker is running `job` now.
pub(crate) fn is_about(job: Job) -> bool {
    WORD.load(Ordering::Acquire) == job.code()
}

/// Waits until the worker is idle, makes it run `job`, and waits until the job is done. Returns false if all this takes
/// longer than `patience`, if there is no worker, or if the worker ends without running the job because the process
/// lacks memory. A job that takes longer continues.
pub(crate) fn run(job: Job, patience: Duration) -> bool {
    let code = job.code();
    if let Job::Close { iterations, .. } = job {
        ITERATIONS.store(iterations, Ordering::Relaxed);
    }
    let deadline = Instant::now() + patience;
    loop {
        match WORD.compare_exchange(ASLEEP, code, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(NO_THREAD | ENDING) => return false,
            Err(busy) if !sleep(busy, deadline) => return false,
            Err(_) => {}
        }
    }
    wake_all();
    while WORD.load(Ordering::Acquire) == code {
        if !sleep(code, deadline) {
            return false;
        }
    }
    !lacks_memory()
}

/// Waits until the worker is idle. Returns false if it is still busy after `patience`, or if there is no worker.
pub(crate) fn await_rest(patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match WORD.load(Ordering::Acquire) {
            ASLEEP => return true,
            NO_THREAD | ENDING => return false,
            busy if !sleep(busy, deadline) => return false,
            _ => {}
        }
    }
}

/// Requests that the worker make room in the record's file for further events, and does not wait for it. Returns false
/// if the worker is busy or does not run; then nothing was requested.
pub(crate) fn ask_for_room() -> bool {
    let asked = WORD
        .compare_exchange(ASLEEP, MAKING_ROOM, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if asked {
        wake_all();
    }
    asked
}

/// Sleeps as long as `WORD` (the code of the worker's current job) is `code`, at most until the deadline. Returns false
/// if the deadline had passed before the call.
fn sleep(code: u32, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        wait(&WORD, code, left);
    }
    !left.is_zero()
}

extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    contained((), || {
        let _own = OwnThread::new(ThreadKind::Worker, &(wake_all as fn()));
        name_thread(c"tllmprof");
        uncounted(&mut work);
    });
    core::ptr::null_mut()
}

fn work() {
    // The number of module loads and unloads at the last check that found enough memory. Modules that are loaded later
    // may need more memory for thread-local variables, so the check is repeated when this number changes.
    let mut checked = None;
    loop {
        let code = WORD.load(Ordering::Acquire);
        if code == ENDING {
            WORD.store(NO_THREAD, Ordering::Release);
            return;
        }
        if code == ASLEEP {
            match own_threads::look_after(ALONE_CHECK_INTERVAL) {
                Some(patience) => wait(&WORD, ASLEEP, patience),
                None => wait_until_woken(&WORD, ASLEEP),
            }
            if WORD.load(Ordering::Acquire) == ASLEEP && own_threads::are_alone() {
                // The worker is the last thread of the process, so the process ends when the worker's function returns.
                WORD.store(NO_THREAD, Ordering::Release);
                return;
            }
            continue;
        }
        if code != MAKING_ROOM && checked != Some(elf::changes()) {
            if !own_threads::has_memory_for_thread_locals() {
                log::once!(
                    Warn,
                    "tllmprof's thread does not call the driver: there is no memory for thread-local variables \
                     (RLIMIT_DATA, RLIMIT_AS, RLIMIT_MEMLOCK): the device is not waited for, and GPU times may be missing"
                );
                LACKS_MEMORY.store(true, Ordering::Release);
                WORD.store(NO_THREAD, Ordering::Release);
                wake_all();
                return;
            }
            checked = Some(elf::changes());
        }
        if code != MAKING_ROOM
            && let Some(driver) = Driver::get()
        {
            driver.adopt_context();
        }
        match (Job::decode(code), DO.get()) {
            (Some(job), Some(act)) => contained((), || act(job)),
            _ => contained((), tllmprof_recorder::make_room),
        }
        WORD.store(ASLEEP, Ordering::Release);
        wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_one_job() {
        let close = |drain| Job::Close {
            iterations: 0,
            drain,
        };
        let jobs = [
            Job::Drain,
            close(false),
            close(true),
            Job::Events,
            Job::Cupti(CuptiJob::Attach),
            Job::Cupti(CuptiJob::Leave),
            Job::Cupti(CuptiJob::Flush),
            Job::Cupti(CuptiJob::Release),
        ];
        let codes = jobs.map(Job::code);
        let again = codes.map(|code| Job::decode(code).map(Job::code));
        assert_eq!(again, codes.map(Some));
        for code in [NO_THREAD, ASLEEP, MAKING_ROOM, ENDING, FIRST_CUPTI_CODE + 4] {
            assert!(Job::decode(code).is_none() && !codes.contains(&code));
        }
    }
}
