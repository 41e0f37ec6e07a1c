//! The header block of a record: data about the process, its clock and its counters. An anchor is one moment, read on
//! several clocks. A window is a period in which events are recorded in detail.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::check::Words;
use crate::counter::Counter;
use crate::histogram::SharedHistogram;
use crate::layout::{ANCHORS, CHUNK_BYTES, COUNTERS, EVENT_BYTES, HEADER_BYTES, MAGIC, VERSION};

/// The clock that a record's ticks come from, which determines their unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ClockKind {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic = 0,
    /// The processor's counter (TSC, CNTVCT). The anchors convert it to nanoseconds.
    Counter = 1,
}

/// The way in which the process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Ended {
    /// The process still runs, or the library did not see its end (for example after SIGKILL).
    Not = 0,
    /// The process ended normally, so that its exit handlers ran.
    InOrder = 1,
    /// The process ended at once, through `_exit` or through a signal that the library saw.
    AtOnce = 2,
}

/// A moment, read on three clocks, so that a time on one clock can be converted to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The time on the record's own clock, in ticks.
    pub ticks: u64,
    /// The time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// The time on `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub unix_ns: u64,
}

#[repr(C)]
pub(crate) struct AnchorPlace {
    /// 1 plus the number of anchors that were stored before this one. It is set to 0 before the other fields are
    /// written, and to its new value after them, so 0 means that the anchor is incomplete.
    pub(crate) order: AtomicU64,
    pub(crate) ticks: AtomicU64,
    pub(crate) monotonic_ns: AtomicU64,
    pub(crate) unix_ns: AtomicU64,
}

/// The part of the header that changes while the process runs. Any number of threads may write it at the same
/// time.
#[repr(C)]
pub(crate) struct Figures {
    pub(crate) anchors: [AnchorPlace; ANCHORS],
    pub(crate) counters: [AtomicU64; COUNTERS],
    pub(crate) outside: SharedHistogram,
}

impl Figures {
    pub(crate) const BYTES: usize = size_of::<Self>();

    const fn words(&self) -> &[AtomicU64] {
        let length = Self::BYTES / size_of::<u64>();
        // SAFETY: the struct consists only of this number of AtomicU64 (C layout, no padding).
        unsafe { slice::from_raw_parts(std::ptr::from_ref(self).cast(), length) }
    }
}

/// A copy of [`Figures`] (anchors, counters and histogram) as of one moment, with a check (checksum).
#[repr(C)]
pub(crate) struct Snapshot {
    /// 1 plus the number of snapshots that were taken before this one.
    pub(crate) order: AtomicU64,
    /// The check (checksum) of the record's id, `order`, and everything after this field.
    pub(crate) check: AtomicU64,
    /// The final size of the file in bytes; 0 while the process runs, or if the size is not known.
    pub(crate) length: AtomicU64,
    /// The way in which the process ended, as a value of [`Ended`].
    pub(crate) ended: AtomicU64,
    pub(crate) figures: Figures,
    reserved: [AtomicU64; 120],
}

/// The header block of a record, in memory that is mapped to the record's file, or in the heap. A block of zeros
/// belongs to a record that has not begun.
#[repr(C)]
pub struct HeaderBlock {
    /// The constant [`MAGIC`]. It is written when the record begins, after the fields that never change.
    magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) header_bytes: AtomicU32,
    pub(crate) chunk_bytes: AtomicU32,
    pub(crate) event_bytes: AtomicU32,
    pub(crate) pid: AtomicU32,
    pub(crate) parent: AtomicU32,
    pub(crate) ended: AtomicU32,
    pub(crate) clock: AtomicU32,
    pub(crate) anchors_taken: AtomicU64,
    /// The record's id, which is included in the checks (checksums) of its chunks.
    pub(crate) id: AtomicU64,
    /// The check (checksum) of the fields that never change: versions, sizes, processes, clock and id.
    pub(crate) check: AtomicU64,
    pub(crate) length: AtomicU64,
    pub(crate) snapshots_taken: AtomicU64,
    /// 1 while a thread is taking a snapshot.
    is_busy: AtomicU32,
    reserved: [AtomicU32; 43],
    pub(crate) figures: Figures,
    more: [AtomicU64; 92],
    /// The two latest snapshots. They are written in turn, so that one of them is whole even if the process
    /// is killed while it writes the other.
    pub(crate) snapshots: [Snapshot; 2],
}

const _: () = assert!(size_of::<HeaderBlock>() <= HEADER_BYTES);
const _: () = assert!(offset_of!(HeaderBlock, id) == 48);
const _: () = assert!(offset_of!(HeaderBlock, figures) == 256);
const _: () = assert!(offset_of!(HeaderBlock, figures.counters) == 2304);
const _: () = assert!(offset_of!(HeaderBlock, figures.outside) == 4352);
const _: () = assert!(offset_of!(HeaderBlock, snapshots) == 20480);
const _: () = assert!(size_of::<Snapshot>() == 20480);

impl HeaderBlock {
    /// The offsets of the 32-bit fields that are written once, in the order in which their check (checksum) is
    /// computed. The id comes after them in this order.
    pub(crate) const STAYS: [usize; 7] = [
        core::mem::offset_of!(Self, version),
        core::mem::offset_of!(Self, header_bytes),
        core::mem::offset_of!(Self, chunk_bytes),
        core::mem::offset_of!(Self, event_bytes),
        core::mem::offset_of!(Self, pid),
        core::mem::offset_of!(Self, parent),
        core::mem::offset_of!(Self, clock),
    ];

    /// Returns the header block at an address.
    ///
    /// # Safety
    /// The [`HEADER_BYTES`] that begin at `address` must be aligned to 8, readable and writable for `'a`, and written
    /// only through header blocks.
    #[must_use]
    pub const unsafe fn at<'a>(address: NonNull<u8>) -> &'a Self {
        // SAFETY: the caller promises memory of this size and alignment for `'a`. The block consists of
        // atomics, for which every bit pattern is valid.
        unsafe { address.cast().as_ref() }
    }

    /// Begins a record in a block of zeros. The caller should store the first anchor (the same moment on three
    /// clocks) right afterwards. `id` must differ from the id of every other record.
    pub fn begin(&self, id: u64, pid: u32, parent: u32, clock: ClockKind) {
        let store = |to: &AtomicU32, value: u32| to.store(value.to_le(), Ordering::Relaxed);
        store(&self.version, VERSION);
        store(&self.header_bytes, HEADER_BYTES as u32);
        store(&self.chunk_bytes, CHUNK_BYTES as u32);
        store(&self.event_bytes, EVENT_BYTES as u32);
        store(&self.pid, pid);
        store(&self.parent, parent);
        store(&self.clock, clock as u32);
        store(&self.ended, Ended::Not as u32);
        self.id.store(id.to_le(), Ordering::Relaxed);
        let stays = [
            &self.version,
            &self.header_bytes,
            &self.chunk_bytes,
            &self.event_bytes,
        ]
        .into_iter()
        .chain([&self.pid, &self.parent, &self.clock]);
        let stays = stays.map(|word| u32::from_le(word.load(Ordering::Relaxed)).into());
        let check = Words::check_all(stays.chain([id]));
        self.check.store(check.to_le(), Ordering::Relaxed);
        self.magic
            .store(u64::from_ne_bytes(MAGIC), Ordering::Release);
    }

    /// Returns the record's id, which is needed to begin a chunk.
    #[must_use]
    #[inline]
    pub fn id(&self) -> u64 {
        u64::from_le(self.id.load(Ordering::Relaxed))
    }

    /// Stores the way in which the process ended, and the file's size in bytes (0 if it is not known). After this call,
    /// a reader ignores further changes of the header, such as those of counters. It still reads events that are
    /// appended.
    pub fn finish(&self, ended: Ended, length: u64) {
        self.length.store(length.to_le(), Ordering::Relaxed);
        self.take_snapshot(ended, length);
        self.ended.store((ended as u32).to_le(), Ordering::Release);
    }

    /// Takes a snapshot of counters, histogram and anchors, which takes some microseconds. A reader uses the latest
    /// snapshot, and adds the amounts by which the counters have grown since then. If another thread is already
    /// taking a snapshot, returns at once.
    pub fn snapshot(&self) {
        if self.is_busy.swap(1, Ordering::Acquire) == 0 {
            self.take_snapshot(Ended::Not, 0);
            self.is_busy.store(0, Ordering::Release);
        }
    }

    /// Takes a snapshot even if another thread is still taking one, which may happen at the end of the process.
    /// Snapshots alternate between two entries, so the two threads write to different entries.
    fn take_snapshot(&self, ended: Ended, length: u64) {
        let order = self.snapshots_taken.fetch_add(1, Ordering::AcqRel) + 1;
        let snapshot = &self.snapshots[order as usize % 2];
        let ended = ended as u64;
        let mut check = Words::new();
        for word in [self.id(), order, length, ended] {
            check.add(word);
        }
        snapshot.length.store(length.to_le(), Ordering::Release);
        snapshot.ended.store(ended.to_le(), Ordering::Release);
        for (to, from) in snapshot.figures.words().iter().zip(self.figures.words()) {
            let word = from.load(Ordering::Relaxed);
            check.add(u64::from_le(word));
            to.store(word, Ordering::Release);
        }
        snapshot.order.store(order.to_le(), Ordering::Release);
        let check = check.check();
        snapshot.check.store(check.to_le(), Ordering::Release);
    }

    /// Adds to a counter. Several threads may call this function at the same time.
    #[inline]
    pub fn add(&self, counter: Counter, more: u64) {
        self.figures.counters[counter.index()].fetch_add(more, Ordering::Relaxed);
    }

    /// Stores the value of a counter that another part of the library keeps up to date.
    #[inline]
    pub fn set(&self, counter: Counter, value: u64) {
        self.figures.counters[counter.index()].store(value, Ordering::Relaxed);
    }

    /// Returns the current value of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.figures.counters[counter.index()].load(Ordering::Relaxed)
    }

    /// Returns the histogram of durations, in ticks, of the iterations outside windows.
    #[must_use]
    #[inline]
    pub const fn outside(&self) -> &SharedHistogram {
        &self.figures.outside
    }

    /// Stores an anchor (the same moment on three clocks). Called at the start, when windows open and close, from time
    /// to time in between, and at the end. The clock is assumed to run evenly between two anchors. Half of the places
    /// keep the first anchors; later anchors overwrite each other in the other half, the oldest first.
    pub fn anchor(&self, anchor: Anchor) {
        let order = self.anchors_taken.fetch_add(1, Ordering::Relaxed);
        let half = ANCHORS as u64 / 2;
        let at = if order < half {
            order
        } else {
            half + order % half
        };
        let place = &self.figures.anchors[at as usize];
        place.order.store(0, Ordering::Release);
        place.ticks.store(anchor.ticks.to_le(), Ordering::Release);
        place
            .monotonic_ns
            .store(anchor.monotonic_ns.to_le(), Ordering::Release);
        place
            .unix_ns
            .store(anchor.unix_ns.to_le(), Ordering::Release);
        place.order.store((order + 1).to_le(), Ordering::Release);
    }
}

// Counters and histograms are incremented in place, in the processor's byte order. The file's byte order is
// little-endian, so the processor's must be, too.
#[cfg(target_endian = "big")]
compile_error!("records are written in place, in little-endian memory");
