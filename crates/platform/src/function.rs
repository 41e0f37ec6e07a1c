//! Functions that are known by their addresses.

use core::ffi::c_void;
use core::mem::transmute_copy;

/// The function at `address` as a function pointer of type `F`; none for null.
///
/// # Safety
/// What lies at the address is a function of that type for as long as the pointer is used. Where `F`
/// is no `unsafe fn`, the function can be called with any arguments of their types.
#[inline]
pub unsafe fn at<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a function pointer is the address of its function, as large as that (asserted above) and
    // not null, and by this function's contract one of type `F` lies at the address.
    (!address.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&address) })
}
