//! Reads the memory of a loaded module, only inside its segments.

use core::ffi::CStr;
use core::ops::Range;
use core::ptr::with_exposed_provenance;
use core::slice;
use core::sync::atomic::AtomicUsize;

use libc::{Elf64_Phdr, PF_R, PF_W, PT_LOAD};

/// The segments of a loaded module. Its tables are read through this type, and nothing outside the segments
/// is read, even if a damaged table refers to it.
///
/// A `Memory` is valid as long as the module stays loaded. [`super::walk`] keeps a module loaded while it visits the
/// module.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// The load bias: the address of a byte in memory minus its virtual address in the module's file.
    base: usize,
    headers: *const Elf64_Phdr,
    header_count: usize,
}

impl Memory {
    /// Returns the memory of the module that the loader describes.
    ///
    /// # Safety
    /// The description comes from the loader, and its module stays loaded as long as the result is used.
    pub(crate) unsafe fn described_by(info: &libc::dl_phdr_info) -> Self {
        Self {
            base: info.dlpi_addr as usize,
            headers: info.dlpi_phdr,
            header_count: info.dlpi_phnum.into(),
        }
    }

    pub(crate) fn headers(&self) -> &[Elf64_Phdr] {
        // SAFETY: the loader's table has this length, and stays as long as the module (see `described_by`).
        unsafe { slice::from_raw_parts(self.headers, self.header_count) }
    }

    /// Converts an address in the module's file to an address in memory.
    pub(crate) const fn address(&self, address: u64) -> usize {
        self.base.wrapping_add(address as usize)
    }

    /// Returns the load bias: the number to add to a virtual address in the module's file to get the address in memory.
    pub(crate) const fn base(&self) -> usize {
        self.base
    }

    /// Returns the address ranges of the segments that are mapped with all of these rights (`PF_R`, `PF_W`, `PF_X`).
    fn segments(&self, rights: u32) -> impl Iterator<Item = Range<usize>> {
        let mapped = self
            .headers()
            .iter()
            .filter(move |header| header.p_type == PT_LOAD && header.p_flags & rights == rights);
        mapped.map(|header| {
            self.address(header.p_vaddr)..self.address(header.p_vaddr.wrapping_add(header.p_memsz))
        })
    }

    /// Returns the number of bytes from `address` to the end of its segment; `None` if `address` is in no
    /// segment with these rights.
    fn room_at(&self, address: usize, rights: u32) -> Option<usize> {
        self.segments(rights)
            .find(|segment| segment.contains(&address))
            .map(|segment| segment.end - address)
    }

    /// Returns the end address of the file's data in the segment that contains `address`. The rest of the segment is
    /// zeros that are not in the file. Returns `None` if `address` lies in no segment's file data.
    pub(crate) fn file_end(&self, address: usize) -> Option<usize> {
        let loaded = self
            .headers()
            .iter()
            .filter(|header| header.p_type == PT_LOAD);
        loaded
            .map(|header| {
                let start = self.address(header.p_vaddr);
                start..start.wrapping_add(header.p_filesz as usize)
            })
            .find(|range| range.contains(&address))
            .map(|range| range.end)
    }

    /// Fills `buffer` with the bytes from `address` on. Returns false and reads nothing if not all bytes are
    /// mapped.
    #[must_use]
    pub(crate) fn read(&self, address: usize, buffer: &mut [u8]) -> bool {
        let is_there = self
            .room_at(address, PF_R)
            .is_some_and(|room| buffer.len() <= room);
        if is_there {
            // SAFETY: the bytes lie in a segment of the module that is mapped for reading.
            unsafe {
                with_exposed_provenance::<u8>(address)
                    .copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len());
            }
        }
        is_there
    }

    /// Returns the entries of a table at `address`, each of `N` bytes, up to the end of the segment. There are none if
    /// `address` is not in a readable segment.
    pub(crate) fn table<const N: usize>(&self, address: usize) -> impl Iterator<Item = [u8; N]> {
        let room = self.room_at(address, PF_R).unwrap_or(0);
        (0..room / N).map(move |index| {
            let place = with_exposed_provenance::<[u8; N]>(address + index * N);
            // SAFETY: the entry lies in a segment of the module that is mapped for reading.
            unsafe { place.read() }
        })
    }

    /// Returns the `N` bytes at `address`, or `None` if they are not in a readable segment.
    pub(crate) fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
        self.table(address).next()
    }

    /// Returns the 16-bit number at `address`, or `None` if the number is not in a readable segment.
    pub(crate) fn half(&self, address: usize) -> Option<u16> {
        self.bytes(address).map(u16::from_le_bytes)
    }

    /// Returns the 32-bit number at `address`, or `None` if the number is not in a readable segment.
    pub(crate) fn word(&self, address: usize) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// Returns the terminated string at `address`. Returns `None` if no terminator is among the first `most` bytes
    /// that lie in the readable segment.
    pub(crate) fn string(&self, address: usize, most: usize) -> Option<&CStr> {
        let room = self.room_at(address, PF_R)?.min(most);
        // SAFETY: the bytes lie in a segment of the module that is mapped for reading, in a table that no code writes
        // to.
        let bytes = unsafe { slice::from_raw_parts(with_exposed_provenance::<u8>(address), room) };
        CStr::from_bytes_until_nul(bytes).ok()
    }

    /// Returns the pointer-sized word at `address`. Returns `None` if the word is not aligned, or if no segment that
    /// is both readable and writable contains it.
    pub(crate) fn slot(&self, address: usize) -> Option<&AtomicUsize> {
        let room = self.room_at(address, PF_R | PF_W)?;
        let is_whole = address.is_multiple_of(align_of::<usize>()) && room >= size_of::<usize>();
        // SAFETY: the word is aligned, lies in a readable segment of the module, and other threads write it only as a
        // whole.
        is_whole.then(|| unsafe { &*with_exposed_provenance::<AtomicUsize>(address) })
    }
}

/// Returns the 64-bit number at `offset` in a table entry, or 0 if the entry is too short.
pub(crate) fn double_word(entry: &[u8], offset: usize) -> u64 {
    let bytes = entry.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf;

    static TEXT: &CStr = c"a string of this module";

    #[test]
    fn nothing_is_read_outside_the_segments() {
        let module = elf::containing(TEXT.as_ptr().addr()).unwrap();
        let memory = module.memory;
        let at = TEXT.as_ptr().expose_provenance();
        assert_eq!(memory.string(at, 100), Some(TEXT));
        assert_eq!(
            memory.string(at, TEXT.count_bytes()),
            None,
            "its end is too far"
        );
        assert_eq!(memory.bytes(at), Some(*b"a string"));
        let end = at + memory.room_at(at, PF_R).unwrap();
        assert!(memory.bytes::<8>(end - 8).is_some());
        assert!(memory.bytes::<8>(end - 7).is_none());
        assert!(!memory.read(end - 7, &mut [0; 8]));
        assert!(memory.word(0).is_none());
        assert!(memory.slot(at).is_none(), "not the loader's to write");
    }

    #[test]
    fn symbols_are_found_as_the_loader_finds_them() {
        let mut found = None;
        elf::walk(|module| {
            found = module.defines(c"getpid", None);
            found.is_some()
        });
        // SAFETY: the name is terminated. RTLD_DEFAULT searches the modules that the process started with.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
        assert_eq!(found, Some(expected));
        let us = elf::containing(symbols_are_found_as_the_loader_finds_them as *const () as usize);
        assert!(us.is_some_and(|us| us.asks_for(c"dl_iterate_phdr")));
    }
}
