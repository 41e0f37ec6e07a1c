//! The gates in front of the driver's functions. While kernels are recorded, the program reaches the driver's functions
//! only through gates, whether it looks them up or is linked to them. Functions that need no CUDA context have no gate.
//!
//! Detaching a profiler from the driver while a call is in the driver destroys the CUDA context. So the gates
//! always count the threads in the driver, which costs a few nanoseconds per call, and [`close`] keeps
//! threads out for the detach. Each function has its own gate, which is created when the program gets the
//! function. Calls that began before the gate existed are not counted.

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

/// Largest number of gates in a process. The driver has about 700 functions. A CUDA runtime looks up 440 of them, many
/// in two variants.
pub const GATE_COUNT: usize = 2048;

/// The longest time that a call waits at a closed gate. Gates (code in front of the driver's functions) are closed for
/// milliseconds. The limit ensures that a profiler that hangs while it is detached does not block the program, too.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The gate in front of one driver function: code that counts the threads in the function and can hold calls back.
#[repr(C)]
pub struct Gate {
    real: AtomicPtr<c_void>,
    /// 1 if calls of this gate's function may enqueue work on the GPU, otherwise 0.
    weight: AtomicU64,
}

impl Gate {
    /// Offsets of the fields in bytes, for the gates' assembly code.
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

    /// The pool of gates (code in front of the driver's functions). The first [`USED`] entries are complete and never
    /// change.
    #[fork(keep = "pointers to gates were handed out")]
    #[together(tables)]
    pub static GATES: [Gate; GATE_COUNT] = [const { Gate::new() }; GATE_COUNT];
    #[fork(keep = "as the pool")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    #[fork(free)]
    static CREATING: Lock<()> = Lock::new(());
    /// True if the program has got a driver function without a gate (code that counts its calls), because the pool of
    /// gates was full.
    #[fork(keep = "what was handed out stays so")]
    static IS_SHORT: AtomicBool = AtomicBool::new(false);

    /// The state of all gates: [`OPEN`], [`SHUT`] or [`HELD`]. Unless it is [`OPEN`], calls sleep on this word (a
    /// futex).
    #[fork(reset)]
    pub static CLOSED: AtomicU32 = AtomicU32::new(OPEN);
}
/// The state in which gates let calls pass. The gates' assembly code compares with this value.
const OPEN: u32 = 0;
/// The state in which no thread may enter the driver: calls wait at the gates.
const SHUT: u32 = 1;
/// The state in which new calls wait, at most for [`MAX_HOLD`], so that the thread that called [`hold`] gets the
/// driver's lock.
const HELD: u32 = 2;
/// Longest time that a call waits at a gate in the state [`HELD`].
const MAX_HOLD: Duration = Duration::from_millis(100);

/// Returns true if [`close`] has closed the gates, so that no thread may enter the driver.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst) == SHUT
}

lifecycle::global! {
    stage: Doors;

    /// The number of calls that are in the driver now, made by threads without a
    /// [`ThreadRecord`](crate::thread::ThreadRecord).
    #[fork(reset)]
    pub static UNSEEN: AtomicU32 = AtomicU32::new(0);
    /// The number of calls so far that may have enqueued work on the GPU, made by threads without a
    /// [`ThreadRecord`](crate::thread::ThreadRecord).
    #[fork(keep = "only differences matter")]
    static UNSEEN_PASSES: AtomicU64 = AtomicU64::new(0);
}

/// The answer to the question whether calls of a driver function may enqueue work on the GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum GpuUse {
    No,
    Maybe,
}

impl GpuUse {
    /// Returns [`GpuUse::Maybe`] if calls of the driver function `call` are of a kind that enqueues work on the GPU.
    pub fn from_call(call: Call) -> Self {
        Self::from(call.kind().gives_work())
    }
}

impl From<bool> for GpuUse {
    fn from(may: bool) -> Self {
        if may { Self::Maybe } else { Self::No }
    }
}

/// Functions of higher layers that the gates (code in front of the driver's functions) call. The library registers them
/// in [`NEEDS`].
pub struct Needs {
    /// Returns true if the driver's functions get gates (code that can hold calls back) in this process. Called when
    /// the answer is first needed, and not when the library is loaded: by then another preloaded profiler has set its
    /// environment variables.
    pub are_wanted: fn() -> bool,
    /// Returns true if the library exports a function of this name, so that it intercepts the driver's function of the
    /// same name.
    pub is_hooked: fn(&CStr) -> bool,
    /// Returns the number of threads that are in the driver on behalf of this library.
    pub users: fn() -> u32,
}

/// The functions that the library has registered, as at most one element. Without an element there are no gates.
#[linkme::distributed_slice]
pub static NEEDS: [Needs];

/// Returns the number of threads that are in the driver on behalf of this library.
fn users() -> u32 {
    NEEDS.first().map_or(0, |needs| (needs.users)())
}

/// Returns true if the library exports a function of this name, so that it intercepts the driver's function of the same
/// name.
fn is_hooked(name: &CStr) -> bool {
    NEEDS.first().is_some_and(|needs| (needs.is_hooked)(name))
}

/// Returns true if the driver's functions get gates (code that can hold calls back) in this process. The answer does
/// not change.
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

/// Returns true if the code at `address` belongs to a profiler. A profiler's calls do not pass the gates: a
/// call that it makes while it is being detached would otherwise wait for the end of the detach.
pub fn is_profiler(address: usize) -> bool {
    const NAMES: [&[u8]; 2] = [b"libcupti", b"libnvperf"];
    elf::containing(address)
        .and_then(|module| Some(module.soname()?.to_bytes().to_owned()))
        .is_some_and(|soname| NAMES.iter().any(|name| soname.starts_with(name)))
}

/// Returns the function that the program gets in place of `real`. Used for functions that are not in the table of calls
/// ([`Call`]). The result is a gate (code that counts the call) if `real` is a driver function that needs a current
/// context, otherwise `real`.
pub fn stand_in(real: *mut c_void, name: &CStr) -> *mut c_void {
    let is_drivers = || {
        elf::containing(real.addr()).is_some_and(|module| module.soname() == Some(c"libcuda.so.1"))
    };
    match name.to_str() {
        Ok(text) if is_wanted() && is_called_in_context(name) && is_drivers() => {
            before(real, GpuUse::from(may_give_work(text)))
        }
        _ => real,
    }
}

/// Returns the gate (code that can hold calls back) in front of a driver function. Returns the function itself if gates
/// are not wanted, if the function lies in this library, or if the pool of gates is full.
pub fn before(real: *mut c_void, work: GpuUse) -> *mut c_void {
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
        .store((work == GpuUse::Maybe).into(), Ordering::Relaxed);
    gate.real.store(real, Ordering::Relaxed);
    USED.store(index + 1, Ordering::Release);
    stub(index)
}

/// Returns the driver's function if `function` is a gate in front of it. Returns any other function unchanged.
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

/// Counts a call as in progress, in the cases that the gates' assembly code leaves to this function, such as a closed
/// gate. Returns a word that says where the call is counted as in progress: the address of a thread record, 1 for the
/// count of threads without a record, or 0 if the call is not counted.
///
/// `frame` is the address of the call's stack frame.
pub extern "C" fn enter(gate: &Gate, frame: usize) -> usize {
    let _errno = SavedErrno::new();
    // If `noted` panics, the call continues into the driver without being counted. A detach then
    // does not wait for this call.
    contained(0, || noted(gate, frame))
}

/// Counts a call as in progress. Returns the same values as [`enter`].
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
        // This call is nested in a call that is already counted, so it is not counted again. If the outer call was left
        // by a jump (`longjmp`), the thread still counts as in the driver. That ends when the thread makes a call from
        // a stack frame at the same or a higher address.
        return 0;
    }
    if flight != frame {
        record.add_passes(weight);
    }
    pass(|| record.set_flight(frame), || record.set_flight(0));
    core::ptr::from_ref(record).expose_provenance()
}

/// Counts a call as in progress, by calling `note`. While the gates are not open, `undo` removes the call from the
/// count, and the call waits. When the gates open, or after [`MAX_WAIT`], the call is counted again and continues.
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

/// Prepares for [`close`] by doing two steps that take longer the first time: redirecting GOT slots, and
/// registering for the barrier.
pub fn prepare() {
    lead_links();
    if is_wanted() {
        barrier::process_wide();
    }
}

/// Returns true if every driver function that the program has got has a gate (code that can hold calls back).
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
    /// True if the next call that reaches [`enter`] is going to panic.
    static PANICS: AtomicBool = AtomicBool::new(false);

    pub(crate) fn panic_if_asked() {
        assert!(!PANICS.swap(false, Ordering::Relaxed), "asked for");
    }

    #[linkme::distributed_slice(NEEDS)]
    static TESTS: Needs = Needs {
        are_wanted: || true,
        is_hooked: |name| name == c"cuGraphLaunch",
        users: || USERS.load(Ordering::SeqCst),
    };

    /// Acquires the lock that only one test holds at a time: all tests share the gates, and a thread of a test may
    /// take over another thread's [`thread::ThreadRecord`].
    fn one() -> MutexGuard<'static, ()> {
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function of the C library, which stands for a driver function in these tests.
    fn real(name: &CStr) -> *mut c_void {
        resolve::next(name).unwrap()
    }

    /// Calls the C library's `getpid` through its gate.
    fn call() -> pid_t {
        let gate = before(real(c"getpid"), GpuUse::Maybe);
        assert_ne!(gate, real(c"getpid"));
        assert_eq!(behind(gate), real(c"getpid"));
        assert_eq!(behind(real(c"getpid")), real(c"getpid"));
        // SAFETY: the gate leads to `getpid`, which has this type and takes no arguments.
        unsafe { function::at::<extern "C" fn() -> pid_t>(gate) }.map_or(0, |getpid| getpid())
    }

    /// Reads a byte from `fd` through the gate in front of the C library's `read`.
    fn read(fd: c_int) -> ssize_t {
        type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> ssize_t;
        let mut byte = 0_u8;
        let gate = before(real(c"read"), GpuUse::No);
        // SAFETY: the gate leads to `read`, which has this type and writes a byte to the local variable.
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
                // The assembly code calls `enter` if the gates are closed, and this test makes
                // `enter` panic.
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
        let gate = before(real(c"getuid"), GpuUse::No);
        assert_eq!(before(real(c"getuid"), GpuUse::No), gate);
        assert_ne!(before(real(c"getgid"), GpuUse::No), gate);
        assert!(are_all());
        let ours = is_anybody_in as *const () as *mut c_void;
        assert_eq!(
            before(ours, GpuUse::No),
            ours,
            "our own functions have none"
        );
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
