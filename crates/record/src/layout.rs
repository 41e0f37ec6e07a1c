//! Sizes and constants of the record's format. All integers are little-endian. A record consists of a header block and
//! of chunks, which hold the events.

/// The first bytes of a record, by which a reader recognizes it.
pub const MAGIC: [u8; 8] = *b"TLLMPROF";

/// The version of the format. A reader refuses later versions. New kinds of events, counters, data about the process
/// and flags do not change the version, because a reader skips kinds that it does not know.
pub const VERSION: u32 = 2;

/// The version of the format without checks (checksums). Records of this version can still be read.
pub(crate) const UNCHECKED: u32 = 1;

/// The size in bytes of the header block, which is at the start of the file.
pub const HEADER_BYTES: usize = 64 * 1024;

/// The size of a chunk in bytes. Chunk `k` begins at `HEADER_BYTES + k * CHUNK_BYTES`. The size is a multiple
/// of every page size in use, so that each chunk can be mapped separately.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The size of a chunk's header in bytes.
pub const CHUNK_HEADER_BYTES: usize = 208;

/// The size of a chunk's header in bytes, in records of version [`UNCHECKED`].
pub(crate) const UNCHECKED_HEADER_BYTES: usize = 64;

/// The number of bytes of a chunk that can hold events.
pub const PAYLOAD_BYTES: usize = CHUNK_BYTES - CHUNK_HEADER_BYTES;

/// The size of an event in bytes.
pub const EVENT_BYTES: usize = 24;

/// The size of a block of events in bytes. A chunk's header has a check (checksum) for each block. So in a
/// damaged chunk, the whole blocks before the damage can be read.
pub(crate) const BLOCK_BYTES: usize = 64 * EVENT_BYTES;

/// The number of whole blocks in a chunk.
pub(crate) const BLOCKS: usize = PAYLOAD_BYTES / BLOCK_BYTES;

/// The maximum length of a string in bytes. A writer truncates longer strings.
pub const MAX_STRING: usize = 4096;

/// The number of counters for which the header block has room.
pub const COUNTERS: usize = 256;

/// The number of anchors (the same moment on several clocks) in the header block. The first half is filled once and
/// kept. The second half is a ring of the latest anchors.
pub const ANCHORS: usize = 64;

/// The first word of a chunk that is in use (`TLCK`); an unused chunk has 0 there.
pub(crate) const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"TLCK");

/// Returns the offset of chunk `number` in the file.
#[must_use]
pub const fn chunk_offset(number: u32) -> u64 {
    HEADER_BYTES as u64 + number as u64 * CHUNK_BYTES as u64
}

const _: () = assert!(PAYLOAD_BYTES.is_multiple_of(EVENT_BYTES));
const _: () = assert!((CHUNK_BYTES - UNCHECKED_HEADER_BYTES).is_multiple_of(EVENT_BYTES));
const _: () = assert!(CHUNK_HEADER_BYTES + MAX_STRING.next_multiple_of(EVENT_BYTES) < CHUNK_BYTES);
