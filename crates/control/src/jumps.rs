//! Jumps at the entries of the driver's functions, which the command writes while all threads are stopped.
//!
//! A library that was attached fills a [`Jumps`] in, which it exports as [`SYMBOL`]; the command reads it in the memory of
//! the process.

use core::sync::atomic::AtomicU64;

/// The library's symbol that holds the address of its [`Jumps`].
pub const SYMBOL: &str = "tllmprof_jumps";
/// The layout below. A command that knows another leaves the entries alone.
pub const LAYOUT: u64 = 1;
/// Functions that there is room for.
pub const MOST: usize = 256;
/// Bytes that are written at an entry, at once: the jump, and what follows it as it was.
pub const WRITTEN: usize = 8;

/// A function of the driver, and the jump that leads its calls to the library.
#[repr(C)]
pub struct Jump {
    /// Where the function begins.
    pub function: AtomicU64,
    /// A copy of its first instructions, which goes on behind them.
    pub original: AtomicU64,
    /// Where the jump is written, and the bytes of the instructions that it takes the place of. A thread must not be
    /// within them, but may be at the first.
    pub at: AtomicU64,
    pub length: AtomicU64,
    /// What lies there without the jump, and with it.
    pub before: AtomicU64,
    pub after: AtomicU64,
    /// The call, for the library: its row in the table, or [`NO_CALL`].
    pub call: AtomicU64,
}

/// Not a call that counts, but one that looks others up.
pub const NO_CALL: u64 = u64::MAX;

#[repr(C)]
pub struct Jumps {
    /// [`LAYOUT`].
    pub layout: u64,
    /// Functions of the driver that matter, those that cannot be patched included.
    pub known: AtomicU64,
    /// Jumps that are filled in. They never change.
    pub count: AtomicU64,
    /// How often the command has written some.
    pub rounds: AtomicU64,
    pub all: [Jump; MOST],
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
    /// None is ready.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            layout: LAYOUT,
            known: AtomicU64::new(0),
            count: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            all: [const { Jump::none() }; MOST],
        }
    }
}
