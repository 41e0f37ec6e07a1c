//! A call that has to be thought about: from the assembler to the steps and back.

use core::ffi::c_int;

use tllmprof_config::calls::Call;

use super::arch::{Frame, tls};
use super::thunk::{Role, Thunk};
use super::{proc_address, resolve};
use crate::errno::Kept;
use crate::session;

/// `cudaMemcpyDeviceToHost`.
const DEVICE_TO_HOST: usize = 2;

/// A call has been entered; says whether to call the real function and come back (1), or to jump
/// to it (0).
///
/// # Safety
/// `frame` is what the assembler saved of a call that is under way.
pub unsafe extern "C" fn before(frame: *const Frame) -> c_int {
    let _errno = Kept::new();
    // SAFETY: the caller's promise; the thunk is one of the pool.
    let (frame, thunk) = unsafe { (&*frame, &*(*frame).thunk) };
    let follow = match thunk.role() {
        Role::ProcAddress => true,
        Role::Driver(call) => driver(call),
        Role::Runtime(call) => runtime(call, thunk, frame),
    };
    follow.into()
}

/// The real function has returned `result`.
///
/// # Safety
/// As [`before`].
pub unsafe extern "C" fn after(frame: *const Frame, result: usize) {
    let _errno = Kept::new();
    // SAFETY: the caller's promise; the thunk is one of the pool.
    let (frame, thunk) = unsafe { (&*frame, &*(*frame).thunk) };
    // The functions return an enumeration, in the lower half of the register.
    let succeeded = result & 0xffff_ffff == 0;
    match thunk.role() {
        Role::ProcAddress if succeeded => {
            // SAFETY: the frame is of a call to this function, which succeeded.
            unsafe { proc_address::handed_out(frame) };
        }
        Role::ProcAddress => {}
        Role::Driver(call) => session::returned(call, frame.args[0], succeeded),
        Role::Runtime(call) => {
            // SAFETY: the block is the calling thread's own.
            unsafe {
                (*tls()).outer = 0;
                (*tls()).outer_return = 0;
            }
            if Thunk::is_followed(call) && is_the_call(call, frame) {
                session::returned(call, frame.args[0], succeeded);
            }
        }
    }
}

fn driver(call: Call) -> bool {
    // The assembler counted the call if the thread has cells.
    // SAFETY: the block is the calling thread's own.
    if unsafe { (*tls()).cells.is_null() } {
        session::new_thread();
        session::count(call);
    }
    session::entered(call);
    Thunk::is_followed(call)
}

/// A runtime function leads to the driver. Where the driver's functions come from us, they are
/// counted there; else here, and what they call meanwhile is part of this call.
fn runtime(call: Call, thunk: &Thunk, frame: &Frame) -> bool {
    if is_nested() {
        return false;
    }
    if !crate::is_active() || resolve::is_fed(thunk.real().addr(), call) {
        thunk.make_transparent();
        return false;
    }
    // SAFETY: the block is the calling thread's own.
    if unsafe { (*tls()).cells.is_null() } {
        session::new_thread();
    }
    if is_the_call(call, frame) {
        session::count(call);
        session::entered(call);
    }
    // SAFETY: as above. The mark is where the return address of this call lies, and stays so until
    // the call returns.
    unsafe {
        (*tls()).outer_return = frame.return_address;
        (*tls()).outer = (&raw const frame.return_address).addr();
    }
    true
}

/// Whether the runtime's call, by its arguments, is the one of the table's row.
fn is_the_call(call: Call, frame: &Frame) -> bool {
    !call.info().device_to_host_only || frame.args[3] == DEVICE_TO_HOST
}

/// Whether this call comes from within another intercepted call of the thread.
fn is_nested() -> bool {
    let here = 0u8;
    // SAFETY: the block is the calling thread's own. A mark above us on the stack is readable; if
    // the call that set it was left by longjmp, its return address no longer lies there.
    unsafe {
        let tls = &*tls();
        let mark = core::ptr::with_exposed_provenance::<usize>(tls.outer);
        (&raw const here).addr() < tls.outer && mark.read_volatile() == tls.outer_return
    }
}
