//! Calls that are recorded: those to the driver while a window is open, or to a runtime whose driver
//! functions do not come from us.

use core::ffi::c_void;

use tllmprof_config::calls::Call;

use super::arch::{self, Frame};
use super::thunk::{Role, Thunk};
use crate::record::{self, What};
use crate::session;

/// Whether calls are recorded now.
pub fn are() -> bool {
    record::is_recording()
}

/// The handler of a driver's function that is recorded.
pub fn handler() -> *mut c_void {
    arch::record as *mut c_void
}

/// The real function of a call that [`arch::record`] timed has returned `result`, and the program is
/// to get it.
///
/// # Safety
/// `frame` is what the assembler saved of the call.
#[cfg(target_arch = "x86_64")]
pub unsafe extern "C" fn returned(frame: *const Frame, result: usize) -> usize {
    // SAFETY: the caller's promise; the thunk is one of the pool.
    let (frame, thunk) = unsafe { (&*frame, &*(*frame).thunk) };
    keep(frame, thunk, result);
    result
}

/// A call goes on to its real function, by the slow way.
pub fn goes_on(frame: &Frame) {
    frame.since.set(record::ticks());
}

/// It has returned. Whether it was recorded or not.
pub fn keep(frame: &Frame, thunk: &Thunk, result: usize) {
    let since = frame.since.get();
    if since == 0 || !are() {
        return;
    }
    let (call, is_driver) = match thunk.role() {
        Role::Driver(call) => (call, true),
        Role::Runtime(call) => (call, false),
        Role::ProcAddress => return,
    };
    // The functions return an enumeration, in the lower half of the register.
    let failed = result & 0xffff_ffff != 0;
    let what = What::Call {
        row: call as u8,
        capturing: session::is_capturing(),
        stream: if failed {
            0
        } else {
            stream(call, is_driver, frame)
        },
    };
    record::call(since, failed, what);
}

/// Where the argument is that names the stream; an index of words, as structures may take several.
enum Stream {
    Nowhere,
    Word(usize),
    /// In the configuration that the first word points to, behind so many bytes.
    Configured(usize),
}

/// The stream that a call which succeeded was for; 0 for the default, and for none.
fn stream(call: Call, is_driver: bool, frame: &Frame) -> u64 {
    use Call::{
        GraphLaunch, LaunchCooperativeKernel, LaunchKernel, LaunchKernelEx, MemcpyDtoHAsync,
        MemcpyHtoDAsync, StreamBeginCapture, StreamBeginCaptureToGraph, StreamEndCapture,
        StreamSynchronize,
    };
    let place = match (call, is_driver) {
        (GraphLaunch, _) => Stream::Word(1),
        (LaunchKernel | LaunchCooperativeKernel, true) => Stream::Word(8),
        // Two dimensions of two words each.
        (LaunchKernel | LaunchCooperativeKernel, false) => Stream::Word(7),
        (LaunchKernelEx, _) => Stream::Configured(32),
        (MemcpyDtoHAsync | MemcpyHtoDAsync, true) => Stream::Word(3),
        (MemcpyDtoHAsync, false) => Stream::Word(4),
        (
            StreamSynchronize | StreamBeginCapture | StreamBeginCaptureToGraph | StreamEndCapture,
            _,
        ) => Stream::Word(0),
        _ => Stream::Nowhere,
    };
    match place {
        Stream::Nowhere => 0,
        Stream::Word(index) => frame.word(index) as u64,
        Stream::Configured(behind) => {
            let configuration = core::ptr::with_exposed_provenance::<u8>(frame.args[0]);
            // SAFETY: the real function has read the configuration and found it good.
            unsafe { configuration.add(behind).cast::<u64>().read_unaligned() }
        }
    }
}
