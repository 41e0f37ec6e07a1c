//! Finds the driver's own functions, for use by the library.
//!
//! They are looked up in the driver's own tables. Calls by these addresses pass no door, so they are neither
//! counted nor recorded as the program's. If entries are patched, the calls bypass the jumps.
//!
//! `libloading` is not used: the look-up happens in the middle of a launch, where `dlsym` would wait for the
//! loader's lock, which may be held by a constructor that waits for this thread.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::elf;

/// The driver's soname.
pub const NAME: &CStr = c"libcuda.so.1";

/// Returns true if `function` lies in a library other than the driver, and the driver is loaded. Parts of the
/// driver may have similar names (under WSL, `libcuda.so.1.1`).
pub fn is_elsewhere(function: usize) -> bool {
    let is_driver = |module: &elf::Module| {
        let soname = module.soname().map_or(&[][..], CStr::to_bytes);
        soname.starts_with(b"libcuda.so")
    };
    let mut is_loaded = false;
    elf::walk(|module| {
        is_loaded = is_driver(module);
        is_loaded
    });
    is_loaded && elf::containing(function).is_some_and(|module| !is_driver(&module))
}

/// The location of the driver.
pub struct DriverLocation {
    start: usize,
    /// True if the module has the driver's soname. A test is its own driver, without that name.
    is_named: bool,
    /// The value of [`elf::changes`] at which it was last seen to be loaded.
    seen: AtomicU64,
}

impl DriverLocation {
    /// The location of a driver that is not loaded.
    #[cfg(test)]
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "each driver of a test has its own"
    )]
    pub(crate) const NOWHERE: Self = Self {
        start: 0,
        is_named: false,
        seen: AtomicU64::new(u64::MAX),
    };

    #[doc(hidden)]
    #[must_use]
    pub fn from_module(module: &elf::Module) -> Self {
        Self {
            start: module.start,
            is_named: module.soname() == Some(NAME),
            // Modules may have changed since the walk began: the next check looks.
            seen: AtomicU64::new(u64::MAX),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.start, self.is_named) == (other.start, other.is_named)
    }

    /// Returns true if the driver is still loaded: after it was unloaded, another module may be at its
    /// address.
    ///
    /// All modules are checked if some were loaded or unloaded since the last time. In a process with
    /// hundreds of them that takes microseconds.
    pub fn is_valid(&self) -> bool {
        let changes = elf::changes();
        if self.seen.load(Ordering::Relaxed) == changes {
            return true;
        }
        let is_there = elf::containing(self.start)
            .is_some_and(|module| Self::from_module(&module).is_like(self));
        if is_there {
            self.seen.store(changes, Ordering::Relaxed);
        }
        is_there
    }
}

/// A structure of pointers to the driver's functions. For each, the first of its names that the driver has is
/// used.
///
/// The types of the arguments must make a call with any of their values sound: results are written through
/// references. Handles are numbers here; either the driver checks them, or the caller keeps the objects
/// alive.
#[doc(hidden)]
#[macro_export]
macro_rules! __driver_functions {
    (
        $(#[$doc:meta])* $name:ident
        $($field:ident: fn($($arg:ty),*) = $($symbol:literal)|+;)*
    ) => {
        $(#[$doc])*
        pub struct $name {
            /// The location of libcuda.
            place: $crate::libcuda::DriverLocation,
            $($field: Option<extern "C" fn($($arg),*) -> core::ffi::c_int>,)*
        }

        impl $name {
            fn load() -> Option<Self> {
                let mut driver = None;
                $crate::elf::walk(|module| {
                    if module.soname() == Some($crate::libcuda::NAME) && module.is_bound() {
                        driver = Some(Self {
                            place: $crate::libcuda::DriverLocation::from_module(module),
                            $($field: [$($symbol),+].into_iter().find_map(|symbol| {
                                // SAFETY: the types are those of cuda.h for these names, and take
                                // any values (see the macro).
                                unsafe {
                                    let function = module.defines(symbol, None)?;
                                    $crate::function::at($crate::entry::jumps::original(function))
                                }
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
