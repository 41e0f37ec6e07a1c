//! The cells in which each thread counts its calls.
//!
//! A thread adds to its own cells with plain stores, so that sixteen threads count as cheaply as one. A
//! cell's *limit* is how far its thread may count before it has to stop and ask; see [`super::ledger`]. Cells
//! outlive their thread: the next new thread takes them over, with their counts, so that no call is lost and
//! ten thousand short threads need only as many cells as threads ran at the same time.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tllmprof_calls::Kind;

use super::counted::{Counted, ROWS};
use super::open::OpenRanges;

/// A limit that is never exceeded.
pub const UNLIMITED: u64 = u64::MAX;

/// One thread's count of one call.
#[repr(C)]
pub struct Cell {
    count: AtomicU64,
    limit: AtomicU64,
}

impl Cell {
    /// Offsets of the fields in bytes, for the assembler.
    pub const COUNT: usize = core::mem::offset_of!(Self, count);
    pub const LIMIT: usize = core::mem::offset_of!(Self, limit);

    const fn new(limit: u64) -> Self {
        Self {
            count: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        }
    }

    /// Returns the number of calls so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a call; only the cell's own thread may.
    pub fn add(&self) {
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Returns the count up to which the thread does not have to ask.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the count up to which the thread does not have to ask.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

/// Returns the offset in bytes from a thread's first cell to the one of `what`.
pub const fn cell_offset(what: Counted) -> usize {
    what.row() * size_of::<Cell>()
}

/// The counting state of one thread at a time.
#[repr(C)]
pub struct Slot {
    live: [Cell; ROWS],
    captured: [Cell; ROWS],
    settled: [AtomicU64; ROWS],
    /// The credit that is being called back.
    given: AtomicU64,
    taken: AtomicBool,
    /// True while the thread begins a step: a call of it has its number and has not continued.
    begins: AtomicBool,
    open: OpenRanges,
    /// The index among the process's slots.
    thread: u32,
    /// The address of the block through which the thread finds its cells; 0: none.
    block: AtomicUsize,
}

impl Slot {
    /// Slot number `thread`, in use. `limit` returns the limits for calls outside a stream capture; inside
    /// one, the thread only has to ask at calls that begin or end a capture, destroy an object or control the
    /// profiler.
    pub fn new(thread: u32, limit: impl Fn(Counted) -> u64) -> Self {
        let ends_capture = |what| match what {
            Counted::Call(call) => matches!(
                call.kind(),
                Kind::CaptureBegin | Kind::CaptureEnd | Kind::Profiler | Kind::Destroys(_)
            ),
            Counted::Named | Counted::Python => false,
        };
        Self {
            live: core::array::from_fn(|row| Cell::new(limit(Counted::from_row(row)))),
            captured: core::array::from_fn(|row| {
                let asks = ends_capture(Counted::from_row(row));
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

    /// Returns the cell in which calls outside a stream capture are counted.
    pub fn live(&self, what: impl Into<Counted>) -> &Cell {
        &self.live[what.into().row()]
    }

    /// Returns the cell in which calls are counted, outside a stream capture or inside one.
    pub fn cell(&self, what: Counted, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[what.row()]
        } else {
            self.live(what)
        }
    }

    /// Returns the first of the cells in which calls are counted now.
    pub fn cells(&self, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[0]
        } else {
            &self.live[0]
        }
    }

    /// Returns the number of the thread's calls that have got their numbers.
    pub fn settled(&self, what: Counted) -> u64 {
        self.settled[what.row()].load(Ordering::Relaxed)
    }

    /// Sets the number of the thread's calls that have got their numbers.
    pub fn set_settled(&self, what: Counted, count: u64) {
        self.settled[what.row()].store(count, Ordering::Relaxed);
    }

    /// Returns the credit that is being called back.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Remembers the credit that is being called back.
    pub fn set_given(&self, limit: u64) {
        self.given.store(limit, Ordering::Relaxed);
    }

    /// Returns the index among the process's slots.
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the address of the block in which the thread keeps the address of its cells; 0: none.
    pub fn block(&self) -> usize {
        self.block.load(Ordering::Relaxed)
    }

    /// Sets the address of the block in which the thread keeps the address of its cells.
    pub fn set_block(&self, block: usize) {
        self.block.store(block, Ordering::Relaxed);
    }

    /// Returns the thread's ranges at whose end an iteration ends.
    pub fn open_ranges(&self) -> &OpenRanges {
        &self.open
    }

    /// Returns true if a call of the thread has its number and has not continued.
    pub fn is_beginning(&self) -> bool {
        self.begins.load(Ordering::Acquire)
    }

    /// Sets whether a call of the thread has its number and has not continued.
    pub fn set_beginning(&self, begins: bool) {
        self.begins.store(begins, Ordering::Release);
    }

    /// Marks the slot as used by a new thread.
    pub fn take(&self) {
        self.taken.store(true, Ordering::Release);
    }

    /// Leaves the slot to the next new thread.
    pub fn leave(&self) {
        self.open.clear();
        self.set_beginning(false);
        self.taken.store(false, Ordering::Release);
    }

    /// Returns true if a thread uses the slot.
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
