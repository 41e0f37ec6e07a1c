//! The layout of a ring (the file with a process's latest steps and NCCL collectives).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::operation::{Collective, Operation};

/// The first bytes of a ring's file, by which a reader recognizes it.
pub const RING_MAGIC: [u8; 8] = *b"TLLMRING";
/// The version of the format. A reader refuses later versions.
pub const RING_VERSION: u32 = 2;
/// The first version of the format in which sends and receives are counted separately for each other rank
/// ([`DirectionPlace`]).
pub(super) const COUNTS_BY_PEER: u32 = 2;
/// The size of a ring's file in bytes.
pub const RING_BYTES: usize = 64 << 10;

/// The longest name of a host, a run or a boot in a ring, in bytes. Longer names are truncated.
pub(super) const NAME_BYTES: usize = 64;
/// The longest name of a group, in bytes.
pub(super) const GROUP_BYTES: usize = 16;
pub(super) const MAX_GROUPS: usize = 8;
/// The number of communicators that the ring can hold at a time.
pub(super) const MAX_COMMUNICATORS: usize = 64;
pub(super) const STEPS: usize = 128;
pub(super) const CAPTURED: usize = 256;
pub(super) const COLLECTIVES: usize = 512;
/// The maximum number of directions that the ring can count. A direction is the sends to one other rank, or the
/// receives from it.
pub(super) const DIRECTIONS: usize = 256;

/// An entry of the ring for one step. `order` is 1 plus the number of earlier steps. `order` is 0
/// while the entry is being written, and is set last.
#[repr(C)]
pub(super) struct StepPlace {
    pub(super) order: AtomicU64,
    pub(super) number: AtomicU64,
    pub(super) begin_ns: AtomicU64,
    /// The time when the step ended; 0 if it has not ended.
    pub(super) end_ns: AtomicU64,
}

/// An entry of the ring for one collective, send or receive. Equal calls that were captured into a graph one after
/// another share one entry. `order` is 1 plus the number of entries that were written before to the same array. It is 0
/// while the entry is being written, and is set last.
#[repr(C)]
pub(super) struct CollectivePlace {
    pub(super) order: AtomicU64,
    pub(super) communicator: AtomicU64,
    /// The sequence number of the call in the low 48 bits, then 8 bits for the data type and 8 bits for the operation.
    /// Each communicator numbers its collectives. Sends and receives are numbered separately for each other rank.
    pub(super) what: AtomicU64,
    pub(super) count: AtomicU64,
    pub(super) stream: AtomicU64,
    pub(super) begin_ns: AtomicU64,
    /// The time when the call returned; 0 if it has not returned. In the entry of a call that is captured into a
    /// graph, this word is instead the number of times in a row that the call was captured.
    pub(super) end_ns: AtomicU64,
    /// The id of the calling thread in the low half. The high half is 1 plus the root rank of the operation, or 1
    /// plus the other rank of a send or receive; 0 if there is neither.
    pub(super) thread: AtomicU64,
}

#[repr(C)]
pub(super) struct CommunicatorPlace {
    /// The communicator's handle in this process; 0 if the entry is free.
    pub(super) handle: AtomicU64,
    pub(super) id: AtomicU64,
    /// The rank of the process in the low half and the communicator's size in the high half; 0 if they are
    /// not known.
    pub(super) rank: AtomicU64,
    /// The number of collectives (calls in which all ranks take part) so far on this communicator, not counting calls
    /// that were captured into graphs.
    pub(super) sequence: AtomicU64,
    /// The number of sends and receives so far on this communicator that no [`DirectionPlace`]
    /// counts, because all entries were in use.
    pub(super) uncounted: AtomicU64,
    pub(super) captured: AtomicU64,
}

/// An entry that counts the sends to another rank, or the receives from it.
#[repr(C)]
pub(super) struct DirectionPlace {
    /// The communicator, the other rank and the direction, as [`DirectionPlace::key`] encodes them;
    /// 0 if the entry is free.
    pub(super) key: AtomicU64,
    pub(super) count: AtomicU64,
}

#[repr(C)]
pub(super) struct GroupPlace {
    pub(super) name: [AtomicU64; GROUP_BYTES / 8],
    /// The rank of the process in the low half, and the group's size in the high half.
    pub(super) rank: AtomicU64,
}

/// A ring (the latest steps and NCCL collectives of a process), in memory that is mapped to a file. Times are in
/// nanoseconds of `CLOCK_MONOTONIC`, with a resolution of some milliseconds.
#[repr(C)]
pub struct RingBlock {
    /// [`RING_MAGIC`], which is written last.
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) pid: AtomicU32,
    pub(super) ended: AtomicU32,
    /// 1 if the library was loaded into a running process, so that earlier steps and calls are unknown.
    pub(super) is_late: AtomicU32,
    pub(super) begin_ns: AtomicU64,
    pub(super) begin_unix_ns: AtomicU64,
    pub(super) end_ns: AtomicU64,
    /// 1 plus the rank in the job; 0 if the rank is not known.
    pub(super) rank: AtomicU64,
    pub(super) steps_begun: AtomicU64,
    pub(super) step_thread: AtomicU64,
    pub(super) collectives_begun: AtomicU64,
    pub(super) captured: AtomicU64,
    pub(super) reserved: [AtomicU64; 5],
    pub(super) host: [AtomicU64; NAME_BYTES / 8],
    pub(super) run: [AtomicU64; NAME_BYTES / 8],
    pub(super) boot: [AtomicU64; NAME_BYTES / 8],
    pub(super) groups: [GroupPlace; MAX_GROUPS],
    pub(super) communicators: [CommunicatorPlace; MAX_COMMUNICATORS],
    pub(super) step_places: [StepPlace; STEPS],
    pub(super) captured_places: [CollectivePlace; CAPTURED],
    pub(super) collective_places: [CollectivePlace; COLLECTIVES],
    pub(super) directions: [DirectionPlace; DIRECTIONS],
}

const _: () = assert!(size_of::<RingBlock>() <= RING_BYTES);

/// The mask for the sequence number in [`CollectivePlace::what`].
pub(super) const SEQUENCE: u64 = (1 << 48) - 1;

pub(super) fn relaxed(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

pub(super) fn text(words: impl Iterator<Item = u64>) -> Vec<u8> {
    let bytes = words.flat_map(u64::to_le_bytes);
    bytes.take_while(|byte| *byte != 0).collect()
}

impl RingBlock {
    /// Returns the ring at an address.
    ///
    /// # Safety
    /// The [`RING_BYTES`] that begin at `address` must be aligned to 8, readable and writable for `'a`, and written
    /// only through rings.
    #[must_use]
    pub const unsafe fn at<'a>(address: NonNull<u8>) -> &'a Self {
        // SAFETY: the caller promises memory of this size and alignment for `'a`. The block consists of
        // atomics, for which every bit pattern is valid.
        unsafe { address.cast().as_ref() }
    }

    /// Returns the index of a communicator's entry in the ring.
    pub(super) fn index_of(&self, place: &CommunicatorPlace) -> usize {
        let offset = (&raw const *place).addr() - self.communicators.as_ptr().addr();
        offset / size_of::<CommunicatorPlace>()
    }
}

impl DirectionPlace {
    /// Returns the key of a direction: bit 0 is 1 for receives, the next 32 bits are the other
    /// rank, and the bits above are 1 plus the index of the communicator. The rank is in the low bits because the
    /// search for a key begins at the entry `key % DIRECTIONS`. So the searches for neighbouring ranks begin at
    /// different entries.
    pub(super) const fn key(communicator: usize, call: &Operation) -> u64 {
        let peer = match call.peer {
            Some(peer) => peer,
            None => 0,
        };
        let is_receive = matches!(call.collective, Collective::Receive);
        (communicator as u64 + 1) << 33 | (peer as u64) << 1 | is_receive as u64
    }

    /// Returns the index of the communicator in a key; `None` if the entry is free.
    pub(super) const fn communicator(key: u64) -> Option<usize> {
        (key as usize >> 33).checked_sub(1)
    }
}
