//! The records in which CUPTI reports GPU work.
//!
//! CUPTI's structures grow with each release, but only at their ends. So the fields that are read here have the same
//! offsets from CUDA 11.8 to 13 (`CUpti_ActivityKernel9`, `CUpti_ActivityMemcpy5`, `CUpti_ActivityMemset4` and their
//! successors in `cupti_activity.h`).

use core::ffi::c_char;

use tllmprof_record::CopyKind;

use super::library::ActivityKind;

pub(crate) const MEMCPY: ActivityKind = 1;
pub(crate) const MEMSET: ActivityKind = 2;
/// Activity kind of kernels that may run concurrently. CUPTI has another activity kind for kernels, `KERNEL` (3), but
/// gives no times for the kernels of a graph with that kind.
pub(crate) const CONCURRENT_KERNEL: ActivityKind = 10;
pub(crate) const KINDS: [ActivityKind; 3] = [CONCURRENT_KERNEL, MEMCPY, MEMSET];

/// One kernel, copy or memset that CUPTI reports. Times are in nanoseconds of CUPTI's clock.
pub(crate) struct Activity {
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub stream: u32,
    pub correlation: u32,
    pub work: ActivityDetails,
}

pub(crate) enum ActivityDetails {
    Kernel {
        /// The mangled name of the kernel, which may be null.
        name: *const c_char,
        grid: [u32; 3],
        /// The node of the executable graph that launched the kernel; 0 if no graph did.
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
    /// Reads one of CUPTI's records. Returns `None` if the record is not about a kernel, a copy or a memset.
    ///
    /// # Safety
    /// CUPTI must have handed over `record` in a buffer. This buffer must not have been given back or unmapped since.
    pub(crate) unsafe fn read(record: *const u8) -> Option<Self> {
        // SAFETY: CUPTI has written a whole record at this address. The first word of each record is its kind. All
        // fields lie within the shortest record of that kind, the one of CUDA 11.8.
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
                work: ActivityDetails::Kernel {
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
                    ActivityDetails::Copy {
                        kind: CopyKind::from_code((word(4) & 0xff) as u8),
                        bytes: long(8),
                    }
                } else {
                    ActivityDetails::Set { bytes: long(8) }
                },
            },
            _ => return None,
        })
    }

    /// Returns true if the times of the work are valid. CUPTI gives no times for work that was running when CUPTI was
    /// flushed.
    pub(crate) const fn is_timed(&self) -> bool {
        self.start != 0 && self.end >= self.start
    }
}
