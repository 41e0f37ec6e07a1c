//! Work with CUPTI that the worker thread does. The work may take long or hang, and a thread of the program must not
//! hang with it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::MIN_FREE_MEMORY;
use super::activity::KINDS;
use super::attempt::{self, Attempt};
use super::clock::{self, ClockReading};
use super::library::Cupti;
use super::others;
use super::presence::{self, Presence};
use super::refusal::KernelsRefusal;
use super::taking;
use super::{Driver, buffers};
pub(crate) use crate::worker::CuptiJob as Job;
use tllmprof_platform::gate;
use tllmprof_platform::gate::Links;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::own_threads;
use tllmprof_platform::panics::contained;
use tllmprof_scopes as scopes;
use tllmprof_sync::{Lock, Machine};

/// Error code `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`: another profiler has subscribed to CUPTI.
const MULTIPLE_SUBSCRIBERS: c_int = 39;
/// Maximum time for which the gate (a barrier in front of the driver's functions) stays closed while another thread is
/// still in the driver. A closed gate holds back threads that call the driver. The time is short, because the thread in
/// the driver may wait for work that a thread at the gate has yet to launch.
const GATE_TIMEOUT: Duration = Duration::from_millis(20);

/// Time after which driver calls that bypassed the gate (the barrier in front of the driver) are assumed to have
/// returned. Such calls come from modules that were loaded while CUPTI was attached. The time is long because some
/// driver calls load and compile kernels.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Result of an attempt to detach CUPTI from the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// CUPTI is detached from the driver.
    Yes,
    /// CUPTI was not detached in time, because some thread was always in the driver or because the device was busy.
    Busy,
    /// It is too early to detach CUPTI, because calls that bypassed the gate (the barrier in front of the driver) may
    /// still be in the driver.
    Early,
    /// CUPTI cannot be detached safely, because some calls bypass the gate (the barrier in front of the driver).
    Unseen,
    /// CUPTI was not detached, because another profiler uses it.
    Shared,
    /// CUPTI returned this error code when it was asked to detach.
    Failed(c_int),
    /// CUPTI began to detach, but did not finish in time.
    Hangs,
}

lifecycle::global! {
    stage: Sinks;

    /// State of CUPTI in the driver: not attached, attached but disabled, or enabled.
    #[fork(in_child)]
    static PRESENCE: Machine<Presence> = Machine::new();
    #[fork(keep = "read only while CUPTI is in")]
    static SUBSCRIBER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// Two readings of [`gate::passes`], the number of driver calls that have passed the gate and may have enqueued GPU
    /// work: one from when CUPTI was last enabled, and one from when CUPTI was last disabled.
    #[fork(keep = "stored where CUPTI is switched")]
    static PASSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    /// True if a stream capture is active when the process ends. During a stream capture, no code may wait for the
    /// device.
    #[fork(keep = "stored where the process ends")]
    static IS_CAPTURING: AtomicBool = AtomicBool::new(false);
    /// Reason why the last attempt to attach CUPTI failed. `None` if the attempt succeeded.
    #[fork(free)]
    static REFUSED: Lock<Option<KernelsRefusal>> = Lock::new(None);
    #[fork(free)]
    static LEFT: Lock<Left> = Lock::new(Left::Busy);
    /// The attempt to attach or detach CUPTI that a thread of the program waits for.
    #[fork(in_child)]
    static ATTEMPT: Machine<Attempt> = Machine::new();
    /// Duration of the latest closure of the gate (the time for which calls of the driver were held back), in
    /// microseconds.
    #[fork(keep = "stored where CUPTI leaves")]
    static CLOSED_US: AtomicU64 = AtomicU64::new(0);
}

/// Returns true if this library has attached CUPTI to the driver, and has neither detached nor released it since. CUPTI
/// may be enabled or disabled.
pub(crate) fn is_in() -> bool {
    PRESENCE.state() != Presence::Out
}

/// Returns true if CUPTI is enabled, so that it records work.
pub(crate) fn is_on() -> bool {
    PRESENCE.state() == Presence::On
}

/// Removes and returns the reason why the last attempt to attach CUPTI failed. `None` if the attempt succeeded.
pub(crate) fn refused() -> Option<KernelsRefusal> {
    REFUSED.lock().take()
}

/// Abandons an attempt to attach CUPTI that took too long. If the worker nevertheless attaches CUPTI later, it disables
/// CUPTI again at once.
pub(crate) fn forget_attach() {
    ATTEMPT.on(attempt::AttemptEvent::Abandons);
}

/// Returns the result of the last attempt to detach CUPTI.
pub(crate) fn left() -> Left {
    *LEFT.lock()
}

/// Returns the duration of the latest closure of the gate (the time for which calls of the driver were held back), in
/// microseconds.
pub(crate) fn closed_us() -> u64 {
    CLOSED_US.load(Ordering::Relaxed)
}

/// Begins a new attempt to attach or detach CUPTI. If CUPTI is to be detached, [`left`] returns `Busy` until the worker
/// has stored another result.
pub(crate) fn begin_attempt() {
    ATTEMPT.on(attempt::AttemptEvent::Begins);
    *LEFT.lock() = Left::Busy;
}

/// Abandons the attempt to detach CUPTI, unless the worker has already committed to it ([`commit`]). If the attempt is
/// abandoned, opens the gate (the barrier in front of the driver) and returns true.
pub(crate) fn abandon_attempt() -> bool {
    let is_given_up = ATTEMPT.on(attempt::AttemptEvent::Abandons).is_some();
    if is_given_up {
        gate::open();
    }
    is_given_up
}

/// Stores whether a stream capture is active while the process ends. During a stream capture, no code may wait for the
/// device.
pub(crate) fn set_capturing(is: bool) {
    IS_CAPTURING.store(is, Ordering::Relaxed);
}

/// Runs one job for CUPTI, on the worker thread.
pub(crate) fn work(job: Job) {
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

/// Commits to the attempt with this number, so that it can no longer be abandoned. Returns false if the requesting
/// thread has already abandoned the attempt.
fn commit(number: u32) -> bool {
    ATTEMPT.on(attempt::AttemptEvent::Commits(number)).is_some()
}

/// Attaches CUPTI and enables it. Returns the reason if this is not possible.
fn attach() -> Result<(), KernelsRefusal> {
    if others::have_it() || others::are_coming() {
        return Err(KernelsRefusal::Taken);
    }
    let driver = Driver::get().ok_or(KernelsRefusal::NoDriver)?;
    let begun = Instant::now();
    let cupti = Cupti::load(driver.version().unwrap_or(0))?;
    let loaded = begun.elapsed();
    if !own_threads::has_memory_for_thread_locals() {
        return Err(KernelsRefusal::ThreadLocals);
    }
    mind_exit();
    buffers::prepare();
    gate::prepare();
    if !is_in() {
        gate::forget_new();
    }
    let _held = gate::hold();
    // If there is no CUDA context, the free memory of the GPU is unknown. Then the check for enough memory is skipped.
    if let Some(free) = driver.free_memory().filter(|free| *free < MIN_FREE_MEMORY) {
        return Err(KernelsRefusal::Memory { free });
    }
    if !is_in() {
        let mut subscriber = core::ptr::null_mut();
        // SAFETY: CUPTI writes the handle to a local variable. The callback does nothing, and remains valid because
        // this library is never unloaded.
        let status =
            unsafe { (cupti.subscribe)(&raw mut subscriber, ignore, core::ptr::null_mut()) };
        match status {
            0 => {}
            MULTIPLE_SUBSCRIBERS => return Err(KernelsRefusal::Taken),
            status => {
                return Err(KernelsRefusal::Failed {
                    function: "cuptiSubscribe",
                    status,
                });
            }
        }
        SUBSCRIBER.store(subscriber, Ordering::Release);
        PRESENCE.on(presence::PresenceEvent::Subscribed);
    }
    if scopes::are_on() {
        scopes::forget_names();
        name_graphs(cupti);
    }
    taking::begin(ClockReading::now(), ahead(cupti));
    PASSES[0].store(gate::passes(), Ordering::Relaxed);
    // SAFETY: the functions have the types that CUPTI requires, and are never unloaded.
    let status = unsafe { (cupti.register_callbacks)(taking::requested, taking::completed) };
    check("cuptiActivityRegisterCallbacks", status)?;
    PRESENCE.on(presence::PresenceEvent::Enabled);
    for kind in KINDS {
        // SAFETY: the call takes no pointer, and each `kind` is a value of `CUpti_ActivityKind`.
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

fn check(function: &'static str, status: c_int) -> Result<(), KernelsRefusal> {
    if status == 0 {
        Ok(())
    } else {
        Err(KernelsRefusal::Failed { function, status })
    }
}

/// Returns the number of nanoseconds by which CUPTI's clock is ahead of `CLOCK_REALTIME`. Returns 0 if CUPTI uses that
/// clock itself, or if CUPTI's clock cannot be read.
fn ahead(cupti: &Cupti) -> i64 {
    clock::ahead(|| {
        let mut ns = 0;
        // SAFETY: CUPTI writes the time to a local.
        unsafe { (cupti.get_timestamp)(&raw mut ns) };
        ns
    })
}

/// Asks CUPTI for the numbers by which its records refer to the program's executable graphs, and stores these numbers
/// in `scopes`.
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
        // SAFETY: the executable graph exists, and `resolve` keeps it from being destroyed during the call. CUPTI
        // writes the number to a local.
        let status = unsafe { graph_exec_id(exec, &raw mut id) };
        (status == 0 && id != 0).then_some(id)
    });
}

/// Disables CUPTI. CUPTI then hands over the records that it still has.
fn switch_off() {
    let Some(cupti) = Cupti::get() else { return };
    if PRESENCE.on(presence::PresenceEvent::SwitchedOff).is_some() {
        if scopes::are_on() {
            // Asks for the numbers of the graphs that were created while CUPTI was enabled.
            name_graphs(cupti);
        }
        // SAFETY: the calls take only numbers. CUPTI refuses a kind that is not enabled.
        unsafe {
            for kind in KINDS {
                let _ = (cupti.disable)(kind);
            }
            // Flag 1 forces a flush of all records. Work that is still running then has no times.
            let _ = (cupti.flush_all)(1);
        }
        if scopes::are_on() {
            taking::judge();
        }
        PASSES[1].store(gate::passes(), Ordering::Relaxed);
    }
}

/// Returns true if CUPTI is disabled and must not be detached yet, because calls that bypassed the gate (the barrier in
/// front of the driver) may still be in the driver.
pub(crate) fn is_early() -> bool {
    !is_on() && !gate::have_settled(SETTLE_TIME)
}

/// Tries to detach CUPTI from the driver, and returns the result. Disabling CUPTI is not enough: only detaching
/// restores the speed of launches. While CUPTI detaches, no thread may be in the driver, and the device must be idle.
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
    // The thread that requested the attempt may have abandoned it before the gate (the barrier in front of the driver)
    // was closed.
    if ATTEMPT.state() != Attempt::Wanted(number) {
        return Left::Busy;
    }
    let since = Instant::now();
    driver.synchronize_all();
    if !commit(number) {
        return Left::Busy; // the requesting thread has abandoned the attempt and opened the gate
    }
    switch_off();
    // If the number of calls is not known, calls may bypass the gate. So CUPTI stays until a later attempt.
    let Some(calls) = taking::totals().calls else {
        return Left::Busy;
    };
    if is_passed_by(calls) {
        return Left::Unseen;
    }
    // SAFETY: the handle belongs to our subscription. No thread is in the driver, and none can enter the driver while
    // the gate in front of it is closed.
    let status = unsafe {
        (cupti.unsubscribe)(SUBSCRIBER.load(Ordering::Acquire));
        (cupti.finalize)()
    };
    drop(closed);
    let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    CLOSED_US.store(took, Ordering::Relaxed);
    PRESENCE.on(presence::PresenceEvent::Finalised);
    buffers::shrink();
    match status {
        0 => Left::Yes,
        status => Left::Failed(status),
    }
}

/// Disables CUPTI and ends our subscription, so that another profiler can use it. CUPTI is not finalized, so it stays
/// attached to the driver.
fn release() {
    switch_off();
    if let Some(cupti) = Cupti::get()
        && PRESENCE.on(presence::PresenceEvent::Released).is_some()
    {
        // SAFETY: the handle belongs to our subscription, which ends here.
        let _ = unsafe { (cupti.unsubscribe)(SUBSCRIBER.load(Ordering::Acquire)) };
    }
}

/// Returns true if CUPTI has recorded clearly more calls than have passed the gate (the barrier in front of the
/// driver). This means that some calls bypass the gate, for example calls from a library that was opened with
/// `RTLD_DEEPBIND`. Such a call may be in the driver now.
fn is_passed_by(calls: u64) -> bool {
    /// Number of calls by which CUPTI's count may exceed 17/16 of the gate's count. CUPTI's count may be higher for two
    /// harmless reasons: calls that were active when CUPTI was enabled, and calls that CUPTI counts several times.
    const CALL_TOLERANCE: u64 = 16;
    let [on, off] = PASSES
        .each_ref()
        .map(|passes| passes.load(Ordering::Relaxed));
    let passes = off.saturating_sub(on);
    let is = calls > passes + passes / 16 + CALL_TOLERANCE;
    if is {
        log::say!(
            Debug,
            "{calls} calls gave the GPU work, and {passes} were seen"
        );
    }
    is
}

/// Makes CUPTI hand over the records that it still has when the process ends. CUPTI stays attached.
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

/// Registers an exit handler that flushes CUPTI. CUPTI registers its own exit handler when it is loaded, and CUPTI's
/// handler must run after the handler of this library. Handlers run in reverse order, so this function must be called
/// after CUPTI was loaded.
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

    /// Checks that the end of the process disables and flushes an attached CUPTI. A stand-in replaces CUPTI, because
    /// the test process has no driver.
    #[test]
    fn what_is_switched_off_hands_over_what_it_has_once() {
        let _record = record();
        made::load();
        assert!(!is_in() && !is_on());
        PRESENCE.on(presence::PresenceEvent::Subscribed);
        assert!(is_in() && !is_on());
        PRESENCE.on(presence::PresenceEvent::Enabled);
        made::ENABLED.lock().unwrap().extend(KINDS);
        let before = *made::FLUSHES.lock().unwrap();
        assert!(is_on());
        work(Job::Flush);
        assert!(is_in() && !is_on());
        assert!(made::ENABLED.lock().unwrap().is_empty());
        work(Job::Flush);
        assert_eq!(*made::FLUSHES.lock().unwrap(), before + 1);
        PRESENCE.on(presence::PresenceEvent::Finalised);
        assert!(!is_in());
    }

    #[test]
    fn more_work_than_calls_that_were_seen_came_past_the_gate() {
        let _record = record();
        PASSES[0].store(100, Ordering::Relaxed);
        PASSES[1].store(1700, Ordering::Relaxed);
        assert!(!is_passed_by(0) && !is_passed_by(1600) && !is_passed_by(1716));
        assert!(is_passed_by(1717));
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
