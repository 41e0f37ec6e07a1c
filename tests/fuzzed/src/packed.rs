//! A compact encoding of records for the fuzzer, which works best with short inputs.
//!
//! A record consists of blocks of 64 KiB that are mostly zeros. Its packed form has only the parts that are not zeros.
//! Each part is an offset (u32), a length (u16) and the bytes. The last part has the record's length as its offset. A
//! change to one part does not move the others, and any bytes can be unpacked.

/// Maximum size of an unpacked record, in bytes: the header and seven chunks of 64 KiB. The limit keeps runs short,
/// because a reader looks at every byte.
const MAX_RECORD_BYTES: usize = 8 * 64 * 1024;
/// Minimum number of successive zeros that are left out of the packed form. Fewer zeros stay within a part.
const MIN_GAP: usize = 8;

/// Returns the record that the packed bytes encode.
#[must_use]
pub fn unpack(mut packed: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    while let Some((&[a, b, c, d, e, f], rest)) = packed.split_first_chunk() {
        let offset = u32::from_le_bytes([a, b, c, d]) as usize % (MAX_RECORD_BYTES + 1);
        let length = usize::from(u16::from_le_bytes([e, f])).min(rest.len());
        let (bytes, rest) = rest.split_at(length.min(MAX_RECORD_BYTES - offset));
        packed = rest;
        let end = offset + bytes.len();
        if record.len() < end {
            record.resize(end, 0);
        }
        record[offset..end].copy_from_slice(bytes);
    }
    record
}

/// Returns the packed form of a record. A record longer than the limit is cut.
#[must_use]
pub fn pack(record: &[u8]) -> Vec<u8> {
    let record = &record[..record.len().min(MAX_RECORD_BYTES)];
    let mut packed = Vec::new();
    let mut piece = |at: usize, bytes: &[u8]| {
        packed.extend_from_slice(&(at as u32).to_le_bytes());
        packed.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        packed.extend_from_slice(bytes);
    };
    let mut at = 0;
    while let Some(start) = record[at..].iter().position(|byte| *byte != 0) {
        let start = at + start;
        let most = &record[start..record.len().min(start + usize::from(u16::MAX))];
        let is_gap = |zeros: &[u8]| zeros.iter().all(|byte| *byte == 0);
        let length = most.windows(MIN_GAP).position(is_gap).unwrap_or(most.len());
        piece(start, &record[start..start + length]);
        at = start + length;
    }
    piece(record.len(), &[]);
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        let mut sparse = vec![0; 200_000];
        (0..sparse.len())
            .step_by(70)
            .for_each(|at| sparse[at] = at as u8 | 1);
        for record in [
            vec![],
            vec![0; 5],
            vec![9; 70_000],
            vec![1; MAX_RECORD_BYTES],
            sparse,
        ] {
            assert!(unpack(&pack(&record)) == record);
        }
    }

    #[test]
    fn any_bytes_can_be_unpacked() {
        for bytes in [&[255; 100][..], &[0; 7], &[1, 2, 3]] {
            assert!(unpack(bytes).len() <= MAX_RECORD_BYTES);
        }
    }
}
