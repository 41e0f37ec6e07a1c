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
        // SAFETY: a function of this type, which is safe.
        let [there, none] = unsafe { [at::<Function>(double), at(core::ptr::null_mut())] };
        assert_eq!(there.map(|double| double(21)), Some(42));
        assert!(none.is_none());
    }
}
