//! Native stacks that the kernel samples in user space (`perf_event_open`), if it allows this.
//!
//! The kernel can only unwind a stack by frame pointers, which optimised code seldom has. So it also copies the
//! registers and the top of the stack, and the library unwinds this copy later. The kernel writes samples into a ring
//! buffer, which the library maps into memory. The ring exists as long as this mapping, so its descriptor is closed at
//! once. The child of a fork does not inherit the ring.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::errno;
use tllmprof_platform::system;

use super::unwind::Registers;
use tllmprof_sync::kernel;

/// Size in bytes of the ring's first page, which holds the positions up to which the kernel has written samples and the
/// library has read them. `DATA_WITH_STACKS_BYTES` is the size of the samples after this page. If the kernel refuses to
/// open such a ring, the size is `DATA_BYTES`, and samples contain no copies of the stack.
const HEADER_BYTES: usize = 4096;
const DATA_WITH_STACKS_BYTES: usize = 128 * 4096;
const DATA_BYTES: usize = 8 * 4096;
/// Number of bytes of a thread's stack that the kernel copies for each sample.
const STACK_BYTES: u32 = 16 << 10;
/// Offsets of two positions in the first page: the end of the data that the kernel has written, and the end of the
/// data that the library has read.
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;
/// The record type `PERF_RECORD_SAMPLE`.
const SAMPLE_RECORD: u32 = 9;
/// The smallest word of a callchain that is a marker and not an address. A marker gives the
/// context, such as user space, of the addresses after it.
const FIRST_CONTEXT_MARK: u64 = u64::MAX - 4095;

/// The structure `perf_event_attr`, with the fields of Linux 4.8.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack: u32,
    clock: i32,
    registers_at_interrupt: u64,
    aux_watermark: u32,
    most_frames: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const TIME: u64 = 1 << 2;
const CALLCHAIN: u64 = 1 << 5;
const USER_REGISTERS: u64 = 1 << 12;
const USER_STACK: u64 = 1 << 13;
/// Mask for the frame pointer, the stack pointer and the program counter, in the kernel's numbering
/// of registers. The kernel stores them in this order.
#[cfg(target_arch = "x86_64")]
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
#[cfg(target_arch = "aarch64")]
const REGISTERS: u64 = 1 << 29 | 1 << 31 | 1 << 32;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const USE_CLOCK: u64 = 1 << 25;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// The most frames that the kernel records for one sample by following frame pointers.
const MAX_FRAMES: u16 = 127;

/// The system call that failed when a ring was to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FailedCall {
    Open,
    Map,
}

/// The error with which the kernel refuses to record the stacks of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PerfRefusal {
    call: FailedCall,
    errno: i32,
}

impl PerfRefusal {
    /// Returns true if the kernel refuses to record the stacks of any thread of this process. Returns false if another
    /// attempt may succeed, for example because only too many files are open now.
    pub(crate) const fn is_of_process(self) -> bool {
        self.is_forbidden()
            || matches!(
                (self.call, self.errno),
                (FailedCall::Open, libc::ENOSYS | libc::ENOENT)
            )
    }

    /// Returns true if the process lacks the right to open `perf` events.
    const fn is_forbidden(self) -> bool {
        matches!(
            (self.call, self.errno),
            (FailedCall::Open, libc::EACCES | libc::EPERM)
        )
    }

    /// Returns true if the reason is that the thread has ended.
    pub(crate) const fn has_thread_ended(self) -> bool {
        matches!((self.call, self.errno), (FailedCall::Open, libc::ESRCH))
    }
}

impl fmt::Display for PerfRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = std::io::Error::from_raw_os_error(self.errno);
        let call = match self.call {
            FailedCall::Open => "perf_event_open",
            FailedCall::Map => "mmap",
        };
        write!(f, "{call}: {error}")?;
        if !self.is_forbidden() {
            return Ok(());
        }
        match std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid") {
            Ok(level) => write!(
                f,
                " (perf_event_paranoid is {}; wanted: 2 or less, and no filter)",
                level.trim()
            ),
            Err(_) => Ok(()),
        }
    }
}

/// The ring buffer with the native stacks of a thread.
pub(crate) struct Ring {
    place: NonNull<u8>,
    /// Number of bytes of the ring that hold samples; they follow its first page.
    data: usize,
    /// True if samples contain registers and a copy of the stack's top.
    has_stacks: bool,
    /// Number of bytes of samples that have been read since the ring was opened.
    tail: u64,
    record: Vec<u64>,
}

/// A sample of a thread's native stack.
pub(crate) struct NativeSample<'a> {
    /// The time of the sample on the monotonic clock, in ns.
    pub time: u64,
    /// The addresses that the kernel found with frame pointers, innermost first, and markers
    /// ([`FIRST_CONTEXT_MARK`]). The first address is in the running function. The others are return addresses,
    /// which come after a call.
    chain: &'a [u64],
    /// The registers, and a copy of the stack's words from the stack pointer on.
    pub copy: Option<(Registers, &'a [u64])>,
}

impl NativeSample<'_> {
    /// Returns code addresses in the functions that the kernel found with frame pointers. For
    /// callers, the address is inside the call instruction.
    pub(crate) fn by_frame_pointers(&self) -> impl Iterator<Item = usize> {
        let addresses = self
            .chain
            .iter()
            .filter(|address| **address < FIRST_CONTEXT_MARK);
        let exact = |(index, address): (usize, &u64)| {
            *address as usize - usize::from(index > 0 && *address > 0)
        };
        addresses.enumerate().map(exact)
    }

    fn parse(record: &[u64], has_stacks: bool) -> Option<NativeSample<'_>> {
        let [time, count, rest @ ..] = record else {
            return None;
        };
        let (chain, rest) = rest.split_at_checked(*count as usize)?;
        let copy = match rest {
            // These words of a sample are: the ABI (0 if there are no registers), the registers,
            // the size reserved for the stack, the stack, and the number of its bytes that are
            // valid.
            &[
                abi,
                frame_pointer,
                stack_pointer,
                program_counter,
                reserved,
                ref stack @ ..,
            ] if has_stacks && abi != 0 => {
                let (stack, length) = stack.split_at_checked(reserved as usize / 8)?;
                let length = length.first().map_or(0, |bytes| *bytes as usize / 8);
                let registers = Registers {
                    program_counter: program_counter as usize,
                    stack_pointer: stack_pointer as usize,
                    frame_pointer: Some(frame_pointer as usize),
                };
                Some((registers, stack.get(..length)?))
            }
            _ => None,
        };
        Some(NativeSample {
            time: *time,
            chain,
            copy,
        })
    }
}

impl Ring {
    /// Makes the kernel record the stack of a thread of this process after every `period` ns of
    /// processor time.
    pub(crate) fn open(thread: i32, period: u64) -> Result<Self, PerfRefusal> {
        Self::open_as(thread, period, true).or_else(|_| Self::open_as(thread, period, false))
    }

    fn open_as(thread: i32, period: u64, has_stacks: bool) -> Result<Self, PerfRefusal> {
        let [more, registers, stack, data] = match has_stacks {
            true => [
                USER_REGISTERS | USER_STACK,
                REGISTERS,
                u64::from(STACK_BYTES),
                DATA_WITH_STACKS_BYTES as u64,
            ],
            false => [0, 0, 0, DATA_BYTES as u64],
        };
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: TASK_CLOCK,
            period,
            sample_type: TIME | CALLCHAIN | more,
            flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | EXCLUDE_CALLCHAIN_KERNEL | USE_CLOCK,
            clock: libc::CLOCK_MONOTONIC,
            most_frames: MAX_FRAMES,
            registers,
            stack: stack as u32,
            ..Attributes::default()
        };
        let data = data as usize;
        Ok(Self {
            place: map(thread, &attributes, HEADER_BYTES + data)?,
            data,
            has_stacks,
            tail: 0,
            record: Vec::new(),
        })
    }

    /// Returns a word of the ring. The kernel may write to it at any time.
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < HEADER_BYTES + self.data && offset.is_multiple_of(8));
        // SAFETY: the offset is inside the mapping and a multiple of eight. Only the kernel writes
        // there without an atomic operation.
        unsafe { AtomicU64::from_ptr(self.place.as_ptr().add(offset).cast()) }
    }

    /// Calls `act` for each stack that was recorded since the last call of this function.
    pub(crate) fn each(&mut self, mut act: impl FnMut(&NativeSample<'_>)) {
        let head = self.word(HEAD_OFFSET).load(Ordering::Acquire);
        let data = self.data;
        let at = |bytes: u64| HEADER_BYTES + bytes as usize % data;
        while self.tail < head {
            let header = self.word(at(self.tail)).load(Ordering::Relaxed);
            let size = header >> 48;
            if size < 8 || !size.is_multiple_of(8) || size > head - self.tail {
                self.tail = head;
                break;
            }
            let mut record = core::mem::take(&mut self.record);
            record.clear();
            let words = (self.tail + 8..self.tail + size).step_by(8);
            record.extend(words.map(|bytes| self.word(at(bytes)).load(Ordering::Relaxed)));
            self.tail += size;
            if header as u32 == SAMPLE_RECORD
                && let Some(sample) = NativeSample::parse(&record, self.has_stacks)
            {
                act(&sample);
            }
            self.record = record;
        }
        self.word(TAIL_OFFSET).store(self.tail, Ordering::Release);
    }
}

/// Opens the `perf` event for a thread, and maps its ring buffer.
fn map(thread: i32, attributes: &Attributes, length: usize) -> Result<NonNull<u8>, PerfRefusal> {
    let refused = |call, errno| PerfRefusal { call, errno };
    // SAFETY: the kernel reads the attributes, which contain their size. The descriptor is ours
    // until it is closed. The kernel chooses the address of the mapping, which stays when the
    // descriptor is closed.
    let place = unsafe {
        let arguments = [
            core::ptr::from_ref(attributes).addr(),
            thread as usize,
            usize::MAX,
            usize::MAX,
            CLOSE_ON_EXEC as usize,
        ];
        let opened = kernel::call(libc::SYS_perf_event_open, arguments);
        let descriptor = i32::try_from(opened).unwrap_or(-1);
        if descriptor < 0 {
            let errno = descriptor.unsigned_abs().cast_signed();
            return Err(refused(FailedCall::Open, errno));
        }
        let place = libc::mmap(
            core::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor,
            0,
        );
        let refusal = (place == libc::MAP_FAILED).then(|| refused(FailedCall::Map, errno::now()));
        libc::close(descriptor);
        match refusal {
            Some(refusal) => return Err(refusal),
            None => place,
        }
    };
    NonNull::new(place.cast()).ok_or(refused(FailedCall::Map, libc::ENOMEM))
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open_as` made this mapping, and no reference to it is left.
        unsafe { libc::munmap(self.place.as_ptr().cast(), HEADER_BYTES + self.data) };
    }
}

/// Returns the current time in ns, on the clock of [`NativeSample::time`].
pub(crate) fn now() -> u64 {
    system::nanoseconds(system::SystemClock::Monotonic)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tllmprof_platform::ids;

    use super::*;
    use crate::skipped::skipped;

    #[inline(never)]
    fn spins(until: Instant) -> u64 {
        let mut turns = 0;
        while Instant::now() < until {
            turns = core::hint::black_box(turns + 1);
        }
        turns
    }

    #[test]
    fn stacks_are_of_the_thread_and_of_the_time() {
        let mut ring = match Ring::open(ids::thread(), 1_000_000) {
            Ok(ring) => ring,
            Err(refusal) => {
                return skipped(&refusal.to_string());
            }
        };
        let mut last = now();
        let mut count = 0;
        for _ in 0..2000 {
            spins(Instant::now() + std::time::Duration::from_micros(500));
            ring.each(|sample| {
                let time = sample.time;
                assert!(time >= last && time <= now(), "{time} after {last}");
                last = time;
                count += usize::from(sample.by_frame_pointers().next().is_some());
            });
            if count > 50 {
                return;
            }
        }
        panic!("{count} samples");
    }

    #[test]
    fn only_some_refusals_to_open_an_event_are_about_the_whole_process() {
        let refused = |call, errno| PerfRefusal { call, errno };
        for errno in [libc::EACCES, libc::EPERM, libc::ENOSYS, libc::ENOENT] {
            assert!(refused(FailedCall::Open, errno).is_of_process());
            assert!(!refused(FailedCall::Map, errno).is_of_process());
        }
        for errno in [libc::EMFILE, libc::ENOMEM, libc::ESRCH] {
            assert!(!refused(FailedCall::Open, errno).is_of_process());
        }
        assert!(refused(FailedCall::Open, libc::ESRCH).has_thread_ended());
        let text = refused(FailedCall::Map, libc::EPERM).to_string();
        assert!(
            text.starts_with("mmap: ") && !text.contains("paranoid"),
            "{text}"
        );
    }

    #[test]
    fn a_thread_that_is_not_ours_is_refused() {
        let refusal = Ring::open(i32::MAX, 1_000_000).err().unwrap();
        assert!(
            refusal.to_string().starts_with("perf_event_open: "),
            "{refusal}"
        );
    }
}
