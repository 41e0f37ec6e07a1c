//! The replacement of `cuGetProcAddress`: gives the program stubs (code of this library) in place of the functions that
//! it requests from the driver.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::dlsym::role_of;
use super::fed;
use super::frame::CallFrame;
use super::thunk::{Role, Thunk};
use tllmprof_platform::{gate, resolve};

/// Handles the return of `cuGetProcAddress`: if the library hooks the function that the program would get, the program
/// gets a stub (code that passes calls through this library) instead.
///
/// In both versions of `cuGetProcAddress`, the first argument is the name and the second is the address of the result.
/// Both may be null. `frame` must be the frame of a call that has succeeded, because a failed call writes no result.
pub(crate) fn handed_out(frame: &CallFrame) {
    /// Value of `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
    const PER_THREAD: usize = 2;
    let [name, place, _, flags, ..] = frame.args;
    let name = core::ptr::with_exposed_provenance::<c_char>(name);
    let place = core::ptr::with_exposed_provenance_mut::<*mut c_void>(place);
    super::named::look();
    if name.is_null() || place.is_null() || !tllmprof_session::activity::is_active() {
        return;
    }
    // SAFETY: both are arguments of `cuGetProcAddress`: the driver has read the name and written to the address of the
    // result.
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
    // If another library replaces `cuGetProcAddress`, the function that it returns may be this library's own export,
    // which comes first in load order. Calls of the export are counted already, so do not replace the result.
    if resolve::is_ours(real.addr()) {
        return;
    }
    if let Some(thunk) = Thunk::for_function(real, role) {
        if flags & PER_THREAD != 0 {
            thunk.set_per_thread();
        }
        place.store(thunk.stub(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::{null_mut, without_provenance_mut};

    use tllmprof_calls::Call;

    use super::*;
    use crate::frame::made;
    use crate::made::{alone, stranger};

    /// Returns the function that the program gets from `cuGetProcAddress` with these arguments, if the driver
    /// returned `real`.
    fn answer(name: Option<&CStr>, real: *mut c_void, flags: usize) -> *mut c_void {
        let thunk = Thunk::made(without_provenance_mut(0x1000), Role::ProcAddress);
        let mut place = real;
        let name = name.map_or(0, |name| name.as_ptr().expose_provenance());
        let words = [name, (&raw mut place).expose_provenance(), 12000, flags];
        handed_out(&made::Call::new(thunk, &words, stranger()).frame);
        // SAFETY: `place` is a local variable. It is read as volatile because it may have been written through its
        // address.
        unsafe { (&raw const place).read_volatile() }
    }

    #[test]
    fn a_function_that_counts_is_handed_out_as_its_thunk() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            let real = without_provenance_mut::<c_void>(0x2000);
            let launch = Role::Driver(Call::GraphLaunch);
            let given = answer(Some(c"cuGraphLaunch"), real, 0);
            let thunk = Thunk::for_function(real, launch).unwrap();
            assert_eq!((given, thunk.is_per_thread()), (thunk.stub(), false));
            assert!(fed::is_fed(stranger(), Call::GraphLaunch));

            let per_thread = without_provenance_mut::<c_void>(0x3000);
            let given = answer(Some(c"cuGraphLaunch"), per_thread, 2);
            let thunk = Thunk::for_function(per_thread, launch).unwrap();
            assert_eq!((given, thunk.is_per_thread()), (thunk.stub(), true));

            let itself = answer(Some(c"cuGetProcAddress_v2"), real, 0);
            assert_eq!(
                itself,
                Thunk::for_function(real, Role::ProcAddress).unwrap().stub()
            );
        });
    }

    #[test]
    fn our_own_export_is_not_stood_in_for_once_more() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            let ours = handed_out as *mut c_void;
            assert_eq!(answer(Some(c"cuGraphLaunch"), ours, 0), ours);
            assert!(fed::is_fed(stranger(), Call::GraphLaunch));
        });
    }

    #[test]
    fn what_is_not_understood_is_handed_out_as_it_is() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            let real = without_provenance_mut::<c_void>(0x2000);
            assert_eq!(answer(Some(c"cuMemGetInfo_v2"), real, 0), real);
            assert_eq!(answer(None, real, 0), real);
            assert_eq!(answer(Some(c"cuGraphLaunch"), null_mut(), 0), null_mut());
            let thunk = Thunk::made(real, Role::ProcAddress);
            let words = [c"cuGraphLaunch".as_ptr().expose_provenance(), 0];
            handed_out(&made::Call::new(thunk, &words, stranger()).frame);
        });
    }

    #[test]
    fn a_process_that_asks_for_nothing_gets_the_drivers_functions() {
        alone(&[], || {
            let real = without_provenance_mut::<c_void>(0x2000);
            assert_eq!(answer(Some(c"cuGraphLaunch"), real, 0), real);
        });
    }
}
