//! Code that runs at calls of functions that a `sym:` rule names.
//!
//! For a function of the step rule (the rule that defines a step of the program), the code runs only if the thread has
//! no call counters yet, or has used up its credit: the number of calls that it may count before this code must run. If
//! the call begins an iteration, the code ends the previous iteration and begins the new one. For a function whose
//! calls are scopes (GPU work is attributed to them), the code runs at each call.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{ends, may_await_end, scopes};
use tllmprof_platform::elf;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;
use tllmprof_platform::stack;
use tllmprof_platform::thread::{self, Inside};
use tllmprof_scopes::native;
use tllmprof_session as session;
use tllmprof_steps::step::counted::Counted;

lifecycle::global! {
    /// Start address of the dynamic loader, and its size in bytes.
    #[fork(keep = "the child's modules are its parent's")]
    static LOADER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
}

/// Stores the address range of the dynamic loader, so that calls from its code can be recognized.
pub(crate) fn remember_loader() {
    elf::walk(|module| {
        let is_it = module
            .soname()
            .is_some_and(|name| name.to_bytes().starts_with(b"ld-linux"));
        if is_it {
            LOADER[0].store(module.start, Ordering::Relaxed);
            LOADER[1].store(module.end - module.start, Ordering::Relaxed);
        }
        is_it
    });
}

/// Returns true if `address` is in the loader's code.
fn is_loader(address: usize) -> bool {
    let [start, size] = LOADER.each_ref().map(|part| part.load(Ordering::Relaxed));
    address.wrapping_sub(start) < size
}

/// Returns true if a signal handler is running on a small alternate stack, which has too little room for a profiler.
///
/// It takes a system call to find out whether the thread is on its signal stack. The system call is skipped if the
/// address of the return address is the same as at the last check that found no signal stack: this call then runs on
/// the thread's normal stack, too.
fn is_on_small_signal_stack(return_place: &AtomicUsize) -> bool {
    const MIN_STACK_BYTES: usize = 64 * 1024;
    let place = core::ptr::from_ref(return_place).addr();
    let record = thread::current();
    if record.is_some_and(|record| record.is_on_own_stack(place)) {
        return false;
    }
    match stack::of_signal_handler() {
        Some(size) => size < MIN_STACK_BYTES,
        None => {
            if let Some(record) = record {
                record.set_on_own_stack(place);
            }
            false
        }
    }
}

/// Called at the start of a call of a hooked function, before the function runs. The caller of this handler is the
/// function's stub (the code that callers got in the function's place), or the trampoline (the code to which the
/// function's patched entry jumps). An iteration may end and another begin at this call.
///
/// `return_place` is the address of the call's return address, and `from` is an address in the calling stub or
/// trampoline. On AArch64, which has no trampolines, `from` is the address of the real function.
pub(crate) extern "C" fn before(return_place: &AtomicUsize, from: usize) {
    contained((), || entered(return_place, from));
}

fn entered(return_place: &AtomicUsize, from: usize) {
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _errno = SavedErrno::new();
    if !tllmprof_session::activity::is_active() || is_on_small_signal_stack(return_place) {
        return;
    }
    // If the thread has cells (call counters), the assembly code has counted the call already.
    if thread::cells().is_null() {
        session::new_thread(false);
        session::count(Counted::Named);
    }
    // The loader may call the program's own allocator in the middle of its work, when its data is incomplete. So if the
    // caller is the loader, do nothing now: an iteration that is due begins at the next call of a named function.
    if is_loader(return_place.load(Ordering::Relaxed)) {
        return;
    }
    if let Some(iteration) = session::named_entered()
        && session::closes_after(iteration)
        && may_await_end(from)
    {
        ends::await_end(return_place, iteration);
    }
    session::goes_on();
}

/// Called at the start of a call that is a scope (GPU work is attributed to it). Opens the scope, and counts the call
/// if the step rule selects the function, too. The arguments are those of [`before`].
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "no entry is patched")
)]
pub(crate) extern "C" fn scope_begins(return_place: &AtomicUsize, from: usize) {
    contained((), || {
        let Some(function) = scopes::of_trampoline(from) else {
            return;
        };
        if let Some(_inside) = Inside::enter() {
            let _errno = SavedErrno::new();
            open(function, return_place);
        }
        // The step rule may select the function, too. Only the trampoline of a step function counts calls in assembly
        // code, and this trampoline is that of a scope. So count the call here.
        if function.is_step() && (thread::cells().is_null() || session::count(Counted::Named)) {
            entered(return_place, from);
        }
    });
}

/// Opens a scope for a call. The GPU work that is launched until the call ends is attributed to this scope.
fn open(function: &scopes::ScopeFunction, return_place: &AtomicUsize) {
    let place = core::ptr::from_ref(return_place).addr();
    let Some(name) = function.name().filter(|_| session::activity::is_active()) else {
        return;
    };
    let has_room = native::has_room(place);
    // Free the return stubs (the code to which calls return) of calls that will never return. Such calls were left by
    // an exception, or they belong to an ended thread whose state this thread has taken over.
    native::take_left(place, |mark| _ = ends::ended(mark as usize));
    if !has_room {
        return;
    }
    match ends::await_scope(return_place) {
        Some(index) => {
            let call = native::NativeCall {
                mark: index as u32,
                place,
                value: return_place.load(Ordering::Relaxed),
            };
            native::enters(name, call);
        }
        None => {
            native::is_over_full();
            scopes::report_over_full();
        }
    }
}

/// Called when a call returns through the return stub number `index`, which is also the stub's index in `AWAITED`.
/// Frees the stub, ends the scope of the call, and ends the iteration that ends with the call, if there is one.
pub(crate) extern "C" fn after(index: usize) {
    contained((), || {
        let _errno = SavedErrno::new();
        let iteration = ends::ended(index);
        let inside = Inside::enter();
        native::returns(index as u32);
        if let (Some(_inside), Some(iteration)) = (inside, iteration) {
            session::by_name::ends(iteration);
        }
    });
}
