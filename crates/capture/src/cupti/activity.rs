//! The records that CUPTI writes for a piece of GPU work.
//!
//! CUPTI's structures grow with every release, but only at their ends, so that the fields read here have the same
//! offsets from CUDA 11.8 to 13 (`CUpti_ActivityKernel9`, `CUpti_ActivityMemcpy5`, `CUpti_ActivityMemset4` and their
//! successors in `cupti_activity.h`).

use core::ffi::c_char;

use tllmprof_record::CopyKind;

use super::library::Kind;

pub const MEMCPY: Kind = 1;
pub const MEMSET: Kind = 2;
/// This kind is used instead of `KERNEL` (3), which has no times for kernels of graphs.
pub const CONCURRENT_KERNEL: Kind = 10;
pub const KINDS: [Kind; 3] = [CONCURRENT_KERNEL, MEMCPY, MEMSET];

/// A piece of GPU work. Times are CUPTI's, in nanoseconds.
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
        /// The mangled name; may be null.
        name: *const c_char,
        grid: [u32; 3],
        /// The node of the executable graph that ran the kernel; 0 for none.
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
    /// CUPTI has handed `record` over, in a buffer that is still in use.
    pub unsafe fn read(record: *const u8) -> Option<Self> {
        // SAFETY: CUPTI writes a whole record of its kind there, and the fields lie within the shortest record of that
        // kind (CUDA 11.8); every record has the first word, which is the kind.
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

    /// Returns true if it has times. A flush while the work runs gives it none.
    pub const fn is_timed(&self) -> bool {
        self.start != 0 && self.end >= self.start
    }
}
