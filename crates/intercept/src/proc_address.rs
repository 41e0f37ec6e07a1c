//! The `cuGetProcAddress` door: functions that the driver hands out.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::dlsym::role_of;
use super::fed;
use super::frame::Frame;
use super::thunk::{Role, Thunk};
use tllmprof_platform::gate;

/// `cuGetProcAddress` has returned: puts a thunk in place of what it handed out.
///
/// Both of its ABIs have the name first and the place for the result second. The result means
/// something only on success; the place may be null, and so may the name in a first query. `frame` is
/// of a call that has succeeded.
pub fn handed_out(frame: &Frame) {
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
    const PER_THREAD: usize = 2;
    let [name, place, _, flags, ..] = frame.args;
    let name = core::ptr::with_exposed_provenance::<c_char>(name);
    let place = core::ptr::with_exposed_provenance_mut::<*mut c_void>(place);
    super::named::look();
    if name.is_null() || place.is_null() || !tllmprof_session::activity::is_active() {
        return;
    }
    // SAFETY: the function has the name and the place as arguments: the driver has read the one and
    // written the other.
    let (name, place) = unsafe { (CStr::from_ptr(name), AtomicPtr::from_ptr(place)) };
    let real = place.load(Ordering::Relaxed);
    if real.is_null() || gate::is_wanted() && gate::is_profiler(frame.return_address) {
        return;
    }
    let Some(role) = role_of(name) else {
        place.store(gate::stand_in(real, name), Ordering::Relaxed);
        return;
    };
    if let Role::Driver(call) = role {
        fed::feed(frame.return_address, call);
    }
    if let Some(thunk) = Thunk::of(real, role) {
        if flags & PER_THREAD != 0 {
            thunk.set_per_thread();
        }
        place.store(thunk.stub(), Ordering::Relaxed);
    }
}
