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
    // SAFETY: the caller promises that `F` is the type of a function, and that is as large as its
    // address.
    (!address.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&address) })
}
