//! A call of a function that the rule names, past its thread's credit.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{ends, may_await_end};
use tllmprof_platform::elf;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::{self, Inside};
use tllmprof_session as session;
use tllmprof_steps::step::counted::Counted;

lifecycle::global! {
    /// Where the loader lies, and its size.
    #[fork(keep = "the child's modules are its parent's")]
    static LOADER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
}

/// Remembers where the loader lies.
pub fn remember_loader() {
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

/// Whether the code at `address` is the loader's.
fn is_loader(address: usize) -> bool {
    let [start, size] = LOADER.each_ref().map(|part| part.load(Ordering::Relaxed));
    address.wrapping_sub(start) < size
}

/// Whether a signal handler is running on a stack of its own, with hardly any room: profilers need
/// more. Calls from a loop come from the same `place`, for which the kernel is asked once.
fn is_on_small_signal_stack(place: usize) -> bool {
    const ROOM: usize = 64 * 1024;
    if thread::is_on_own_stack(place) {
        return false;
    }
    let Some(stack) = signal_stack() else {
        return false;
    };
    if stack.ss_flags & libc::SS_ONSTACK == 0 {
        thread::set_on_own_stack(place);
        return false;
    }
    stack.ss_size < ROOM
}

/// The stack of the thread's signal handlers, as the kernel has it.
fn signal_stack() -> Option<libc::stack_t> {
    let mut stack = core::mem::MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: nothing is set; the structure is filled where that succeeds, and read only then.
    unsafe {
        let asked = libc::sigaltstack(core::ptr::null(), stack.as_mut_ptr());
        (asked == 0).then(|| stack.assume_init())
    }
}

/// A function has been entered, and goes on when this returns.
///
/// `return_place` is where the call's return address lies, and `from` an address in the stub or
/// trampoline that it came through; on AArch64, which has no trampolines, where the stub leads to.
pub extern "C" fn before(return_place: &AtomicUsize, from: usize) {
    contained((), || entered(return_place, from));
}

fn entered(return_place: &AtomicUsize, from: usize) {
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _errno = Kept::new();
    let place = core::ptr::from_ref(return_place).addr();
    if !tllmprof_session::activity::is_active() || is_on_small_signal_stack(place) {
        return;
    }
    // The assembler counted the call if the thread has cells.
    if thread::cells().is_null() {
        session::new_thread(false);
        session::count(Counted::Named);
    }
    // The loader, which may call a program's own allocator, is in the middle of something: the next
    // call asks.
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

/// A call has returned whose end was awaited at place `index`.
pub extern "C" fn after(index: usize) {
    contained((), || {
        let _errno = Kept::new();
        let iteration = ends::ended(index);
        if let (Some(_inside), Some(iteration)) = (Inside::enter(), iteration) {
            session::by_name::ends(iteration);
        }
    });
}
