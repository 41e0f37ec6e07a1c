//! Finds the CUDA driver's functions, for use by the library itself.
//!
//! The functions are looked up in the driver's symbol tables. Calls through these addresses do not pass the library's
//! hooks, so they are neither counted nor recorded as calls of the program. If a function's entry is patched with a
//! jump to this library, the calls bypass the jump.
//!
//! `libloading` is not used, because it calls `dlsym`, which waits for the loader's lock. The look-up may happen in the
//! middle of a launch. The thread that holds the lock may run a constructor that waits for the launching thread.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::elf;

/// The driver's soname.
pub const NAME: &CStr = c"libcuda.so.1";

/// Returns true if the driver is loaded and `function` lies in another library. Libraries that are
/// parts of the driver and have similar sonames (under WSL, `libcuda.so.1.1`) count as the driver.
pub fn is_elsewhere(function: usize) -> bool {
    let is_driver = |module: &elf::ElfModule| {
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

/// The location of the driver in memory, with the data by which an unload of the driver is noticed.
pub struct DriverLocation {
    start: usize,
    /// True if the module has the driver's soname. False in a unit test, where the test program stands for
    /// the driver.
    is_named: bool,
    /// The value of [`elf::changes`] at the last check that found the driver still loaded.
    seen: AtomicU64,
}

impl DriverLocation {
    /// A location for tests: that of a driver that is never loaded.
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
    pub fn from_module(module: &elf::ElfModule) -> Self {
        Self {
            start: module.start,
            is_named: module.soname() == Some(NAME),
            // Modules may have been loaded or unloaded since the caller began its walk over the modules.
            // With this value of `seen`, the next check searches for the driver again.
            seen: AtomicU64::new(u64::MAX),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.start, self.is_named) == (other.start, other.is_named)
    }

    /// Returns true if the driver is still loaded. After the driver was unloaded, another module may be at
    /// its address, so the module's name is compared as well.
    ///
    /// If modules were loaded or unloaded since the last check, all modules are searched. That takes
    /// microseconds in a process with hundreds of modules.
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

/// Defines a structure of pointers to driver functions. If a function has several names, the first one that the driver
/// defines is used.
///
/// The argument types must be such that a call is sound with any of their values: results are written through
/// references. Handles are plain numbers. Either the driver checks them, or the caller keeps the objects alive.
#[doc(hidden)]
#[macro_export]
macro_rules! __driver_functions {
    (
        $(#[$doc:meta])* $name:ident
        $($field:ident: fn($($arg:ty),*) = $($symbol:literal)|+;)*
    ) => {
        $(#[$doc])*
        pub struct $name {
            /// The location of the driver in memory, by which an unload is noticed.
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
                                // SAFETY: cuda.h declares these names with these types, and they accept any values (see
                                // the macro's comment).
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
