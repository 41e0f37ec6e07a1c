//! The table of jumps that lead calls of the driver's functions to an attached library. A jump replaces the
//! first instructions of a function.
//!
//! The attached library fills in a [`Jumps`] table and exports its address as the symbol [`SYMBOL`]. The library itself
//! writes the jumps that can be written while threads run. The command reads the table from the process's memory, and
//! writes the other jumps while all threads are stopped.

use core::sync::atomic::AtomicU64;

/// The library's symbol that holds the address of its [`Jumps`] table.
pub const SYMBOL: &str = "tllmprof_jumps";
/// The version of the layout of [`Jumps`]. A command that knows only another layout does not write jumps.
pub const LAYOUT: u64 = 1;
/// The largest number of jumps in the table.
pub const MAX_JUMPS: usize = 256;
/// The number of bytes at a function's entry that are written at once: the jump, and unchanged bytes after
/// it.
pub const WRITTEN: usize = 8;

/// A driver function, and the jump that leads its calls to the library.
#[repr(C)]
pub struct Jump {
    /// The address of the driver's function.
    pub function: AtomicU64,
    /// The address of a copy of the function's first instructions. After these instructions, the copy jumps back into
    /// the function.
    pub original: AtomicU64,
    /// The address at which the jump is written. The jump must not be written while a thread is inside the
    /// instructions that the jump replaces, except at the first one.
    pub at: AtomicU64,
    /// The length of the instructions that the jump replaces, in bytes.
    pub length: AtomicU64,
    /// The bytes at address `at` without the jump.
    pub before: AtomicU64,
    /// The bytes at address `at` with the jump.
    pub after: AtomicU64,
    /// The row of the function in the library's table of calls; [`NO_CALL`] if it has none.
    pub call: AtomicU64,
}

/// The value of [`Jump::call`] for a function that looks up other functions, such as `cuGetProcAddress`. The library
/// does not count calls of such a function.
pub const NO_CALL: u64 = u64::MAX;

#[repr(C)]
pub struct Jumps {
    /// The version of the layout ([`LAYOUT`]), which the command checks before it reads anything else.
    pub layout: u64,
    /// The number of driver functions that the library wants to intercept, including those whose entries
    /// cannot be patched.
    pub known: AtomicU64,
    /// The number of entries of the table that are filled in. Filled entries never change.
    pub count: AtomicU64,
    /// The number of times that the command has written jumps of this table into the process.
    pub rounds: AtomicU64,
    pub all: [Jump; MAX_JUMPS],
}

impl Jump {
    const fn none() -> Self {
        Self {
            function: AtomicU64::new(0),
            original: AtomicU64::new(0),
            at: AtomicU64::new(0),
            length: AtomicU64::new(0),
            before: AtomicU64::new(0),
            after: AtomicU64::new(0),
            call: AtomicU64::new(0),
        }
    }
}

impl Jumps {
    #[must_use]
    pub const fn none() -> Self {
        Self {
            layout: LAYOUT,
            known: AtomicU64::new(0),
            count: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            all: [const { Jump::none() }; MAX_JUMPS],
        }
    }
}
