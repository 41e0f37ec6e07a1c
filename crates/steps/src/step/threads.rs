//! The cells (counters with a limit) in which each thread counts its calls.
//!
//! A thread increments its own cells with plain stores, so counting costs no more if there are many threads.
//! The *limit* of a cell is the count up to which its thread may continue without asking whether a call
//! begins an iteration (see [`super::ledger`]). Cells outlive their thread: a later thread takes them over
//! with their counts. So no call is lost, and ten thousand short threads need only as many cells as the
//! largest number of threads that ran at the same time.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tllmprof_calls::{CALLS, CallPurpose};

use super::counted::{Counted, ROWS};
use super::open::OpenRanges;
use super::polls::{CallsMade, Polls};

/// The limit of a cell (call counter) whose thread never has to ask whether a call begins an iteration: no count
/// exceeds this limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The number of calls of one kind that a thread has made, and the limit up to which the thread may make such
/// calls without reporting them.
#[repr(C)]
pub struct Cell {
    count: AtomicU64,
    limit: AtomicU64,
}

impl Cell {
    /// The offsets of the fields in bytes, for the assembly code that counts calls.
    pub const COUNT: usize = core::mem::offset_of!(Self, count);
    pub const LIMIT: usize = core::mem::offset_of!(Self, limit);

    const fn new(limit: u64) -> Self {
        Self {
            count: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        }
    }

    /// Returns the number of calls that have been counted in this cell so far, by all threads that have used it.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a call. Only the thread that uses the cell may call this.
    pub fn add(&self) {
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Returns the count up to which the thread may continue without asking whether a call begins an
    /// iteration.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the count up to which the thread may continue without asking whether a call begins an iteration.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

/// Returns the offset in bytes from the first cell (counter) of a thread's slot to the cell of `what`.
pub const fn cell_offset(what: Counted) -> usize {
    what.row() * size_of::<Cell>()
}

/// The rows (indexes of counters) of the calls that give the GPU work and do not wait for it.
const WORK_ROWS: [usize; count_rows(false)] = rows_of(false);
/// The rows (indexes of counters) of the calls that wait for the GPU.
const WAIT_ROWS: [usize; count_rows(true)] = rows_of(true);

/// If `waits` is true, returns true if calls of this row wait for the GPU. Otherwise returns true if they give the GPU
/// work and do not wait for it.
const fn belongs(row: usize, waits: bool) -> bool {
    let kind = CALLS[row].kind;
    match waits {
        true => kind.waits(),
        false => kind.gives_work() && !kind.waits(),
    }
}

const fn count_rows(waits: bool) -> usize {
    let (mut row, mut count) = (0, 0);
    while row < CALLS.len() {
        count += belongs(row, waits) as usize;
        row += 1;
    }
    count
}

const fn rows_of<const N: usize>(waits: bool) -> [usize; N] {
    let mut rows = [0; N];
    let (mut row, mut count) = (0, 0);
    while row < CALLS.len() {
        if belongs(row, waits) {
            rows[count] = row;
            count += 1;
        }
        row += 1;
    }
    rows
}

/// A thread's counters of calls, and its other data for counting steps. Only one thread at a time counts in a slot.
#[repr(C)]
pub struct Slot {
    live: [Cell; ROWS],
    captured: [Cell; ROWS],
    settled: [AtomicU64; ROWS],
    /// The limit that the thread's cell had before the thread's credit (calls that it may count without
    /// asking) was taken back.
    given: AtomicU64,
    taken: AtomicBool,
    /// True while the thread begins a step: its call has a number but has not yet continued to the intercepted
    /// function.
    begins: AtomicBool,
    open: OpenRanges,
    polls: Polls,
    /// The index of this slot among the slots of the process.
    thread: u32,
    /// The address of the thread's block (its record in this library), through which the thread finds its
    /// cells; 0 if no thread uses the slot.
    block: AtomicUsize,
}

impl Slot {
    /// Returns slot number `thread`, marked as used. `limit` returns the limit of each cell for calls outside
    /// a stream capture. Inside a capture, the thread has to ask only at calls that begin or end a capture,
    /// destroy an object or control the profiler.
    pub fn new(thread: u32, limit: impl Fn(Counted) -> u64) -> Self {
        let ends_capture = |what| match what {
            Counted::Call(call) => matches!(
                call.kind(),
                CallPurpose::CaptureBegin
                    | CallPurpose::CaptureEnd
                    | CallPurpose::Profiler
                    | CallPurpose::Destroys(_)
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
            polls: Polls::default(),
            thread,
            block: AtomicUsize::new(0),
        }
    }

    /// Returns the cell (a counter with a limit) in which calls of `what` outside a stream capture are counted.
    pub fn live(&self, what: impl Into<Counted>) -> &Cell {
        &self.live[what.into().row()]
    }

    /// Returns the cell (a counter with a limit) in which `what` is counted, either inside or outside a stream capture.
    pub fn cell(&self, what: Counted, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[what.row()]
        } else {
            self.live(what)
        }
    }

    /// Returns the first of the cells (counters with a limit) for calls inside or outside a stream capture. The
    /// assembly code that counts calls starts from this address.
    pub fn cells(&self, capturing: bool) -> &Cell {
        if capturing {
            &self.captured[0]
        } else {
            &self.live[0]
        }
    }

    /// Returns the number of the thread's calls of `what` that have got a number (their position among all
    /// threads' calls).
    pub fn settled(&self, what: Counted) -> u64 {
        self.settled[what.row()].load(Ordering::Relaxed)
    }

    /// Stores the number of the thread's calls of `what` that have got a number (their position among all
    /// threads' calls).
    pub fn set_settled(&self, what: Counted, count: u64) {
        self.settled[what.row()].store(count, Ordering::Relaxed);
    }

    /// Returns the limit that the thread's cell had before the thread's credit (calls that it may count without
    /// asking) was taken back.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Stores the limit of the thread's cell, before the thread's credit (calls that it may count without asking) is
    /// taken back.
    pub fn set_given(&self, limit: u64) {
        self.given.store(limit, Ordering::Relaxed);
    }

    /// Returns the index of this slot (a thread's counters of calls) among the slots of the process.
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the address of the block (the thread's record in this library) that stores the address of the thread's
    /// cells; 0 if no thread uses the slot.
    pub fn block(&self) -> usize {
        self.block.load(Ordering::Relaxed)
    }

    /// Sets the address of the block (the thread's record in this library) that stores the address of the thread's
    /// cells.
    pub fn set_block(&self, block: usize) {
        self.block.store(block, Ordering::Relaxed);
    }

    /// Returns the thread's open ranges whose end also ends an iteration.
    pub fn open_ranges(&self) -> &OpenRanges {
        &self.open
    }

    /// Returns the state of the thread's waits by polling. Only the thread that uses the slot may change it.
    pub fn polls(&self) -> &Polls {
        &self.polls
    }

    /// Returns the numbers of calls outside stream captures that gave the GPU work, and that waited for the GPU.
    pub fn calls_made(&self) -> CallsMade {
        let sum = |rows: &[usize]| rows.iter().map(|&row| self.live[row].count()).sum();
        CallsMade {
            work: sum(&WORK_ROWS),
            waits: sum(&WAIT_ROWS),
        }
    }

    /// Returns true if a call of the thread has a number but has not yet continued to the intercepted function.
    pub fn is_beginning(&self) -> bool {
        self.begins.load(Ordering::Acquire)
    }

    /// Sets or clears the flag that a call of the thread has a number but has not yet continued to the intercepted
    /// function.
    pub fn set_beginning(&self, begins: bool) {
        self.begins.store(begins, Ordering::Release);
    }

    /// Marks the slot (a thread's counters of calls) as used by a new thread.
    pub fn take(&self) {
        self.taken.store(true, Ordering::Release);
    }

    /// Marks the slot (a thread's counters of calls) as free for the next new thread.
    pub fn leave(&self) {
        self.open.clear();
        self.polls.clear();
        self.set_beginning(false);
        self.taken.store(false, Ordering::Release);
    }

    /// Returns true if a thread uses the slot (its counters of calls).
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_waits_are_added_up() {
        let slot = Slot::new(0, |_| 7);
        let mut expected = CallsMade::default();
        for row in CALLS {
            slot.live(row.call).add();
            expected.waits += u64::from(row.kind.waits());
            expected.work += u64::from(row.kind.gives_work() && !row.kind.waits());
        }
        assert!(expected.waits > 3 && expected.work > 5, "{expected:?}");
        assert_eq!(slot.calls_made(), expected);
    }

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
