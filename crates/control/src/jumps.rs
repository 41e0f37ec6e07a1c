//! Jumps at the entries of the driver's functions. The command writes them while all threads are stopped.
//!
//! An attached library fills in a [`Jumps`] and exports its address as [`SYMBOL`]. The command reads it from the
//! memory of the process.

use core::sync::atomic::AtomicU64;

/// The library's symbol that holds the address of its [`Jumps`].
pub const SYMBOL: &str = "tllmprof_jumps";
/// The version of the layout below. A command that knows another layout does not change the entries.
pub const LAYOUT: u64 = 1;
/// Limit for the functions.
pub const MAX_JUMPS: usize = 256;
/// Bytes that are written at an entry at once: the jump, and the unchanged bytes after it.
pub const WRITTEN: usize = 8;

/// A driver function, and the jump that leads its calls to the library.
#[repr(C)]
pub struct Jump {
    /// The address of the function.
    pub function: AtomicU64,
    /// The address of a copy of its first instructions, which then continues after them in the function.
    pub original: AtomicU64,
    /// The address at which the jump is written, and the bytes of the instructions that it replaces. A thread must
    /// not be inside them, but may be at the first one.
    pub at: AtomicU64,
    pub length: AtomicU64,
    /// The bytes at that address without the jump, and with it.
    pub before: AtomicU64,
    pub after: AtomicU64,
    /// The call's row in the table, for the library, or [`NO_CALL`].
    pub call: AtomicU64,
}

/// The value for a function that is not a counted call, but looks up others.
pub const NO_CALL: u64 = u64::MAX;

#[repr(C)]
pub struct Jumps {
    /// [`LAYOUT`].
    pub layout: u64,
    /// Number of driver functions that matter, including those that cannot be patched.
    pub known: AtomicU64,
    /// Number of jumps that are filled in. They never change.
    pub count: AtomicU64,
    /// Number of times that the command has written jumps.
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
    /// Returns an empty table.
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
