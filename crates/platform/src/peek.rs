//! Copies memory of this process that may not be mapped, or that may change at the same time. The kernel makes the
//! copies, and returns an error for unreadable memory instead of sending a signal.

use core::ffi::c_int;

use crate::ids;

/// A range of memory, laid out like the kernel's `iovec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct MemoryRange {
    pub address: usize,
    pub length: usize,
}

const _: () = assert!(size_of::<MemoryRange>() == size_of::<libc::iovec>());

/// Largest number of memory ranges (spans) that the kernel accepts in one call.
pub const MAX_SPANS: usize = 1024;

/// Copies memory ranges (spans) of a process into `into`, one after the other. Returns the number of copied
/// bytes, up to the first span that is not mapped.
///
/// # Errors
/// Returns the kernel's error number if not even the first span was copied: `EFAULT` if it is not mapped, or
/// another error, for example if this process may not read that process. Returns `EINVAL` if there are more than
/// [`MAX_SPANS`] spans, or if their total length is greater than that of `into`.
pub fn read(process: i32, spans: &[MemoryRange], into: &mut [u8]) -> Result<usize, c_int> {
    let total = spans
        .iter()
        .try_fold(0_usize, |sum, span| sum.checked_add(span.length));
    if spans.len() > MAX_SPANS || total.is_none_or(|total| total > into.len()) {
        return Err(libc::EINVAL);
    }
    let to = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes only to the bytes of `into`. It reads the spans safely, and fails for a span that is
    // not mapped. A span has the layout of an `iovec`.
    let copied = unsafe {
        libc::process_vm_readv(
            process,
            &raw const to,
            1,
            spans.as_ptr().cast(),
            spans.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| {
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL)
    })
}

/// Fills `into` with the memory at `address` in this process. Returns `None` if not all of these bytes can be read.
pub fn copy(address: usize, into: &mut [u8]) -> Option<()> {
    let length = into.len();
    let span = MemoryRange { address, length };
    (read(ids::process(), &[span], into) == Ok(length)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids;

    fn span<T>(of: &T) -> MemoryRange {
        MemoryRange {
            address: core::ptr::from_ref(of).addr(),
            length: size_of::<T>(),
        }
    }

    #[test]
    fn memory_is_copied_up_to_what_is_not_there() {
        let (one, two) = (1_u32, 2_u64);
        let nowhere = MemoryRange {
            address: 16,
            length: 8,
        };
        let mut bytes = [0; 32];
        let process = ids::process();
        assert_eq!(
            read(process, &[span(&one), span(&two), nowhere], &mut bytes),
            Ok(12)
        );
        assert_eq!(bytes[..4], 1_u32.to_ne_bytes());
        assert_eq!(bytes[4..12], 2_u64.to_ne_bytes());
        assert_eq!(
            read(process, &[nowhere, span(&one)], &mut bytes),
            Err(libc::EFAULT)
        );
        assert_eq!(read(process, &[], &mut bytes), Ok(0));
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        let mut bytes = [0; 4];
        let process = ids::process();
        assert_eq!(
            read(process, &[span(&0_u64)], &mut bytes),
            Err(libc::EINVAL)
        );
        let endless = MemoryRange {
            address: 0,
            length: usize::MAX,
        };
        assert_eq!(
            read(process, &[endless, endless], &mut bytes),
            Err(libc::EINVAL)
        );
        assert_eq!(
            read(
                process,
                &[span(&0_u8); MAX_SPANS + 1],
                &mut [0; 2 * MAX_SPANS]
            ),
            Err(libc::EINVAL)
        );
    }
}
