//! Native stacks, which the kernel takes (`perf_event_open`) where it permits that, and only of user space.
//!
//! The kernel follows frame pointers. It writes what it finds into a ring of its own, which goes away with its mapping:
//! no descriptor stays open, and the child of a fork has none of it.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::system;
use tllmprof_sync::kernel;

/// Bytes of the ring's first page, and of what follows.
const HEADER: usize = 4096;
const DATA: usize = 8 * 4096;
/// Where the first page says how far the kernel has written, and where we say how far we have read.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// From here on a word of a callchain is no address, but says of what the next ones are.
const MARKS: u64 = u64::MAX - 4095;

/// `perf_event_attr`, up to what Linux 4.8 knows.
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
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const USE_CLOCK: u64 = 1 << 25;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Frames of a stack.
const MOST_FRAMES: u16 = 127;

/// Why the kernel takes no stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal(i32);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = std::io::Error::from_raw_os_error(self.0);
        write!(f, "perf_event_open: {error}")?;
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

/// The stacks of a thread, from its opening on.
pub struct Ring {
    place: NonNull<u8>,
    /// Bytes that were read so far.
    tail: u64,
    record: Vec<u64>,
}

impl Ring {
    /// Has the stack of a thread of this process taken at each `period` nanoseconds of processor time.
    pub fn open(thread: i32, period: u64) -> Result<Self, Refusal> {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: TASK_CLOCK,
            period,
            sample_type: TIME | CALLCHAIN,
            flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | EXCLUDE_CALLCHAIN_KERNEL | USE_CLOCK,
            clock: libc::CLOCK_MONOTONIC,
            most_frames: MOST_FRAMES,
            ..Attributes::default()
        };
        let refusal = || Refusal(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
        // SAFETY: the kernel reads the attributes, whose size they say. The descriptor is ours until it is closed; what
        // is mapped by it is where the kernel finds room, and stays when it is closed.
        let place = unsafe {
            let arguments = [
                (&raw const attributes).addr(),
                thread as usize,
                usize::MAX,
                usize::MAX,
                CLOSE_ON_EXEC as usize,
            ];
            let opened = kernel::call(libc::SYS_perf_event_open, arguments);
            let descriptor = i32::try_from(opened).unwrap_or(-1);
            if descriptor < 0 {
                return Err(Refusal(descriptor.unsigned_abs().cast_signed()));
            }
            let place = libc::mmap(
                core::ptr::null_mut(),
                HEADER + DATA,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                descriptor,
                0,
            );
            let refusal = (place == libc::MAP_FAILED).then(refusal);
            libc::close(descriptor);
            match refusal {
                Some(refusal) => return Err(refusal),
                None => place,
            }
        };
        let place = NonNull::new(place.cast()).ok_or(Refusal(libc::ENOMEM))?;
        Ok(Self {
            place,
            tail: 0,
            record: Vec::new(),
        })
    }

    /// A word of the ring, which the kernel writes, too.
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < HEADER + DATA && offset.is_multiple_of(8));
        // SAFETY: the offset lies within the mapping, at a multiple of eight bytes. Nobody but the kernel writes there
        // without an atomic.
        unsafe { AtomicU64::from_ptr(self.place.as_ptr().add(offset).cast()) }
    }

    /// Gives each stack that was taken since the last time: when, in nanoseconds of the monotonic clock, and the
    /// addresses of its functions, the innermost first. Those of callers are in the midst of the call.
    pub fn each(&mut self, mut act: impl FnMut(u64, &mut dyn Iterator<Item = usize>)) {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let at = |bytes: u64| HEADER + bytes as usize % DATA;
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
            if header as u32 == SAMPLE
                && let [time, count, addresses @ ..] = &record[..]
            {
                let addresses = addresses.iter().take(*count as usize);
                let addresses = addresses.filter(|address| **address < MARKS);
                let exact = |(index, address): (usize, &u64)| {
                    *address as usize - usize::from(index > 0 && *address > 0)
                };
                act(*time, &mut addresses.enumerate().map(exact));
            }
            self.record = record;
        }
        self.word(TAIL).store(self.tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, of which no reference is left.
        unsafe { libc::munmap(self.place.as_ptr().cast(), HEADER + DATA) };
    }
}

/// Now, by the clock of [`Ring::each`].
pub fn now() -> u64 {
    system::nanoseconds(system::Clock::Monotonic)
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
            ring.each(|time, addresses| {
                assert!(time >= last && time <= now(), "{time} after {last}");
                last = time;
                count += usize::from(addresses.next().is_some());
            });
            if count > 50 {
                return;
            }
        }
        panic!("{count} samples");
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
