//! Records as a fuzzer takes them: short.
//!
//! A record is blocks of 64 KiB that are mostly zeros at their ends. Packed, it is for each block its
//! bytes up to the zeros, behind their number (u16); a fuzzer's change then lands on something, and
//! every file of whole blocks can be written so. The first two bytes are how many the last block lacks.

use tllmprof_record::CHUNK_BYTES;

/// Blocks of an unpacked record, at most.
const BLOCKS: usize = 16;

/// The record that some bytes stand for.
#[must_use]
pub fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    let Some((lacking, mut rest)) = packed.split_first_chunk::<2>() else {
        return record;
    };
    for _ in 0..BLOCKS {
        let Some((length, behind)) = rest.split_first_chunk::<2>() else {
            break;
        };
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (block, behind) = behind.split_at(length);
        rest = behind;
        let end = record.len() + CHUNK_BYTES;
        record.extend_from_slice(block);
        record.resize(end, 0);
    }
    let lacking = usize::from(u16::from_le_bytes(*lacking));
    record.truncate(record.len().saturating_sub(lacking));
    record
}

/// A record, packed.
#[must_use]
pub fn pack(record: &[u8]) -> Vec<u8> {
    let lacking = record.len().next_multiple_of(CHUNK_BYTES) - record.len();
    let mut packed = (lacking as u16).to_le_bytes().to_vec();
    for block in record.chunks(CHUNK_BYTES) {
        let zeros = block.iter().rev().take_while(|byte| **byte == 0).count();
        // The last byte of a full block cannot be packed; it is in no event's kind.
        let length = (block.len() - zeros).min(usize::from(u16::MAX));
        packed.extend_from_slice(&(length as u16).to_le_bytes());
        packed.extend_from_slice(&block[..length]);
    }
    packed
}
