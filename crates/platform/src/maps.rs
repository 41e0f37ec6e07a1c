//! The memory mappings of the process, as the kernel lists them.

use core::fmt;
#[cfg(target_arch = "x86_64")]
use core::ops::Range;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[cfg(target_arch = "x86_64")]
use super::sorted::sorted;

/// One line of `/proc/self/maps`.
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub is_writable: bool,
    pub is_executable: bool,
    /// Inode number of the mapped file; 0 for memory without a file.
    pub inode: u64,
    path: Option<PathBuf>,
}

/// The error if the kernel's list of mappings cannot be read, for example in a sandbox without `/proc`. Contains the
/// system's error code (`errno`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable(pub i32);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = std::io::Error::from_raw_os_error(self.0);
        write!(f, "/proc/self/maps cannot be read: {error}")
    }
}

/// The mappings of the process, sorted by address.
pub struct Maps(Vec<Mapping>);

impl Maps {
    /// Reads the memory mappings of the process.
    ///
    /// # Errors
    /// Returns an error if `/proc/self/maps` cannot be read. For example, a sandbox may have no `/proc`.
    pub fn read() -> Result<Self, Unreadable> {
        let mut text = Vec::new();
        tllmprof_symbols::open(Path::new("/proc/self/maps"))
            .and_then(|mut file| file.read_to_end(&mut text))
            .map_err(|error| Unreadable(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(Self(
            text.split(|&byte| byte == b'\n')
                .filter_map(parse)
                .collect(),
        ))
    }

    /// Returns the mapping that contains `address`.
    pub fn at(&self, address: usize) -> Option<&Mapping> {
        let index = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(index).filter(|mapping| mapping.start <= address)
    }

    /// Returns the path of the file that is mapped at `address`, if there is one.
    pub fn file_at(&self, address: usize) -> Option<&Path> {
        self.at(address)?.path.as_deref()
    }

    /// Returns true if a file with this path is mapped anywhere.
    pub fn has_file(&self, path: &Path) -> bool {
        self.0
            .iter()
            .any(|mapping| mapping.path.as_deref() == Some(path))
    }

    /// Returns true if the file that is mapped at `address` has been deleted or replaced since it was mapped.
    pub fn is_deleted_at(&self, address: usize) -> bool {
        self.file_at(address)
            .is_some_and(|path| path.as_os_str().as_bytes().ends_with(DELETED))
    }

    /// Returns the free address ranges within `reach` bytes of `address`, in whole pages, the nearest first.
    #[cfg(target_arch = "x86_64")]
    pub fn free_near(&self, address: usize, reach: usize) -> Vec<Range<usize>> {
        const PAGE: usize = 4096;
        // The first pages cannot be mapped, so the search begins at 64 KiB. It ends at the last mapping, because that
        // mapping is the stack or was made by the kernel (`[vdso]`, `[vsyscall]`), near the end of the address space.
        let (lowest, highest) = (address.saturating_sub(reach), address.saturating_add(reach));
        let mut from = 0x1_0000;
        let mut gaps = Vec::new();
        for mapping in &self.0 {
            let start = from.max(lowest).next_multiple_of(PAGE);
            let end = mapping.start.min(highest) & !(PAGE - 1);
            if start < end {
                let distance = address.clamp(start, end).abs_diff(address);
                gaps.push((distance, start, end));
            }
            from = from.max(mapping.end);
        }
        let gaps = sorted(gaps).into_iter();
        gaps.map(|(_, start, end)| start..end).collect()
    }
}

/// Suffix that the kernel appends to the name of a mapped file that has been deleted.
const DELETED: &[u8] = b" (deleted)";

/// Returns the page size in bytes: 4 KiB on x86-64, and 4, 16 or 64 KiB on AArch64.
pub fn page_size() -> usize {
    // SAFETY: `sysconf` takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn parse(line: &[u8]) -> Option<Mapping> {
    use std::ffi::OsStr;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let range = str::from_utf8(&line[..space]).ok()?;
    let (start, end) = range.split_once('-')?;
    let rights = line.get(space + 1..space + 5)?;
    let path = line.iter().position(|&byte| byte == b'/');
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        is_writable: rights[1] == b'w',
        is_executable: rights[2] == b'x',
        inode: inode(&line[space..]).unwrap_or(0),
        path: path.map(|at| OsStr::from_bytes(&line[at..]).into()),
    })
}

/// Returns the inode number in a line of `/proc/self/maps`, which is the line's fifth word. `line` begins
/// after the first word.
fn inode(line: &[u8]) -> Option<u64> {
    let mut words = line
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    str::from_utf8(words.nth(3)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(lines: &[&str]) -> Maps {
        Maps(
            lines
                .iter()
                .filter_map(|line| parse(line.as_bytes()))
                .collect(),
        )
    }

    #[test]
    fn lines_are_read() {
        let maps = maps(&[
            "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a file",
            "00651000-00652000 rw-p 00051000 08:02 173521      /usr/bin/a file (deleted)",
            "7f00000000-7f00021000 rw-p 00000000 00:00 0 ",
            "no mapping",
            "7f00021000 r--p",
            "",
        ]);
        assert_eq!(maps.0.len(), 3);
        let code = maps.at(0x45_1fff).unwrap();
        assert!(code.is_executable && !code.is_writable);
        assert_eq!((code.start, code.end), (0x40_0000, 0x45_2000));
        assert_eq!(maps.file_at(0x40_0000), Some(Path::new("/usr/bin/a file")));
        assert_eq!(
            (code.inode, maps.is_deleted_at(0x40_0000)),
            (173_521, false)
        );
        assert!(maps.is_deleted_at(0x65_1000), "by the kernel's word");
        let has = |path| maps.has_file(Path::new(path));
        assert!(has("/usr/bin/a file") && !has("/usr/bin/a"));
        let data = maps.at(0x65_1000).unwrap();
        assert!(data.is_writable && !data.is_executable);
        assert!(
            maps.at(0x7f_0000_0000)
                .is_some_and(|mapping| mapping.is_writable)
        );
        assert_eq!(maps.file_at(0x7f_0000_0000), None);
        for nothing in [0, 0x45_2000, 0x65_0fff, 0x7f_0002_1000, usize::MAX] {
            assert!(maps.at(nothing).is_none(), "{nothing:#x}");
        }
    }

    #[test]
    fn the_process_has_its_own_code_and_stack_mapped() {
        let maps = Maps::read().unwrap();
        let code = maps.at(page_size as *const () as usize).unwrap();
        assert!(code.is_executable && !code.is_writable);
        let local = 0;
        let stack = maps.at((&raw const local).addr()).unwrap();
        assert!(stack.is_writable && !stack.is_executable);
        let us = std::fs::canonicalize("/proc/self/exe").unwrap();
        assert_eq!(maps.file_at(code.start), Some(us.as_path()));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn free_places_are_the_nearest_first_and_within_reach() {
        let maps = maps(&[
            "100000-200000 r-xp ",
            "203000-300000 r-xp ",
            "900000-a00000 r-xp ",
        ]);
        let all = maps.free_near(0x1f_f000, usize::MAX);
        assert_eq!(
            all,
            [
                0x20_0000..0x20_3000,
                0x1_0000..0x10_0000,
                0x30_0000..0x90_0000
            ]
        );
        let near = |address, reach| maps.free_near(address, reach);
        assert_eq!(near(0x1f_f000, 0x2fff), [const { 0x20_0000..0x20_1000 }]);
        assert!(near(0x1f_f000, 0x1fff).is_empty());
        let around = near(0x50_0123, 0x1000);
        assert_eq!(
            around,
            [const { 0x50_0000..0x50_1000 }],
            "in the middle of what is free"
        );
    }
}
