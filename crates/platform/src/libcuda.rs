//! How the driver's own functions are found, for our own use.
//!
//! In the driver's own tables: calls by these addresses pass no door, so they are neither counted
//! nor recorded as the program's. Where entries are patched, calls go past the jumps.
//!
//! Not by `libloading`: the look-up happens in the middle of a launch, where `dlsym` would wait for the
//! loader's lock, which a constructor that waits for this thread may hold.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::elf;

/// The driver's soname.
pub const NAME: &CStr = c"libcuda.so.1";

/// Whether `function` lies in another library than the driver, which is loaded. The driver may have parts that are
/// called like it (under WSL, `libcuda.so.1.1`).
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

/// Where the driver was found.
pub struct Place {
    start: usize,
    /// The module has the driver's soname: not that of a test, which is its own driver.
    is_named: bool,
    /// Up to which change of the modules it was seen to be there.
    seen: AtomicU64,
}

impl Place {
    /// Of a driver that is nowhere.
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
    pub fn of(module: &elf::Module) -> Self {
        Self {
            start: module.start,
            is_named: module.soname() == Some(NAME),
            // Modules may have changed since the walk began: looked at when that is asked.
            seen: AtomicU64::new(u64::MAX),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.start, self.is_named) == (other.start, other.is_named)
    }

    /// Whether the driver is still there: what stands there may be another module's once it was unloaded.
    ///
    /// All modules are looked at where some have come or gone since the last time, for which a process with hundreds of them takes
    /// microseconds.
    pub fn is_valid(&self) -> bool {
        let changes = elf::changes();
        if self.seen.load(Ordering::Relaxed) == changes {
            return true;
        }
        let is_there =
            elf::containing(self.start).is_some_and(|module| Self::of(&module).is_like(self));
        if is_there {
            self.seen.store(changes, Ordering::Relaxed);
        }
        is_there
    }
}

/// A structure of pointers to the driver's functions, of the first name that it has of each.
///
/// The rows give the arguments such types that a call with any of their values is sound: places for
/// results are references. Handles are numbers to us; the driver checks them, or whoever has them
/// keeps what they stand for alive.
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
            place: $crate::libcuda::Place,
            $($field: Option<extern "C" fn($($arg),*) -> core::ffi::c_int>,)*
        }

        impl $name {
            fn load() -> Option<Self> {
                let mut driver = None;
                $crate::elf::walk(|module| {
                    if module.soname() == Some($crate::libcuda::NAME) && module.is_bound() {
                        driver = Some(Self {
                            place: $crate::libcuda::Place::of(module),
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
