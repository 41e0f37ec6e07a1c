//! Copies several ranges of memory at nearly the same moment, in one system call. A range that turns out to be needed
//! later is copied separately.

use core::ffi::c_int;

use tllmprof_platform::peek::{self, MemoryRange};

/// The most bytes that one snapshot copies.
const MAX_BYTES: usize = 8 << 20;

/// Copies of several ranges of a process's memory, made with as few system calls as possible.
#[derive(Default)]
pub(crate) struct Snapshot {
    process: i32,
    spans: Vec<MemoryRange>,
    /// For each range in `spans`, the offset in `bytes` at which its copy begins.
    starts: Vec<usize>,
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that hold copies.
    copied: usize,
    /// The index in `spans` of the range that was found last. The next search begins there, because
    /// the next range usually follows it.
    last: usize,
}

impl Snapshot {
    /// Copies these ranges of memory in one system call. `process` is the id of this process. The copy ends before the
    /// first range that is not mapped, or that would exceed [`MAX_BYTES`] or [`peek::MAX_SPANS`].
    ///
    /// # Errors
    /// Returns the kernel's error if it refuses to copy at all.
    pub(crate) fn take(
        &mut self,
        process: i32,
        spans: impl IntoIterator<Item = MemoryRange>,
    ) -> Result<(), c_int> {
        self.process = process;
        self.spans.clear();
        self.starts.clear();
        let mut total = 0;
        for span in spans.into_iter().take(peek::MAX_SPANS) {
            if total + span.length > MAX_BYTES {
                break;
            }
            self.spans.push(span);
            self.starts.push(total);
            total += span.length;
        }
        if self.bytes.len() < total {
            self.bytes.resize(total, 0);
        }
        self.last = 0;
        self.copied = match peek::read(process, &self.spans, &mut self.bytes) {
            Ok(copied) => copied,
            Err(libc::EFAULT) => 0,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Returns the copy of a memory range, and copies the range first if necessary. Returns `None` if the range is
    /// not mapped, or if the snapshot would exceed [`MAX_BYTES`].
    pub(crate) fn get(&mut self, address: usize, length: usize) -> Option<&[u8]> {
        let at = self
            .find(address, length)
            .or_else(|| self.add(address, length))?;
        self.bytes.get(at..at + length)
    }

    /// Returns the offset of the range's copy in `bytes`, or `None` if it has not been copied.
    fn find(&mut self, address: usize, length: usize) -> Option<usize> {
        let has = |index: usize| {
            let offset = address.checked_sub(self.spans[index].address)?;
            let is_in = offset.checked_add(length)? <= self.spans[index].length;
            let at = self.starts[index] + offset;
            (is_in && at + length <= self.copied).then_some(at)
        };
        let (before, behind) = (0..self.last, self.last..self.spans.len());
        let (index, at) = behind
            .chain(before)
            .find_map(|index| Some((index, has(index)?)))?;
        self.last = index;
        Some(at)
    }

    fn add(&mut self, address: usize, length: usize) -> Option<usize> {
        let span = MemoryRange { address, length };
        // Drop the ranges that were not copied: one of them is not mapped, and the copy ended before it.
        let wanted = self.starts.partition_point(|start| *start < self.copied);
        self.spans.truncate(wanted);
        self.starts.truncate(wanted);
        let at = self.copied;
        if at + length > MAX_BYTES {
            return None;
        }
        if self.bytes.len() < at + length {
            self.bytes.resize(at + length, 0);
        }
        let copied = peek::read(self.process, &[span], &mut self.bytes[at..at + length]);
        if copied != Ok(length) {
            return None;
        }
        self.spans.push(span);
        self.starts.push(at);
        self.copied = at + length;
        Some(at)
    }
}

/// Returns the word at a byte offset of a copy, or 0 if the copy is too short.
pub(crate) fn word(bytes: &[u8], offset: usize) -> usize {
    bytes
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |word| usize::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use tllmprof_platform::ids;

    use super::*;

    fn span(words: &[u64]) -> MemoryRange {
        MemoryRange {
            address: words.as_ptr().addr(),
            length: size_of_val(words),
        }
    }

    #[test]
    fn what_was_copied_stays_as_it_was() {
        let mut snapshot = Snapshot::default();
        let mut words = vec![1_u64, 2, 3];
        let at = words.as_ptr().addr();
        snapshot.take(ids::process(), [span(&words)]).unwrap();
        words[1] = 7;
        assert_eq!(word(snapshot.get(at + 8, 8).unwrap(), 0), 2);
        // A range that is not in the snapshot is copied when it is requested.
        let more = [9_u64];
        assert_eq!(word(snapshot.get(more.as_ptr().addr(), 8).unwrap(), 0), 9);
        assert_eq!(word(snapshot.get(at, 8).unwrap(), 0), 1);
        assert_eq!(word(snapshot.get(at, 8).unwrap(), 1), 0);
        assert!(words.len() == 3);
    }

    #[test]
    fn what_is_behind_a_place_that_is_not_there_is_read_by_itself() {
        let mut snapshot = Snapshot::default();
        let (one, two) = ([1_u64, 2], [3_u64]);
        let nowhere = MemoryRange {
            address: 16,
            length: 8,
        };
        let spans = [span(&one), nowhere, span(&two)];
        snapshot.take(ids::process(), spans).unwrap();
        assert_eq!(word(snapshot.get(two.as_ptr().addr(), 8).unwrap(), 0), 3);
        assert_eq!(
            word(snapshot.get(one.as_ptr().addr() + 8, 8).unwrap(), 0),
            2
        );
        assert!(snapshot.get(16, 8).is_none());
        assert_eq!(word(snapshot.get(two.as_ptr().addr(), 8).unwrap(), 0), 3);
        // None of the ranges in this snapshot is mapped.
        snapshot.take(ids::process(), [nowhere]).unwrap();
        assert!(snapshot.get(16, 8).is_none() && snapshot.get(usize::MAX - 4, 8).is_none());
    }
}
