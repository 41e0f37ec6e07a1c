//! Reads the memory of another process, and the list of its mappings.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::process;

/// The memory of a process, for reading. If the process starts another program (exec), this value still refers to the
/// old program's memory, and reads fail.
pub(crate) struct ProcessMemory(File);

impl ProcessMemory {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        File::open(process::folder(pid).join("mem")).map(Self)
    }

    /// Fills `buffer` from the process's memory at `address`. Returns false if not all of the requested memory is
    /// mapped.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, address).is_ok()
    }

    /// Fills `buffer` from the process's memory at `address`, up to the first byte that is not mapped. Returns the
    /// number of bytes read.
    pub(crate) fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, address + read as u64) {
                Ok(more @ 1..) => read += more,
                _ => break,
            }
        }
        read
    }

    pub(crate) fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes).then_some(bytes)
    }

    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// Returns `length` bytes of the process's memory, or `None` if not all of them are mapped.
    pub(crate) fn some(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes).then_some(bytes)
    }
}

/// One mapping in the memory of a process: a line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub is_executable: bool,
    pub is_writable: bool,
    /// The mapped file's path, or a name such as `[stack]`. Empty for anonymous memory.
    pub path: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        let offset = words.next()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            is_executable: rights.get(2) == Some(&b'x'),
            is_writable: rights.get(1) == Some(&b'w'),
            path: words.nth(2).unwrap_or_default().trim_start().to_owned(),
        })
    }
}

/// Returns all mappings in the memory of a process, ordered by address.
pub(crate) fn maps(pid: i32) -> io::Result<Vec<Mapping>> {
    let text = fs::read(process::folder(pid).join("maps"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(Mapping::parse).collect())
}

/// Returns the page-aligned address of at least `size` unmapped bytes. The address is in the middle of the largest
/// gap between two mappings, because stacks and the heap grow at the edges of gaps. Returns `None` if no gap is
/// larger than four times `size`.
pub(crate) fn free(maps: &[Mapping], size: u64) -> Option<u64> {
    const PAGE: u64 = 4096;
    let gaps = maps
        .windows(2)
        .map(|pair| (pair[0].end, pair[1].start))
        // Addresses from 2^47 on belong to the kernel.
        .filter(|(_, end)| *end < 1 << 47);
    let (start, end) = gaps.max_by_key(|(start, end)| end.saturating_sub(*start))?;
    let middle = start + (end - start) / 2;
    (end - start > size * 4).then_some(middle & !(PAGE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_with_and_without_a_name() {
        let line =
            "7f00a000-7f00c000 r-xp 00002000 08:01 1234                     /a b/c.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset),
            (0x7f00_a000, 0x7f00_c000, 0x2000)
        );
        assert!(mapping.is_executable && !mapping.is_writable);
        assert_eq!(mapping.path, "/a b/c.so (deleted)");
        let nameless = Mapping::parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(nameless.is_writable && nameless.path.is_empty());
        assert_eq!(Mapping::parse(""), None);
    }

    #[test]
    fn a_free_place_lies_in_the_middle_of_the_largest_gap() {
        let mapping = |start, end| Mapping {
            start,
            end,
            offset: 0,
            is_executable: false,
            is_writable: true,
            path: String::new(),
        };
        let maps = [
            mapping(0x1000, 0x2000),
            mapping(0x4000, 0x5000),
            mapping(0x10_5000, 0x10_6000),
            mapping(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000),
        ];
        assert_eq!(free(&maps, 0x1000), Some(0x8_5000));
        assert_eq!(free(&maps, 0x10_0000), None);
        let here = maps_of_this_process();
        let place = free(&here, 1 << 20).unwrap();
        assert!(
            here.iter()
                .all(|mapping| mapping.end <= place || mapping.start >= place + (1 << 20))
        );
    }

    fn maps_of_this_process() -> Vec<Mapping> {
        maps(std::process::id().cast_signed()).unwrap()
    }

    #[test]
    fn memory_is_read_where_something_is_mapped() {
        let memory = ProcessMemory::open(std::process::id().cast_signed()).unwrap();
        let word = 0x1234_5678_9abc_u64;
        let address = (&raw const word).expose_provenance() as u64;
        assert_eq!(memory.word(address), Some(word));
        assert_eq!(memory.word(0x10), None);
    }
}
