//! The jobs for CUPTI, on the worker's thread: they may take long, and a thread of the program must not hang in them.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::MIN_FREE_MEMORY;
use super::activity::KINDS;
use super::attempt::{self, Attempt};
use super::clock::{self, Reading};
use super::library::Cupti;
use super::others;
use super::presence::{self, Presence};
use super::refusal::Refusal;
use super::taking::{self, RecordedCounts};
use super::{Driver, buffers};
pub use crate::worker::CuptiJob as Job;
use tllmprof_platform::gate;
use tllmprof_platform::gate::Links;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::own_threads;
use tllmprof_platform::panics::contained;
use tllmprof_scopes as scopes;
use tllmprof_sync::{Lock, Machine};

/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const MULTIPLE_SUBSCRIBERS: c_int = 39;
/// Longest time that the program's threads are kept out of the driver if one is in it. Short, because that thread may
/// wait for work that another thread has yet to launch.
const GATE_TIMEOUT: Duration = Duration::from_millis(20);

/// Longest time that a call may be in the driver which bypassed the gate, through a link of a module that was loaded
/// while CUPTI was attached. Some calls load and compile kernels.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Result of detaching CUPTI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// CUPTI is detached.
    Yes,
    /// A thread was in the driver all the time, or the device was busy.
    Busy,
    /// Calls that bypassed the gate may still be under way: it is too early.
    Early,
    /// Some calls bypass the gate, so that CUPTI cannot be detached safely.
    Unseen,
    /// Another profiler uses CUPTI.
    Shared,
    /// CUPTI returned this error.
    Failed(c_int),
    /// CUPTI is still detaching.
    Hangs,
}

lifecycle::global! {
    stage: Sinks;

    /// State of CUPTI in the driver.
    #[fork(in_child)]
    static PRESENCE: Machine<Presence> = Machine::new();
    #[fork(keep = "read only while CUPTI is in")]
    static SUBSCRIBER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// [`gate::passes`] when CUPTI was enabled, and when it was disabled.
    #[fork(keep = "stored where CUPTI is switched")]
    static PASSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    /// True if a stream capture is under way when the process ends.
    #[fork(keep = "stored where the process ends")]
    static IS_CAPTURING: AtomicBool = AtomicBool::new(false);
    /// Reason why the last attempt to attach failed.
    #[fork(free)]
    static REFUSED: Lock<Option<Refusal>> = Lock::new(None);
    #[fork(free)]
    static LEFT: Lock<Left> = Lock::new(Left::Busy);
    /// The attempt to attach or to detach that a thread waits for.
    #[fork(in_child)]
    static ATTEMPT: Machine<Attempt> = Machine::new();
    /// Duration of the gate's last closure, in microseconds.
    #[fork(keep = "stored where CUPTI leaves")]
    static CLOSED_US: AtomicU64 = AtomicU64::new(0);
}

/// Returns true while CUPTI is attached to the driver.
pub fn is_in() -> bool {
    PRESENCE.state() != Presence::Out
}

/// Returns true while CUPTI records work.
pub fn is_on() -> bool {
    PRESENCE.state() == Presence::On
}

/// Returns the reason why the last attempt to attach failed.
pub fn refused() -> Option<Refusal> {
    REFUSED.lock().take()
}

/// Abandons an attempt to attach: it is too late, and its result is not used.
pub fn forget_attach() {
    ATTEMPT.on(attempt::Event::Abandons);
}

/// Returns the result of the last attempt to detach.
pub fn left() -> Left {
    *LEFT.lock()
}

/// Returns how long the gate was closed the last time, in microseconds.
pub fn closed_us() -> u64 {
    CLOSED_US.load(Ordering::Relaxed)
}

/// Begins an attempt to attach or to detach.
pub fn begin_attempt() {
    ATTEMPT.on(attempt::Event::Begins);
    *LEFT.lock() = Left::Busy;
}

/// Abandons the attempt, unless CUPTI is already being detached. Returns true if it was abandoned.
pub fn abandon_attempt() -> bool {
    let is_given_up = ATTEMPT.on(attempt::Event::Abandons).is_some();
    if is_given_up {
        gate::open();
    }
    is_given_up
}

/// Sets whether a stream capture is under way when the process ends; if so, the device must not be waited for.
pub fn set_capturing(is: bool) {
    IS_CAPTURING.store(is, Ordering::Relaxed);
}

/// Does a job.
pub fn work(job: Job) {
    match job {
        Job::Attach => {
            let number = ATTEMPT.state().number();
            let refused = attach().err();
            if refused.is_some() || !commit(number) {
                switch_off();
            }
            *REFUSED.lock() = refused;
        }
        Job::Leave => {
            let left = leave();
            *LEFT.lock() = left;
        }
        Job::Flush => flush(),
        Job::Release => release(),
    }
}

/// Commits to the attempt with this number. Returns false if no thread waits for it any more.
fn commit(number: u32) -> bool {
    ATTEMPT.on(attempt::Event::Commits(number)).is_some()
}

/// Attaches CUPTI and enables it.
fn attach() -> Result<(), Refusal> {
    if others::have_it() || others::are_coming() {
        return Err(Refusal::Taken);
    }
    let driver = Driver::get().ok_or(Refusal::NoDriver)?;
    let begun = Instant::now();
    let cupti = Cupti::load(driver.version().unwrap_or(0))?;
    let loaded = begun.elapsed();
    if !own_threads::has_memory_for_thread_locals() {
        return Err(Refusal::ThreadLocals);
    }
    mind_exit();
    buffers::prepare();
    gate::prepare();
    if !is_in() {
        gate::forget_new();
    }
    let _held = gate::hold();
    // Without a context the free memory is not known.
    if let Some(free) = driver.free_memory().filter(|free| *free < MIN_FREE_MEMORY) {
        return Err(Refusal::Memory { free });
    }
    if !is_in() {
        let mut subscriber = core::ptr::null_mut();
        // SAFETY: CUPTI writes the handle to the local. The callback does nothing, and this library is never unloaded.
        let status =
            unsafe { (cupti.subscribe)(&raw mut subscriber, ignore, core::ptr::null_mut()) };
        match status {
            0 => {}
            MULTIPLE_SUBSCRIBERS => return Err(Refusal::Taken),
            status => {
                return Err(Refusal::Failed {
                    function: "cuptiSubscribe",
                    status,
                });
            }
        }
        SUBSCRIBER.store(subscriber, Ordering::Release);
        PRESENCE.on(presence::Event::Subscribed);
    }
    if scopes::are_on() {
        scopes::forget_names();
        name_graphs(cupti);
    }
    taking::begin(Reading::now(), ahead(cupti));
    PASSES[0].store(gate::passes(), Ordering::Relaxed);
    // SAFETY: the functions have the types that CUPTI requires, and live as long as the process.
    let status = unsafe { (cupti.register_callbacks)(taking::requested, taking::completed) };
    check("cuptiActivityRegisterCallbacks", status)?;
    PRESENCE.on(presence::Event::Enabled);
    for kind in KINDS {
        // SAFETY: takes no pointer; `KINDS` are numbers of `CUpti_ActivityKind`.
        check("cuptiActivityEnable", unsafe { (cupti.enable)(kind) })?;
    }
    log::say!(
        Debug,
        "CUPTI is in after {:.3} ms ({:.3} ms to load {}, API version {})",
        begun.elapsed().as_secs_f64() * 1e3,
        loaded.as_secs_f64() * 1e3,
        cupti.path,
        cupti.version
    );
    Ok(())
}

extern "C" fn ignore(_: *mut c_void, _: c_int, _: u32, _: *const c_void) {}

fn check(function: &'static str, status: c_int) -> Result<(), Refusal> {
    if status == 0 {
        Ok(())
    } else {
        Err(Refusal::Failed { function, status })
    }
}

/// Returns by how many nanoseconds CUPTI's clock is ahead of `CLOCK_REALTIME`: 0 if they are the same clock.
fn ahead(cupti: &Cupti) -> i64 {
    clock::ahead(|| {
        let mut ns = 0;
        // SAFETY: writes the time to the local.
        unsafe { (cupti.get_timestamp)(&raw mut ns) };
        ns
    })
}

/// Asks CUPTI for the numbers of the program's executable graphs.
fn name_graphs(cupti: &Cupti) {
    let Some(graph_exec_id) = cupti.graph_exec_id else {
        log::once!(
            Warn,
            "TLLMPROF_LAYERS: this CUPTI has no cuptiGetGraphExecId: layers in CUDA graphs are not known"
        );
        return;
    };
    scopes::resolve(|exec| {
        let mut id = 0;
        let exec = core::ptr::with_exposed_provenance_mut(exec);
        // SAFETY: the executable graph has not been destroyed, and is not destroyed meanwhile (`resolve`); CUPTI writes
        // its number to the local.
        let status = unsafe { graph_exec_id(exec, &raw mut id) };
        (status == 0 && id != 0).then_some(id)
    });
}

/// Disables CUPTI, and makes it hand over the records that it has.
fn switch_off() {
    let Some(cupti) = Cupti::get() else { return };
    if PRESENCE.on(presence::Event::SwitchedOff).is_some() {
        if scopes::are_on() {
            name_graphs(cupti); // graphs that were made meanwhile
        }
        // SAFETY: kinds of CUPTI's; it refuses a kind that was not enabled.
        unsafe {
            for kind in KINDS {
                let _ = (cupti.disable)(kind);
            }
            // Work that still runs has no times.
            let _ = (cupti.flush_all)(1);
        }
        if scopes::are_on() {
            taking::judge();
        }
        PASSES[1].store(gate::passes(), Ordering::Relaxed);
    }
}

/// Returns true if CUPTI is disabled, and nothing can be done but wait until it can be detached.
pub fn is_early() -> bool {
    !is_on() && !gate::have_settled(SETTLE_TIME)
}

/// Detaches CUPTI from the driver: only that gives the program its speed back. No thread may be in the driver, and the
/// device must be idle.
fn leave() -> Left {
    let number = ATTEMPT.state().number();
    let (Some(cupti), Some(driver)) = (Cupti::get(), Driver::get()) else {
        return Left::Unseen;
    };
    if others::have_it() {
        release();
        return Left::Shared;
    }
    let links = gate::lead_links();
    if !gate::are_all() {
        driver.synchronize_all();
        switch_off();
        return Left::Unseen;
    }
    if !gate::have_settled(SETTLE_TIME) {
        switch_off();
        return Left::Early;
    }
    let closed = (links == Links::Led)
        .then(|| gate::close(GATE_TIMEOUT))
        .flatten();
    let Some(closed) = closed else {
        switch_off();
        return Left::Busy;
    };
    // The thread that waited for this may have abandoned it before the gate was closed again.
    if ATTEMPT.state() != Attempt::Wanted(number) {
        return Left::Busy;
    }
    let since = Instant::now();
    driver.synchronize_all();
    if !commit(number) {
        return Left::Busy; // the thread that waited for this has opened the gate
    }
    switch_off();
    if is_passed_by(taking::totals()) {
        return Left::Unseen;
    }
    // SAFETY: the handle is the subscription's; no thread is in the driver, and none can enter.
    let status = unsafe {
        (cupti.unsubscribe)(SUBSCRIBER.load(Ordering::Acquire));
        (cupti.finalize)()
    };
    drop(closed);
    let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    CLOSED_US.store(took, Ordering::Relaxed);
    PRESENCE.on(presence::Event::Finalised);
    buffers::shrink();
    match status {
        0 => Left::Yes,
        status => Left::Failed(status),
    }
}

/// Releases CUPTI for another profiler, and leaves it in the driver.
fn release() {
    switch_off();
    if let Some(cupti) = Cupti::get()
        && PRESENCE.on(presence::Event::Released).is_some()
    {
        // SAFETY: the handle is the subscription's, which ends here.
        let _ = unsafe { (cupti.unsubscribe)(SUBSCRIBER.load(Ordering::Acquire)) };
    }
}

/// Returns true if calls bypassed the gate and submitted work, for example from a library that was opened with
/// `RTLD_DEEPBIND`: such a call may be in the driver now.
fn is_passed_by(totals: RecordedCounts) -> bool {
    /// Tolerance: calls that were under way at the beginning, and calls that count as several.
    const CALL_TOLERANCE: u64 = 16;
    let [on, off] = PASSES
        .each_ref()
        .map(|passes| passes.load(Ordering::Relaxed));
    let passes = off.saturating_sub(on);
    let is = totals.calls > passes + passes / 16 + CALL_TOLERANCE;
    if is {
        log::say!(
            Debug,
            "{} calls gave the GPU work, and {passes} were seen",
            totals.calls
        );
    }
    is
}

/// Makes CUPTI hand over its records at the end of the process. It stays attached.
fn flush() {
    if is_on() {
        if let Some(driver) = Driver::get()
            && !IS_CAPTURING.load(Ordering::Relaxed)
        {
            driver.synchronize_all();
        }
        switch_off();
    }
}

/// Registers an exit handler that flushes CUPTI. CUPTI registers its own handler when it is loaded, which must run
/// after this one.
fn mind_exit() {
    extern "C" fn at_exit() {
        if !lifecycle::is_filtered() {
            contained((), super::flush_at_exit);
        }
    }
    lifecycle::global! {
        #[fork(keep = "handlers are inherited")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.swap(true, Ordering::AcqRel) {
        tllmprof_platform::system::at_exit(at_exit);
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::made;
    use super::*;
    use crate::made::record;

    /// Checks that a window's events attach, enable and detach CUPTI without a driver.
    #[test]
    fn what_is_switched_off_hands_over_what_it_has_once() {
        let _record = record();
        made::load();
        assert!(!is_in() && !is_on());
        PRESENCE.on(presence::Event::Subscribed);
        assert!(is_in() && !is_on());
        PRESENCE.on(presence::Event::Enabled);
        made::ENABLED.lock().unwrap().extend(KINDS);
        let before = *made::FLUSHES.lock().unwrap();
        assert!(is_on());
        work(Job::Flush);
        assert!(is_in() && !is_on());
        assert!(made::ENABLED.lock().unwrap().is_empty());
        work(Job::Flush);
        assert_eq!(*made::FLUSHES.lock().unwrap(), before + 1);
        PRESENCE.on(presence::Event::Finalised);
        assert!(!is_in());
    }

    #[test]
    fn more_work_than_calls_that_were_seen_came_past_the_gate() {
        let _record = record();
        PASSES[0].store(100, Ordering::Relaxed);
        PASSES[1].store(1700, Ordering::Relaxed);
        let passed = |calls| {
            is_passed_by(RecordedCounts {
                calls,
                ..RecordedCounts::default()
            })
        };
        assert!(!passed(0) && !passed(1600) && !passed(1716));
        assert!(passed(1717));
    }

    #[test]
    fn a_clock_of_cuptis_that_cannot_be_read_is_not_ahead() {
        let _record = record();
        made::load();
        assert_eq!(Cupti::get().map(ahead), Some(0));
    }

    #[test]
    fn a_status_is_a_refusal_with_its_function() {
        assert!(check("cuptiActivityEnable", 0).is_ok());
        let refusal = check("cuptiActivityEnable", 7).unwrap_err();
        assert!(
            refusal
                .to_string()
                .contains("cuptiActivityEnable failed with error 7")
        );
    }
}
