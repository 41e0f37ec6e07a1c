//! What is done with CUPTI, on the worker's thread: it may take long, and it must not be what a thread
//! of the program hangs in.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::LEAST_MEMORY;
use super::activity::KINDS;
use super::attempt::{self, Attempt};
use super::clock::{self, Reading};
use super::library::Cupti;
use super::others;
use super::presence::{self, Presence};
use super::refusal::Refusal;
use super::taking::{self, Totals};
use super::{Driver, buffers};
pub use crate::worker::CuptiJob as Job;
use tllmprof_platform::gate;
use tllmprof_platform::gate::Links;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;
use tllmprof_scopes as scopes;
use tllmprof_sync::{Lock, Machine};

/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const TAKEN: c_int = 39;
/// How long the program's threads are kept out of the driver, if one is in it. Short: it may wait for
/// what another is to launch.
const CLOSING: Duration = Duration::from_millis(20);

/// How long a call may be under way in the driver that came there past the gate, through a link of a module that was loaded while
/// CUPTI was in: some load and compile kernels.
const SETTLING: Duration = Duration::from_secs(10);

/// What became of taking CUPTI out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It is out.
    Yes,
    /// A thread was in the driver all the while, or the device was busy.
    Busy,
    /// Calls that no gate has seen may be under way: it is too early.
    Early,
    /// Not every call is seen.
    Unseen,
    /// Another profiler has it.
    Shared,
    /// It did not go.
    Failed(c_int),
    /// It is still going.
    Hangs,
}

lifecycle::global! {
    stage: Sinks;

    /// How far CUPTI is in the driver.
    #[fork(in_child)]
    static PRESENCE: Machine<Presence> = Machine::new();
    #[fork(keep = "read only while CUPTI is in")]
    static SUBSCRIBER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// [`gate::passes`] where it was switched on, and off.
    #[fork(keep = "stored where CUPTI is switched")]
    static PASSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    /// A stream capture is under way where the process ends.
    #[fork(keep = "stored where the process ends")]
    static IS_CAPTURING: AtomicBool = AtomicBool::new(false);
    /// Why the last attempt to attach failed.
    #[fork(free)]
    static REFUSED: Lock<Option<Refusal>> = Lock::new(None);
    #[fork(free)]
    static LEFT: Lock<Left> = Lock::new(Left::Busy);
    /// The attempt to attach or to leave that a thread waits for.
    #[fork(in_child)]
    static ATTEMPT: Machine<Attempt> = Machine::new();
    /// How long the gate was closed last.
    #[fork(keep = "stored where CUPTI leaves")]
    static CLOSED_US: AtomicU64 = AtomicU64::new(0);
}

/// Whether CUPTI is in the driver.
pub fn is_in() -> bool {
    PRESENCE.state() != Presence::Out
}

/// Whether it takes work down.
pub fn is_on() -> bool {
    PRESENCE.state() == Presence::On
}

/// Why the last attempt to attach failed.
pub fn refused() -> Option<Refusal> {
    REFUSED.lock().take()
}

/// It is too late to attach: what comes of it is not used.
pub fn forget_attach() {
    ATTEMPT.on(attempt::Event::Abandons);
}

/// What became of the last attempt to leave.
pub fn left() -> Left {
    *LEFT.lock()
}

/// Microseconds that the gate was closed last.
pub fn closed_us() -> u64 {
    CLOSED_US.load(Ordering::Relaxed)
}

/// An attempt to attach or to leave begins.
pub fn begin_attempt() {
    ATTEMPT.on(attempt::Event::Begins);
    *LEFT.lock() = Left::Busy;
}

/// Gives the attempt up, if CUPTI is not being taken out by now; whether it was given up.
pub fn abandon_attempt() -> bool {
    let is_given_up = ATTEMPT.on(attempt::Event::Abandons).is_some();
    if is_given_up {
        gate::open();
    }
    is_given_up
}

/// Says whether the device may be waited for where the process ends.
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

/// Goes through with the attempt of this number; false if nobody waits for it any more.
fn commit(number: u32) -> bool {
    ATTEMPT.on(attempt::Event::Commits(number)).is_some()
}

/// Has CUPTI take work down.
fn attach() -> Result<(), Refusal> {
    if others::have_it() || others::are_coming() {
        return Err(Refusal::Taken);
    }
    let driver = Driver::get().ok_or(Refusal::NoDriver)?;
    let begun = Instant::now();
    let cupti = Cupti::load(driver.version().unwrap_or(0))?;
    let loaded = begun.elapsed();
    mind_exit();
    buffers::prepare();
    gate::prepare();
    if !is_in() {
        gate::forget_new();
    }
    let _held = gate::hold();
    // Without a context that is not known.
    if let Some(free) = driver.free_memory().filter(|free| *free < LEAST_MEMORY) {
        return Err(Refusal::Memory { free });
    }
    if !is_in() {
        let mut subscriber = core::ptr::null_mut();
        // SAFETY: CUPTI writes the handle to the local. The callback does nothing, and this library is
        // never unloaded.
        let status =
            unsafe { (cupti.subscribe)(&raw mut subscriber, ignore, core::ptr::null_mut()) };
        match status {
            0 => {}
            TAKEN => return Err(Refusal::Taken),
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
    // SAFETY: the functions have the types that CUPTI wants, and live as long as the process.
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

/// What CUPTI's clock is ahead of `CLOCK_REALTIME`, in nanoseconds: 0 where they are one.
fn ahead(cupti: &Cupti) -> i64 {
    clock::ahead(|| {
        let mut ns = 0;
        // SAFETY: writes the time to the local.
        unsafe { (cupti.get_timestamp)(&raw mut ns) };
        ns
    })
}

/// Finds out how CUPTI calls the program's executable graphs.
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
        // SAFETY: the executable graph has not been destroyed, and is not meanwhile (`resolve`); CUPTI writes its number to
        // the local.
        let status = unsafe { graph_exec_id(exec, &raw mut id) };
        (status == 0 && id != 0).then_some(id)
    });
}

/// Has CUPTI take nothing any more, and hand over what it has.
fn switch_off() {
    let Some(cupti) = Cupti::get() else { return };
    if PRESENCE.on(presence::Event::SwitchedOff).is_some() {
        if scopes::are_on() {
            name_graphs(cupti); // those that were made meanwhile
        }
        // SAFETY: kinds of CUPTI's; what was not enabled is refused.
        unsafe {
            for kind in KINDS {
                let _ = (cupti.disable)(kind);
            }
            // Work that still runs gets no times.
            let _ = (cupti.flush_all)(1);
        }
        if scopes::are_on() {
            taking::judge();
        }
        PASSES[1].store(gate::passes(), Ordering::Relaxed);
    }
}

/// Whether there is nothing to do but to wait until it can be taken out.
pub fn is_early() -> bool {
    !is_on() && !gate::have_settled(SETTLING)
}

/// Takes CUPTI out of the driver: nothing else gives the program its speed back. It must find no
/// thread in the driver, and the device idle.
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
    if !gate::have_settled(SETTLING) {
        switch_off();
        return Left::Early;
    }
    let closed = (links == Links::Led)
        .then(|| gate::close(CLOSING))
        .flatten();
    let Some(closed) = closed else {
        switch_off();
        return Left::Busy;
    };
    // Whoever waited for this may have given it up before the gate was closed again.
    if ATTEMPT.state() != Attempt::Wanted(number) {
        return Left::Busy;
    }
    let since = Instant::now();
    driver.synchronize_all();
    if !commit(number) {
        return Left::Busy; // whoever waited for this has opened the gate
    }
    switch_off();
    if is_passed_by(taking::totals()) {
        return Left::Unseen;
    }
    // SAFETY: the handle is the subscription's; no thread is in the driver, nor comes in.
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

/// Gives CUPTI up to another profiler, and leaves it in the driver.
fn release() {
    switch_off();
    if let Some(cupti) = Cupti::get()
        && PRESENCE.on(presence::Event::Released).is_some()
    {
        // SAFETY: the handle is the subscription's, which ends here.
        let _ = unsafe { (cupti.unsubscribe)(SUBSCRIBER.load(Ordering::Acquire)) };
    }
}

/// Whether calls gave the GPU work that came past the gate, as from a library that was opened with
/// `RTLD_DEEPBIND`: such a one may be in the driver now.
fn is_passed_by(totals: Totals) -> bool {
    /// Calls that were under way where it began, and what one call may be that gives several.
    const SLACK: u64 = 16;
    let [on, off] = PASSES
        .each_ref()
        .map(|passes| passes.load(Ordering::Relaxed));
    let passes = off.saturating_sub(on);
    let is = totals.calls > passes + passes / 16 + SLACK;
    if is {
        log::say!(
            Debug,
            "{} calls gave the GPU work, and {passes} were seen",
            totals.calls
        );
    }
    is
}

/// The process ends: what CUPTI has is taken down. It stays where it is.
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

/// Has what CUPTI has taken down at the end of the process. CUPTI registers its own handler when it
/// is loaded, which must come after this one.
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

    /// A window's events bring CUPTI in, on and out without a driver.
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
            is_passed_by(Totals {
                calls,
                ..Totals::default()
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
