//! Converts addresses to function pointers.

use core::ffi::c_void;
use core::mem::transmute_copy;

/// Returns the function at `address` as a function pointer of type `F`, or `None` if the address is null.
///
/// # Safety
/// A function of type `F` is at the address for as long as the pointer is used. If `F` is not an `unsafe fn`, the
/// function can be called with any values of its argument types.
#[inline]
pub unsafe fn at<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a function pointer is the address of its function, has the same size (asserted above) and is not null.
    // The caller guarantees that a function of type `F` is at the address.
    (!address.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&address) })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn double(number: u32) -> u32 {
        2 * number
    }

    #[test]
    fn an_address_is_called_as_what_it_is() {
        type Function = extern "C" fn(u32) -> u32;
        let double = double as *const () as *mut c_void;
        // SAFETY: `double` has this type and can be called with any argument.
        let [there, none] = unsafe { [at::<Function>(double), at(core::ptr::null_mut())] };
        assert_eq!(there.map(|double| double(21)), Some(42));
        assert!(none.is_none());
    }
}
