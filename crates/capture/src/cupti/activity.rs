//! What CUPTI writes of a piece of work.
//!
//! Its structures grow with every release, and only at their ends, so that what is read here lies in
//! the same place from CUDA 11.8 to 13 (`CUpti_ActivityKernel9`, `CUpti_ActivityMemcpy5`,
//! `CUpti_ActivityMemset4` and their successors in `cupti_activity.h`).

use core::ffi::c_char;

use tllmprof_record::CopyKind;

use super::library::Kind;

pub const MEMCPY: Kind = 1;
pub const MEMSET: Kind = 2;
/// Not `KERNEL` (3), which gives kernels of graphs no times.
pub const CONCURRENT_KERNEL: Kind = 10;
pub const KINDS: [Kind; 3] = [CONCURRENT_KERNEL, MEMCPY, MEMSET];

/// A piece of work. Times are CUPTI's, in nanoseconds.
pub struct Activity {
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub stream: u32,
    pub correlation: u32,
    pub work: Work,
}

pub enum Work {
    Kernel {
        /// Its name, mangled; may be null.
        name: *const c_char,
        grid: [u32; 3],
        /// The node that it is of an executable graph; 0 for none.
        node: u64,
    },
    Copy {
        kind: CopyKind,
        bytes: u64,
    },
    Set {
        bytes: u64,
    },
}

impl Activity {
    /// Reads a record; `None` if it is of another kind.
    ///
    /// # Safety
    /// `record` is one that CUPTI has handed over, in a buffer that is still in use.
    pub unsafe fn read(record: *const u8) -> Option<Self> {
        // SAFETY: CUPTI writes a whole record of its kind there, and the fields lie within the shortest of that kind
        // (CUDA 11.8); the first word, which is the kind, every record has.
        let (word, long) = unsafe {
            (
                |at: usize| record.add(at).cast::<u32>().read_unaligned(),
                |at: usize| record.add(at).cast::<u64>().read_unaligned(),
            )
        };
        let kind = word(0).cast_signed();
        Some(match kind {
            CONCURRENT_KERNEL => Self {
                start: long(16),
                end: long(24),
                device: word(40),
                stream: word(48),
                correlation: word(92),
                work: Work::Kernel {
                    name: core::ptr::with_exposed_provenance(
                        usize::try_from(long(104)).unwrap_or(0),
                    ),
                    grid: [word(52), word(56), word(60)],
                    node: long(144),
                },
            },
            MEMCPY | MEMSET => Self {
                start: long(16),
                end: long(24),
                device: word(32),
                stream: word(40),
                correlation: word(44),
                work: if kind == MEMCPY {
                    Work::Copy {
                        kind: CopyKind::from_code((word(4) & 0xff) as u8),
                        bytes: long(8),
                    }
                } else {
                    Work::Set { bytes: long(8) }
                },
            },
            _ => return None,
        })
    }

    /// Whether it has times: a flush while it runs gives it none.
    pub const fn is_timed(&self) -> bool {
        self.start != 0 && self.end >= self.start
    }
}
