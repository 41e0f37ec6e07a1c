//! The `cuGetProcAddress` door: functions that the driver hands out.

use core::ffi::{CStr, c_char, c_void};

use super::arch::Frame;
use super::dlsym::role_of;
use super::thunk::{Role, Thunk};
use super::fed;
use tllmprof_platform::gate;

/// `cuGetProcAddress` has returned: puts a thunk in place of what it handed out.
///
/// Both of its ABIs have the name first and the place for the result second. The result means
/// something only on success; the place may be null, and so may the name in a first query.
///
/// # Safety
/// `frame` is of a call to `cuGetProcAddress` in either ABI that returned success.
pub unsafe fn handed_out(frame: &Frame) {
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
    const PER_THREAD: usize = 2;
    let [name, place, _, flags, ..] = frame.args;
    let name = core::ptr::with_exposed_provenance::<c_char>(name);
    let place = core::ptr::with_exposed_provenance_mut::<*mut c_void>(place);
    super::named::look();
    if name.is_null() || place.is_null() || !tllmprof_session::activity::is_active() {
        return;
    }
    // SAFETY: the driver has read the name and, on success, written the place.
    let (name, real) = unsafe { (CStr::from_ptr(name), *place) };
    if real.is_null() || gate::is_wanted() && gate::is_profiler(frame.return_address) {
        return;
    }
    let Some(role) = role_of(name) else {
        // SAFETY: as above.
        unsafe { *place = gate::stand_in(real, name) };
        return;
    };
    if let Role::Driver(call) = role {
        fed::feed(frame.return_address, call);
    }
    if let Some(thunk) = Thunk::of(real, role) {
        if flags & PER_THREAD != 0 {
            thunk.set_per_thread();
        }
        // SAFETY: as above.
        unsafe { *place = thunk.stub() };
    }
}
