//! How the driver's own functions are found, for our own use.
//!
//! In the driver's own tables: calls by these addresses pass no door, so they are neither counted
//! nor recorded as the program's.
//!
//! Not by `libloading`: the look-up happens in the middle of a launch, where `dlsym` would wait for the
//! loader's lock, which a constructor that waits for this thread may hold.

use core::ffi::CStr;

/// The driver's soname.
pub const NAME: &CStr = c"libcuda.so.1";

/// A structure of pointers to the driver's functions, of the first name that it has of each.
#[doc(hidden)]
#[macro_export]
macro_rules! __driver_functions {
    (
        $(#[$doc:meta])* $name:ident
        $($field:ident: fn($($arg:ty),*) = $($symbol:literal)|+;)*
    ) => {
        $(#[$doc])*
        pub struct $name {
            /// Where libcuda is loaded.
            start: usize,
            $($field: Option<unsafe extern "C" fn($($arg),*) -> core::ffi::c_int>,)*
        }

        impl $name {
            fn load() -> Option<Self> {
                let mut driver = None;
                $crate::elf::walk(|module| {
                    if module.soname() == Some($crate::libcuda::NAME) && module.is_bound() {
                        driver = Some(Self {
                            start: module.start,
                            $($field: [$($symbol),+].into_iter().find_map(|symbol| {
                                let address = module.defines(symbol, None)?;
                                type Function =
                                    unsafe extern "C" fn($($arg),*) -> core::ffi::c_int;
                                // SAFETY: the types are those of cuda.h for these names.
                                Some(unsafe {
                                    core::mem::transmute::<*mut core::ffi::c_void, Function>(address)
                                })
                            }),)*
                        });
                    }
                    driver.is_some()
                });
                driver
            }
        }
    };
}
pub use crate::__driver_functions as functions;
