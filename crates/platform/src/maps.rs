//! What is mapped where, by the kernel's word.

use std::io::Read;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/maps`.
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub is_writable: bool,
    pub is_executable: bool,
    path: Option<PathBuf>,
}

/// The process's mappings, by address.
pub struct Maps(Vec<Mapping>);

impl Maps {
    /// # Errors
    /// As reading a file: a sandbox may have no `/proc`.
    pub fn read() -> std::io::Result<Self> {
        let mut text = Vec::new();
        tllmprof_symbols::open(Path::new("/proc/self/maps"))?.read_to_end(&mut text)?;
        Ok(Self(
            text.split(|&byte| byte == b'\n')
                .filter_map(parse)
                .collect(),
        ))
    }

    /// The mapping that `address` lies in.
    pub fn at(&self, address: usize) -> Option<&Mapping> {
        let index = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(index).filter(|mapping| mapping.start <= address)
    }

    /// The file that is mapped at `address`.
    pub fn file_at(&self, address: usize) -> Option<&Path> {
        self.at(address)?.path.as_deref()
    }

    /// Places where `size` bytes are free, the nearest to `address` first, none farther than
    /// `reach`.
    #[cfg(target_arch = "x86_64")]
    pub fn free_near(&self, address: usize, size: usize, reach: usize) -> Vec<usize> {
        // The first pages are not to be had, and beyond the last mapping lies the kernel's half.
        let mut from = 0x1_0000;
        let mut places = Vec::new();
        for mapping in &self.0 {
            if let Some(last) = mapping.start.checked_sub(size).filter(|&last| last >= from) {
                let nearest = (address & !0xfff).clamp(from, last & !0xfff);
                if nearest.abs_diff(address) <= reach {
                    places.push(nearest);
                }
            }
            from = from.max(mapping.end);
        }
        places.sort_by_key(|place| place.abs_diff(address));
        places
    }
}

/// Bytes of a page: on AArch64 systems have them of 4, 16 or 64 KiB.
pub fn page_size() -> usize {
    // SAFETY: takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn parse(line: &[u8]) -> Option<Mapping> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
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
        path: path.map(|at| OsStr::from_bytes(&line[at..]).into()),
    })
}
