//! A thread for what must not hold its caller up for ever.
//!
//! Waiting for the device and closing a window at the end of a process may take long or, on a
//! device that hangs, never end. The worker does them; whoever wants them done waits with a limit
//! and goes on. It is started with the first window and sleeps until it is needed: starting a
//! thread in a process that is being ended would be too late.
//!
//! It must not be what keeps the process from ending ([`own_threads`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use once_cell::race::OnceBox;

use tllmprof_platform::driver::Driver;
use tllmprof_platform::lifecycle;
use tllmprof_platform::own_threads::{self, Kind, OwnThread};
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::name_thread;
use tllmprof_platform::thread::uncounted;
use tllmprof_sync::{wait, wait_until_woken, wake};

/// What the worker can do.
#[derive(Clone, Copy)]
pub enum Job {
    /// Wait for the device.
    Drain,
    /// Close everything at the end of the process.
    Close {
        /// Iterations that there were.
        iterations: u64,
        /// Whether to wait for the device first.
        drain: bool,
    },
    /// Make events that GPU times are taken with.
    Events,
    /// What has to do with CUPTI.
    Cupti(CuptiJob),
}

/// What is done with CUPTI.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum CuptiJob {
    Attach = 0,
    Leave = 1,
    /// The process ends.
    Flush = 2,
    /// Another profiler takes CUPTI.
    Release = 3,
}

const NO_THREAD: u32 = 0;
const ASLEEP: u32 = 1;
const DRAINING: u32 = 2;
const CLOSING: u32 = 3;
const CLOSING_AFTER_DRAIN: u32 = 4;
const MAKING_ROOM: u32 = 5;
const MAKING_EVENTS: u32 = 6;
/// The thread is to end.
const ENDING: u32 = 7;
/// And what of CUPTI's.
const CUPTI: u32 = 8;

lifecycle::global! {
    stage: Sinks;

    /// What the worker is about; it goes back to sleep when it is done.
    #[fork(reset)]
    static WORD: AtomicU32 = AtomicU32::new(NO_THREAD);
    #[fork(keep = "stored with each job")]
    static ITERATIONS: AtomicU64 = AtomicU64::new(0);
}

lifecycle::global! {
    /// What does a job, on the worker's thread.
    #[fork(keep = "it is the same function")]
    static DO: OnceBox<fn(Job)> = OnceBox::new();
}

/// How often the worker looks whether it is alone, once the main thread has left.
const LOOK_CLOSELY: Duration = Duration::from_millis(5);

/// Wakes all that sleep for the word: the worker, to look whether it is alone.
fn wake_all() {
    wake(&WORD, i32::MAX);
}

/// Has the worker end, if it has nothing to do. Waits for nothing.
pub fn ends() {
    let is_idle = WORD.compare_exchange(ASLEEP, ENDING, Ordering::AcqRel, Ordering::Relaxed);
    if is_idle.is_ok() {
        own_threads::ends(Kind::Worker);
        wake_all();
    }
}

/// A profiler's code runs on this stack, too.
const STACK: usize = 1 << 20;

/// Starts the worker, if it is not there. It does each job by `act`.
pub fn start(act: fn(Job)) {
    let _ = DO.set(Box::new(act));
    if WORD
        .compare_exchange(NO_THREAD, ASLEEP, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if !own_threads::start(Kind::Worker, STACK, main) {
        WORD.store(NO_THREAD, Ordering::Release);
    }
}

/// Whether there is a worker.
pub fn is_there() -> bool {
    !matches!(WORD.load(Ordering::Acquire), NO_THREAD | ENDING)
}

impl Job {
    const fn code(self) -> u32 {
        match self {
            Self::Drain => DRAINING,
            Self::Close { drain: false, .. } => CLOSING,
            Self::Close { drain: true, .. } => CLOSING_AFTER_DRAIN,
            Self::Events => MAKING_EVENTS,
            Self::Cupti(job) => CUPTI + job as u32,
        }
    }

    /// The job of this code, if it is one of [`Job::code`].
    fn of(code: u32) -> Option<Self> {
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

/// Whether the worker is about this job.
pub fn is_about(job: Job) -> bool {
    WORD.load(Ordering::Acquire) == job.code()
}

/// Has the worker do `job`; false if it was not done within `patience`, or there is no worker.
pub fn run(job: Job, patience: Duration) -> bool {
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
    true
}

/// Waits until the worker has nothing to do; false if that was not so within `patience`.
pub fn await_rest(patience: Duration) -> bool {
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

/// Has the worker make room in the record; false if it is busy. Waits for nothing.
pub fn ask_for_room() -> bool {
    let asked = WORD
        .compare_exchange(ASLEEP, MAKING_ROOM, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if asked {
        wake_all();
    }
    asked
}

/// Sleeps while the worker is about `code`; false when the deadline has passed.
fn sleep(code: u32, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        wait(&WORD, code, left);
    }
    !left.is_zero()
}

extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    contained((), || {
        let _own = OwnThread::new(Kind::Worker, &(wake_all as fn()));
        name_thread(c"tllmprof");
        uncounted(&mut work);
    });
    core::ptr::null_mut()
}

fn work() {
    loop {
        let code = WORD.load(Ordering::Acquire);
        if code == ENDING {
            WORD.store(NO_THREAD, Ordering::Release);
            return;
        }
        if code == ASLEEP {
            match own_threads::look_after(LOOK_CLOSELY) {
                Some(patience) => wait(&WORD, ASLEEP, patience),
                None => wait_until_woken(&WORD, ASLEEP),
            }
            if WORD.load(Ordering::Acquire) == ASLEEP && own_threads::are_alone() {
                // As the last thread to return, this one ends the process.
                WORD.store(NO_THREAD, Ordering::Release);
                return;
            }
            continue;
        }
        if code != MAKING_ROOM
            && let Some(driver) = Driver::get()
        {
            driver.adopt_context();
        }
        match (Job::of(code), DO.get()) {
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
        let again = codes.map(|code| Job::of(code).map(Job::code));
        assert_eq!(again, codes.map(Some));
        for code in [NO_THREAD, ASLEEP, MAKING_ROOM, ENDING, CUPTI + 4] {
            assert!(Job::of(code).is_none() && !codes.contains(&code));
        }
    }
}
