//! The header block: who wrote the record, its clock, its counters.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counter::Counter;
use crate::histogram::{Histogram, SharedHistogram};
use crate::layout::{ANCHORS, CHUNK_BYTES, COUNTERS, EVENT_BYTES, HEADER_BYTES, MAGIC, VERSION};

/// What a record's ticks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ClockKind {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic = 0,
    /// The processor's counter (TSC, CNTVCT), which the anchors lead to nanoseconds.
    Counter = 1,
}

/// How the process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Ended {
    /// It runs, or was ended by something that it could not see.
    Not = 0,
    /// In order.
    InOrder = 1,
    /// At once: `_exit`, a signal that was seen.
    AtOnce = 2,
}

/// The same moment on three clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The record's clock.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, since 1970.
    pub unix_ns: u64,
}

#[repr(C)]
struct AnchorPlace {
    /// 1 and how many were taken before; 0 while it is being written. Written last.
    order: AtomicU64,
    ticks: AtomicU64,
    monotonic_ns: AtomicU64,
    unix_ns: AtomicU64,
}

/// The header block in memory that a file is mapped to. All zero is one that was not begun.
#[repr(C)]
pub struct HeaderBlock {
    /// [`MAGIC`], written last.
    magic: AtomicU64,
    version: AtomicU32,
    header_bytes: AtomicU32,
    chunk_bytes: AtomicU32,
    event_bytes: AtomicU32,
    pid: AtomicU32,
    parent: AtomicU32,
    ended: AtomicU32,
    clock: AtomicU32,
    anchors_taken: AtomicU64,
    reserved: [AtomicU64; 26],
    anchors: [AnchorPlace; ANCHORS],
    counters: [AtomicU64; COUNTERS],
    outside: SharedHistogram,
}

const _: () = assert!(size_of::<HeaderBlock>() <= HEADER_BYTES);
const _: () = assert!(offset_of!(HeaderBlock, anchors) == 256);
const _: () = assert!(offset_of!(HeaderBlock, counters) == 2304);
const _: () = assert!(offset_of!(HeaderBlock, outside) == 4352);

impl HeaderBlock {
    /// Bytes up to the end of the counters: what changes in a record without iterations.
    #[cfg(feature = "stream")]
    pub(crate) const COUNTED: usize = offset_of!(HeaderBlock, outside);

    /// The header block at an address.
    ///
    /// # Safety
    /// [`HEADER_BYTES`] from there, aligned to 8, can be read and written for `'a`, and are written
    /// through header blocks alone.
    #[must_use]
    pub const unsafe fn at<'a>(address: NonNull<u8>) -> &'a Self {
        // SAFETY: the caller promises memory of this size and alignment for `'a`, and the block consists of
        // atomics, for which every bit pattern is a value.
        unsafe { address.cast().as_ref() }
    }

    /// Begins a record in a block that was all zeros. The first anchor should follow at once.
    pub fn begin(&self, pid: u32, parent: u32, clock: ClockKind) {
        let store = |to: &AtomicU32, value: u32| to.store(value.to_le(), Ordering::Relaxed);
        store(&self.version, VERSION);
        store(&self.header_bytes, HEADER_BYTES as u32);
        store(&self.chunk_bytes, CHUNK_BYTES as u32);
        store(&self.event_bytes, EVENT_BYTES as u32);
        store(&self.pid, pid);
        store(&self.parent, parent);
        store(&self.clock, clock as u32);
        store(&self.ended, Ended::Not as u32);
        self.magic
            .store(u64::from_ne_bytes(MAGIC), Ordering::Release);
    }

    /// Says how the process ended.
    pub fn set_ended(&self, ended: Ended) {
        self.ended.store((ended as u32).to_le(), Ordering::Release);
    }

    /// Adds to a counter. Any number of threads may, at once.
    #[inline]
    pub fn add(&self, counter: Counter, more: u64) {
        self.counters[counter.index()].fetch_add(more, Ordering::Relaxed);
    }

    /// Sets a counter that is kept elsewhere.
    #[inline]
    pub fn set(&self, counter: Counter, value: u64) {
        self.counters[counter.index()].store(value, Ordering::Relaxed);
    }

    /// What a counter has come to.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter.index()].load(Ordering::Relaxed)
    }

    /// The durations, in ticks, of the iterations outside windows.
    #[must_use]
    #[inline]
    pub const fn outside(&self) -> &SharedHistogram {
        &self.outside
    }

    /// Keeps an anchor: at the start, where windows open and close, at the end, and now and then
    /// between. The clock between two anchors is taken to be even.
    pub fn anchor(&self, anchor: Anchor) {
        let order = self.anchors_taken.fetch_add(1, Ordering::Relaxed);
        let half = ANCHORS as u64 / 2;
        let at = if order < half {
            order
        } else {
            half + order % half
        };
        let place = &self.anchors[at as usize];
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

/// A header block, read.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    /// The process's parent.
    pub parent: u32,
    /// `None`: a way that is not known here.
    pub ended: Option<Ended>,
    pub clock: ClockKind,
    /// Those that are whole, in the order they were taken.
    pub anchors: Vec<Anchor>,
    /// The durations, in ticks, of the iterations outside windows.
    pub outside: Histogram,
    counters: [u64; COUNTERS],
}

impl Header {
    /// That of what was recorded by something else: no counters, and no iterations outside windows.
    #[must_use]
    pub fn new(pid: u32, clock: ClockKind, anchors: Vec<Anchor>) -> Self {
        Self {
            pid,
            parent: 0,
            ended: None,
            clock,
            anchors,
            outside: Histogram::default(),
            counters: [0; COUNTERS],
        }
    }

    /// What a counter had come to.
    #[must_use]
    pub const fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter.index()]
    }

    /// Reads a header block, of which `bytes` are there. What is missing is zeros.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Wrong> {
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(Wrong::Magic);
        }
        let u32_at = |at| take(bytes, at).map_or(0, u32::from_le_bytes);
        let u64_at = |at| take(bytes, at).map_or(0, u64::from_le_bytes);
        let version = u32_at(offset_of!(HeaderBlock, version));
        if version != VERSION {
            return Err(Wrong::Version(version));
        }
        let sizes = [
            (offset_of!(HeaderBlock, header_bytes), HEADER_BYTES),
            (offset_of!(HeaderBlock, chunk_bytes), CHUNK_BYTES),
            (offset_of!(HeaderBlock, event_bytes), EVENT_BYTES),
        ];
        if sizes.iter().any(|(at, size)| u32_at(*at) as usize != *size) {
            return Err(Wrong::Sizes);
        }
        let clock = match u32_at(offset_of!(HeaderBlock, clock)) {
            0 => ClockKind::Monotonic,
            1 => ClockKind::Counter,
            other => return Err(Wrong::Clock(other)),
        };
        let ended = match u32_at(offset_of!(HeaderBlock, ended)) {
            0 => Some(Ended::Not),
            1 => Some(Ended::InOrder),
            2 => Some(Ended::AtOnce),
            _ => None,
        };
        let mut anchors: Vec<_> = (0..ANCHORS)
            .map(|index| offset_of!(HeaderBlock, anchors) + index * size_of::<AnchorPlace>())
            .map(|at| {
                let anchor = Anchor {
                    ticks: u64_at(at + offset_of!(AnchorPlace, ticks)),
                    monotonic_ns: u64_at(at + offset_of!(AnchorPlace, monotonic_ns)),
                    unix_ns: u64_at(at + offset_of!(AnchorPlace, unix_ns)),
                };
                (u64_at(at + offset_of!(AnchorPlace, order)), anchor)
            })
            .filter(|(order, _)| *order != 0)
            .collect();
        anchors.sort_by_key(|(order, _)| *order);
        let counters_at = offset_of!(HeaderBlock, counters);
        let outside = bytes.get(offset_of!(HeaderBlock, outside)..).unwrap_or(&[]);
        let outside = outside.get(..SharedHistogram::BYTES).unwrap_or(outside);
        Ok(Self {
            pid: u32_at(offset_of!(HeaderBlock, pid)),
            parent: u32_at(offset_of!(HeaderBlock, parent)),
            ended,
            clock,
            anchors: anchors.into_iter().map(|(_, anchor)| anchor).collect(),
            outside: Histogram::decode(outside),
            counters: std::array::from_fn(|index| u64_at(counters_at + index * size_of::<u64>())),
        })
    }
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Why a header block is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Magic,
    Version(u32),
    Sizes,
    Clock(u32),
}

// Counters and histograms are added to in place, which has no byte order of its own.
#[cfg(target_endian = "big")]
compile_error!("records are written in place, in little-endian memory");
