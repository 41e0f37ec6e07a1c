//! Sizes and numbers of the format. All integers are little-endian.

/// The first bytes of a record.
pub const MAGIC: [u8; 8] = *b"TLLMPROF";

/// The version of the format. A reader refuses later versions. New kinds of events, counters, keys and flags
/// do not change it: a reader skips those that it does not know.
pub const VERSION: u32 = 2;

/// The version without checks. Its records can still be read.
pub(crate) const UNCHECKED: u32 = 1;

/// Bytes of the header block, at the file's start.
pub const HEADER_BYTES: usize = 64 * 1024;

/// Bytes of a chunk. Chunk `k` begins at `HEADER_BYTES + k * CHUNK_BYTES`. The size is a multiple of every
/// page size in use, so each chunk can be mapped separately.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 208;

/// Bytes of a chunk's header in [`UNCHECKED`] records.
pub(crate) const UNCHECKED_HEADER_BYTES: usize = 64;

/// Bytes of a chunk that hold events.
pub const PAYLOAD_BYTES: usize = CHUNK_BYTES - CHUNK_HEADER_BYTES;

/// Bytes of an event.
pub const EVENT_BYTES: usize = 24;

/// Bytes of events per check in a chunk's header, from the chunk's first event on. Of a damaged chunk, the
/// whole blocks before the damage can be read.
pub(crate) const BLOCK_BYTES: usize = 64 * EVENT_BYTES;

/// Whole blocks of a chunk.
pub(crate) const BLOCKS: usize = PAYLOAD_BYTES / BLOCK_BYTES;

/// The longest string, in bytes. A writer cuts longer ones.
pub const MAX_STRING: usize = 4096;

/// Counters in the header block.
pub const COUNTERS: usize = 256;

/// Anchors of the clock in the header block. The first half is kept; the second half is a ring of the latest
/// anchors.
pub const ANCHORS: usize = 64;

/// The first word of a chunk that is in use (`TLCK`).
pub const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"TLCK");

/// Returns the offset of chunk `number` in the file.
#[must_use]
pub const fn chunk_offset(number: u32) -> u64 {
    HEADER_BYTES as u64 + number as u64 * CHUNK_BYTES as u64
}

const _: () = assert!(PAYLOAD_BYTES.is_multiple_of(EVENT_BYTES));
const _: () = assert!((CHUNK_BYTES - UNCHECKED_HEADER_BYTES).is_multiple_of(EVENT_BYTES));
const _: () = assert!(CHUNK_HEADER_BYTES + MAX_STRING.next_multiple_of(EVENT_BYTES) < CHUNK_BYTES);
