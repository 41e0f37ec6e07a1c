//! Where each thread counts its calls.
//!
//! A thread adds to its own cells with plain stores, so that sixteen threads count as cheaply as
//! one. A cell's *limit* is how far its thread may count before it has to stop and ask; see
//! [`super::ledger`]. Cells outlive their thread: the next new thread takes them over, counts and
//! all, so that no call is forgotten and ten thousand short threads need no more cells than ever
//! ran at once.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tllmprof_calls::Kind;

use super::counted::{Counted, ROWS};
use super::open::OpenRanges;

/// A limit that is never passed.
pub const UNLIMITED: u64 = u64::MAX;

/// One thread's count of one call.
#[repr(C)]
pub struct Cell {
    count: AtomicU64,
    limit: AtomicU64,
}

impl Cell {
    /// Where the assembler finds the fields, in bytes.
    pub const COUNT: usize = core::mem::offset_of!(Self, count);
    pub const LIMIT: usize = core::mem::offset_of!(Self, limit);

    const fn new(limit: u64) -> Self {
        Self {
            count: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        }
    }

    /// Calls so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a call; only the cell's own thread may.
    pub fn add(&self) {
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// The count up to which the thread needs not ask.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the count up to which the thread needs not ask.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

/// Bytes from a thread's first cell to the one of `what`.
pub const fn cell_offset(what: Counted) -> usize {
    what.row() * size_of::<Cell>()
}

/// All that is kept of one thread at a time.
#[repr(C)]
pub struct Slot {
    live: [Cell; ROWS],
    captured: [Cell; ROWS],
    settled: [AtomicU64; ROWS],
    /// The credit that is being called back.
    given: AtomicU64,
    taken: AtomicBool,
    /// The thread is about to begin a step: a call of it has its number and has not gone on.
    begins: AtomicBool,
    open: OpenRanges,
    /// Which of the process's slots it is.
    thread: u32,
    /// The address of what the thread reaches its cells by; 0 for none.
    block: AtomicUsize,
}

impl Slot {
    /// Slot number `thread`, in use, its limits from `limit` for calls outside a stream capture; inside one,
    /// only what ends it is asked about.
    pub fn new(thread: u32, limit: impl Fn(Counted) -> u64) -> Self {
        let ends_capture = |what| match what {
            Counted::Call(call) => matches!(
                call.kind(),
                Kind::CaptureBegin | Kind::CaptureEnd | Kind::Profiler | Kind::Destroys(_)
            ),
            Counted::Named | Counted::Python => false,
        };
        Self {
            live: core::array::from_fn(|row| Cell::new(limit(Counted::at(row)))),
            captured: core::array::from_fn(|row| {
                let asks = ends_capture(Counted::at(row));
                Cell::new(if asks { 0 } else { UNLIMITED })
            }),
            settled: [const { AtomicU64::new(0) }; ROWS],
            given: AtomicU64::new(0),
            taken: AtomicBool::new(true),
            begins: AtomicBool::new(false),
            open: OpenRanges::new(),
            thread,
            block: AtomicUsize::new(0),
        }
    }

    /// Where calls outside a stream capture are counted.
    pub fn live(&self, what: impl Into<Counted>) -> &Cell {
        &self.live[what.into().row()]
    }

    /// Where calls are counted, outside a stream capture or inside one.
    pub fn cell(&self, what: Counted, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[what.row()]
        } else {
            self.live(what)
        }
    }

    /// The first of the cells that calls made now count in.
    pub fn cells(&self, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[0]
        } else {
            &self.live[0]
        }
    }

    /// How many of the thread's calls have got their number.
    pub fn settled(&self, what: Counted) -> u64 {
        self.settled[what.row()].load(Ordering::Relaxed)
    }

    /// Says how many of the thread's calls have got their number.
    pub fn set_settled(&self, what: Counted, count: u64) {
        self.settled[what.row()].store(count, Ordering::Relaxed);
    }

    /// The credit that is being called back.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Remembers the credit that is being called back.
    pub fn set_given(&self, limit: u64) {
        self.given.store(limit, Ordering::Relaxed);
    }

    /// Which of the process's slots it is.
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Where the thread that counts here keeps the address of its cells; 0 for none.
    pub fn block(&self) -> usize {
        self.block.load(Ordering::Relaxed)
    }

    /// Says where the thread that counts here keeps the address of its cells.
    pub fn set_block(&self, block: usize) {
        self.block.store(block, Ordering::Relaxed);
    }

    /// The thread's ranges that an iteration ends with.
    pub fn open_ranges(&self) -> &OpenRanges {
        &self.open
    }

    /// Whether a call of the thread has its number and has not gone on.
    pub fn is_beginning(&self) -> bool {
        self.begins.load(Ordering::Acquire)
    }

    /// Says whether a call of the thread has its number and has not gone on.
    pub fn set_beginning(&self, begins: bool) {
        self.begins.store(begins, Ordering::Release);
    }

    /// A new thread counts here.
    pub fn take(&self) {
        self.taken.store(true, Ordering::Release);
    }

    /// Leaves the slot to the next new thread.
    pub fn leave(&self) {
        self.open.clear();
        self.set_beginning(false);
        self.taken.store(false, Ordering::Release);
    }

    /// Whether a thread counts here.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_lie_where_the_assembler_looks() {
        let slot = Slot::new(0, |_| 7);
        let first: *const Cell = slot.cells(false);
        for what in Counted::all() {
            let cell: *const Cell = slot.live(what);
            assert_eq!(first.addr() + cell_offset(what), cell.addr());
        }
    }
}
