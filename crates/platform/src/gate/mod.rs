//! The gate in front of the driver. While kernels are recorded, every driver function that the program looks
//! up or is linked to is reached through it.
//!
//! Detaching a profiler from the driver while a call is in it destroys the context. So the gate counts the
//! threads in the driver at all times, which costs a few nanoseconds a call, and [`close`] keeps them out for
//! a moment. Calls that began before the gates existed are not counted; gates are created when the functions
//! are handed out.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod arch;
mod close;
mod links;
mod stubs;

use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::{Call, is_called_in_context, may_give_work};

use crate::errno::SavedErrno;
use crate::lifecycle;
use crate::panics::contained;
use crate::{barrier, elf, resolve, thread};
use tllmprof_sync::Lock;
use tllmprof_sync::wait;

pub use close::{close, hold, open, passes};
pub use links::{Links, forget_new, have_settled, lead_links, lead_new_links};
pub use stubs::STUB_SIZE;
use stubs::stub;

/// The largest number of gates in a process. The driver has some 700 functions, of which a runtime looks up
/// 440, many of them in two forms.
pub const GATE_COUNT: usize = 2048;

/// The time a call waits at a closed gate. The gate is closed for milliseconds; a profiler that hangs must
/// not block the program as well.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The gate in front of one function.
#[repr(C)]
pub struct Gate {
    real: AtomicPtr<c_void>,
    /// 1 if a call may give the GPU work.
    weight: AtomicU64,
}

impl Gate {
    /// Offsets of the fields in bytes, for the assembler.
    pub const REAL: usize = offset_of!(Self, real);
    pub const WEIGHT: usize = offset_of!(Self, weight);

    const fn new() -> Self {
        Self {
            real: AtomicPtr::new(core::ptr::null_mut()),
            weight: AtomicU64::new(0),
        }
    }
}

lifecycle::global! {
    stage: Doors;

    /// The pool. Entries below [`USED`] are complete and never change.
    #[fork(keep = "pointers to gates were handed out")]
    #[together(tables)]
    pub static GATES: [Gate; GATE_COUNT] = [const { Gate::new() }; GATE_COUNT];
    #[fork(keep = "as the pool")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    #[fork(free)]
    static CREATING: Lock<()> = Lock::new(());
    /// True if a function was handed out without a gate, because there were no more.
    #[fork(keep = "what was handed out stays so")]
    static IS_SHORT: AtomicBool = AtomicBool::new(false);

    /// The state of the gate, on which calls sleep. Calls wait unless it is [`OPEN`].
    #[fork(reset)]
    pub static CLOSED: AtomicU32 = AtomicU32::new(OPEN);
}
/// The assembler compares with this one.
const OPEN: u32 = 0;
/// No thread may enter the driver.
const SHUT: u32 = 1;
/// Calls wait so that other threads get their turn in the driver, at most for [`MAX_HOLD`].
const HELD: u32 = 2;
/// The time a call waits for that.
const MAX_HOLD: Duration = Duration::from_millis(100);

/// Returns true if no thread may enter the driver.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst) == SHUT
}

lifecycle::global! {
    stage: Doors;

    /// The number of calls in the driver from threads that have no record.
    #[fork(reset)]
    pub static UNSEEN: AtomicU32 = AtomicU32::new(0);
    /// The number of their calls that may have given the GPU work.
    #[fork(keep = "only differences matter")]
    static UNSEEN_PASSES: AtomicU64 = AtomicU64::new(0);
}

/// Marks if a function may give the GPU work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    No,
    Maybe,
}

impl Work {
    /// Returns the value for a call of the table.
    pub fn from_call(call: Call) -> Self {
        Self::from(call.kind().gives_work())
    }
}

impl From<bool> for Work {
    fn from(may: bool) -> Self {
        if may { Self::Maybe } else { Self::No }
    }
}

/// The facts that the gates need from other layers.
pub struct Needs {
    /// Returns true if the driver's functions get gates in this process. Called once, late: by then a
    /// profiler that is also preloaded has set its variables.
    pub are_wanted: fn() -> bool,
    /// Returns true if the library itself hooks the function of this name.
    pub is_hooked: fn(&CStr) -> bool,
    /// Returns the number of threads that are in the driver for the library itself.
    pub users: fn() -> u32,
}

/// The registered facts; without them there are no gates.
#[linkme::distributed_slice]
pub static NEEDS: [Needs];

/// Returns the number of threads that are in the driver for the library itself.
fn users() -> u32 {
    NEEDS.first().map_or(0, |needs| (needs.users)())
}

/// Returns true if the library itself hooks the function of this name.
fn is_hooked(name: &CStr) -> bool {
    NEEDS.first().is_some_and(|needs| (needs.is_hooked)(name))
}

/// Returns true if the driver's functions get gates in this process.
pub fn is_wanted() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    lifecycle::global! {
        #[fork(keep = "as what was handed out")]
        static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    }
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let Some(needs) = NEEDS.first() else {
                return false;
            };
            let is = (needs.are_wanted)();
            ANSWER.store(if is { YES } else { NO }, Ordering::Relaxed);
            is
        }
        answer => answer == YES,
    }
}

/// Returns true if the code at `address` belongs to a profiler: calls that it makes while it is being
/// detached must not wait for that.
pub fn is_profiler(address: usize) -> bool {
    const NAMES: [&[u8]; 2] = [b"libcupti", b"libnvperf"];
    elf::containing(address)
        .and_then(|module| Some(module.soname()?.to_bytes().to_owned()))
        .is_some_and(|soname| NAMES.iter().any(|name| soname.starts_with(name)))
}

/// Returns the function that the program gets for a driver function `real` that the table of calls lacks.
pub fn stand_in(real: *mut c_void, name: &CStr) -> *mut c_void {
    let is_drivers = || {
        elf::containing(real.addr()).is_some_and(|module| module.soname() == Some(c"libcuda.so.1"))
    };
    match name.to_str() {
        Ok(text) if is_wanted() && is_called_in_context(name) && is_drivers() => {
            before(real, Work::from(may_give_work(text)))
        }
        _ => real,
    }
}

/// Returns the gate in front of a driver function, if there are gates; otherwise the function itself.
pub fn before(real: *mut c_void, work: Work) -> *mut c_void {
    if !is_wanted() || resolve::is_ours(real.addr()) {
        return real;
    }
    if let Some(index) = find(real) {
        return stub(index);
    }
    let _creating = CREATING.lock();
    if let Some(index) = find(real) {
        return stub(index);
    }
    let index = USED.load(Ordering::Relaxed);
    let Some(gate) = GATES.get(index) else {
        IS_SHORT.store(true, Ordering::Relaxed);
        return real;
    };
    gate.weight
        .store((work == Work::Maybe).into(), Ordering::Relaxed);
    gate.real.store(real, Ordering::Relaxed);
    USED.store(index + 1, Ordering::Release);
    stub(index)
}

/// Returns the function of a gate; any other function is returned unchanged.
pub fn behind(function: *mut c_void) -> *mut c_void {
    match stubs::index(function.addr()) {
        Some(index) => GATES[index].real.load(Ordering::Relaxed),
        None => function,
    }
}

fn find(real: *mut c_void) -> Option<usize> {
    GATES[..USED.load(Ordering::Acquire)]
        .iter()
        .position(|gate| gate.real.load(Ordering::Relaxed) == real)
}

/// Handles a call at a gate that the assembler cannot handle by itself. Returns where the call is noted: the
/// address of a thread record, 1 for the count of threads without one, 0 if it is not noted.
///
/// `frame` is the address of its frame, as the assembler notes it.
pub extern "C" fn enter(gate: &Gate, frame: usize) -> usize {
    let _errno = SavedErrno::new();
    // The call continues into the driver, unnoted: a profiler that is being detached does not wait for it.
    contained(0, || noted(gate, frame))
}

/// Notes the call. Returns the same values as [`enter`].
fn noted(gate: &Gate, frame: usize) -> usize {
    #[cfg(test)]
    tests::panic_if_asked();
    let weight = gate.weight.load(Ordering::Relaxed);
    let Some(record) = thread::current() else {
        UNSEEN_PASSES.fetch_add(weight, Ordering::Relaxed);
        pass(
            || UNSEEN.fetch_add(1, Ordering::SeqCst),
            || UNSEEN.fetch_sub(1, Ordering::SeqCst),
        );
        return 1;
    };
    let flight = record.flight();
    if flight > frame {
        // It is nested in another call, which counts. Or that other call was left by a jump: then the thread
        // seems to be in the driver until it makes a call from farther up the stack.
        return 0;
    }
    if flight != frame {
        record.add_passes(weight);
    }
    pass(|| record.set_flight(frame), || record.set_flight(0));
    core::ptr::from_ref(record).expose_provenance()
}

/// Notes a call, and withdraws the note while the gate is closed. After a long wait the call continues with
/// its note.
fn pass<N, U>(note: impl Fn() -> N, undo: impl Fn() -> U) {
    note();
    if CLOSED.load(Ordering::SeqCst) == OPEN {
        return;
    }
    let since = Instant::now();
    loop {
        undo();
        let is_open = wait_until_open(since);
        note();
        if !is_open || CLOSED.load(Ordering::SeqCst) == OPEN {
            return;
        }
    }
}

fn wait_until_open(since: Instant) -> bool {
    loop {
        let state = CLOSED.load(Ordering::SeqCst);
        let patience = match state {
            OPEN => return true,
            HELD => MAX_HOLD,
            _ => MAX_WAIT,
        };
        let left = patience.saturating_sub(since.elapsed());
        if !left.is_zero() {
            wait(&CLOSED, state, left);
        } else if state == HELD {
            close::release();
        } else {
            return false;
        }
    }
}

/// Prepares for closing: both steps take a while the first time.
pub fn prepare() {
    lead_links();
    if is_wanted() {
        barrier::process_wide();
    }
}

/// Returns true if all functions that were handed out have gates.
pub fn are_all() -> bool {
    is_wanted() && !IS_SHORT.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::sync::{Arc, MutexGuard, PoisonError};
    use std::thread::spawn;

    use libc::{c_int, pid_t, ssize_t};

    use super::*;
    use crate::function;
    use crate::log::tests::{Stderr, file};
    use crate::thread::tests::{ONE, writer};

    static USERS: AtomicU32 = AtomicU32::new(0);
    /// Makes the next call at a gate panic there.
    static PANICS: AtomicBool = AtomicBool::new(false);

    pub fn panic_if_asked() {
        assert!(!PANICS.swap(false, Ordering::Relaxed), "asked for");
    }

    #[linkme::distributed_slice(NEEDS)]
    static TESTS: Needs = Needs {
        are_wanted: || true,
        is_hooked: |name| name == c"cuGraphLaunch",
        users: || USERS.load(Ordering::SeqCst),
    };

    /// The gates belong to the process, and a test may take a thread's record: one test at a time.
    fn one() -> MutexGuard<'static, ()> {
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function of libc, which stands for one of the driver.
    fn real(name: &CStr) -> *mut c_void {
        resolve::next(name).unwrap()
    }

    /// Calls `getpid` through its gate.
    fn call() -> pid_t {
        let gate = before(real(c"getpid"), Work::Maybe);
        assert_ne!(gate, real(c"getpid"));
        assert_eq!(behind(gate), real(c"getpid"));
        assert_eq!(behind(real(c"getpid")), real(c"getpid"));
        // SAFETY: the gate leads to a function of this type, which takes nothing.
        unsafe { function::at::<extern "C" fn() -> pid_t>(gate) }.map_or(0, |getpid| getpid())
    }

    /// Reads a byte through the gate of `read`.
    fn read(fd: c_int) -> ssize_t {
        type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> ssize_t;
        let mut byte = 0_u8;
        let gate = before(real(c"read"), Work::No);
        // SAFETY: the gate leads to a function of this type, which writes a byte to the local.
        unsafe {
            let read = function::at::<Read>(gate).unwrap();
            read(fd, (&raw mut byte).cast(), 1)
        }
    }

    fn is_anybody_in() -> bool {
        UNSEEN.load(Ordering::SeqCst) != 0 || thread::records().any(|record| record.flight() != 0)
    }

    #[test]
    fn a_call_passes_its_gate_and_is_counted() {
        let _one = one();
        let calls = |gives_record: bool| {
            spawn(move || {
                if gives_record {
                    writer();
                }
                let before = passes();
                assert_eq!(call(), std::process::id() as pid_t);
                passes() - before
            })
        };
        assert_eq!(calls(false).join().unwrap(), 1);
        assert_eq!(calls(true).join().unwrap(), 1);
        assert!(!is_anybody_in());
    }

    #[test]
    fn a_call_goes_on_where_its_gate_panics() {
        let _one = one();
        let _stderr = Stderr::is(&file());
        for gives_record in [false, true] {
            let calls = spawn(move || {
                if gives_record {
                    writer();
                }
                // The assembler does not handle a closed gate by itself.
                let closed = close(MAX_WAIT).expect("nobody is in");
                PANICS.store(true, Ordering::Relaxed);
                let since = Instant::now();
                assert_eq!(call(), std::process::id() as pid_t);
                assert!(since.elapsed() < MAX_WAIT, "it did not wait");
                drop(closed);
            });
            calls.join().unwrap();
            assert!(!PANICS.load(Ordering::Relaxed), "it did panic");
            assert!(!is_anybody_in());
        }
        assert_eq!(call(), std::process::id() as pid_t);
    }

    #[test]
    fn a_function_has_one_gate() {
        let _one = one();
        let gate = before(real(c"getuid"), Work::No);
        assert_eq!(before(real(c"getuid"), Work::No), gate);
        assert_ne!(before(real(c"getgid"), Work::No), gate);
        assert!(are_all());
        let ours = is_anybody_in as *const () as *mut c_void;
        assert_eq!(before(ours, Work::No), ours, "our own functions have none");
        for name in [c"cuMemAlloc_v2", c"cublasCreate_v2"] {
            let libcs = real(c"getuid");
            assert_eq!(stand_in(libcs, name), libcs, "it is not the driver's");
        }
        assert!(!is_profiler(real(c"getuid").addr()) && !is_profiler(1));
        assert!(is_hooked(c"cuGraphLaunch") && !is_hooked(c"cuInit"));
        prepare();
        assert!(
            lead_links() == Links::Led,
            "no module is linked to a driver"
        );
    }

    #[test]
    fn calls_wait_while_the_gate_is_closed() {
        let _one = one();
        for gives_record in [false, true] {
            let closed = close(MAX_WAIT).expect("nobody is in");
            assert!(is_closed());
            let is_open = Arc::new(AtomicBool::new(false));
            let waits = spawn({
                let is_open = is_open.clone();
                move || {
                    if gives_record {
                        writer();
                    }
                    call();
                    is_open.load(Ordering::SeqCst)
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            is_open.store(true, Ordering::SeqCst);
            drop(closed);
            assert!(waits.join().unwrap(), "it went on too early");
            assert!(!is_closed() && !is_anybody_in());
        }
    }

    #[test]
    fn the_gate_is_not_closed_on_a_call_that_is_under_way() {
        let _one = one();
        for gives_record in [false, true] {
            let (from, mut to) = std::io::pipe().unwrap();
            let reads = spawn(move || {
                if gives_record {
                    writer();
                }
                read(from.as_raw_fd())
            });
            while !is_anybody_in() {
                std::thread::yield_now();
            }
            assert!(close(Duration::from_millis(10)).is_none());
            assert!(!is_closed(), "it is open again");
            to.write_all(b"x").unwrap();
            assert_eq!(reads.join().unwrap(), 1);
            assert!(close(MAX_WAIT).is_some());
        }
    }

    #[test]
    fn the_librarys_own_threads_are_waited_for() {
        let _one = one();
        USERS.store(1, Ordering::SeqCst);
        assert!(close(Duration::from_millis(10)).is_none());
        USERS.store(0, Ordering::SeqCst);
        assert!(close(MAX_WAIT).is_some());
    }

    #[test]
    fn a_held_call_goes_on_after_a_while() {
        let _one = one();
        let held = hold();
        assert!(held.is_some() && hold().is_none() && !is_closed());
        let since = Instant::now();
        spawn(call).join().unwrap();
        assert!(since.elapsed() >= MAX_HOLD, "{:?}", since.elapsed());
        drop(held);
        let held = hold();
        assert!(held.is_some(), "the last one is over");
        drop(held);
        assert!(CLOSED.load(Ordering::SeqCst) == OPEN);
    }
}
