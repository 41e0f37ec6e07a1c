//! Stops one thread of another process with ptrace.
//!
//! When a tracer thread ends, the kernel resumes the threads that the tracer has stopped. So for each stop, the command
//! (`tllmprof`) creates a separate tracer thread, which ends soon afterwards. The end of the tracer thread also
//! resumes a thread that stops only after the tracer has given up.

use std::io;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::memory::ProcessMemory;
use crate::process;

/// Interval between two checks of whether the thread has stopped.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The reason why a tracer could not stop a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotStopped {
    /// The thread has ended, so it cannot be stopped.
    Gone,
    /// The thread did not stop in time. It may be in uninterruptible sleep.
    Late,
    /// A signal had already stopped the whole process.
    ByASignal,
    NotPermitted,
}

/// An instruction of a system call filter, in the kernel's layout (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    pub code: u16,
    pub then: u8,
    pub otherwise: u8,
    pub k: u32,
}

/// A thread that is traced, but has not stopped yet.
pub(crate) struct Stopping(Pid);

impl Stopping {
    /// Starts to trace a thread. The thread continues to run.
    ///
    /// # Errors
    /// Returns the reason why the thread cannot be traced.
    pub(crate) fn seize(thread: i32) -> Result<Self, NotStopped> {
        let pid = Pid::from_raw(thread);
        let refused = |error| match error {
            Errno::EPERM => NotStopped::NotPermitted,
            _ => NotStopped::Gone,
        };
        // No options are set. In particular, the process must not end when this command ends, as it would with
        // PTRACE_O_EXITKILL.
        ptrace::seize(pid, Options::empty()).map_err(refused)?;
        Ok(Self(pid))
    }

    pub(crate) const fn tid(&self) -> i32 {
        self.0.as_raw()
    }

    /// Requests that the traced thread stop. If the thread has ended, the next poll reports this.
    pub(crate) fn interrupt(&self) {
        let _ = ptrace::interrupt(self.0);
    }

    /// Resumes the thread so that it does not notice that it was interrupted. An interrupted thread always stops
    /// first, so the function waits for this stop, at most 1 s.
    pub(crate) fn go_on(self) {
        Self::resume_all(vec![self]);
    }

    /// Resumes each of these threads, like [`Self::go_on`], as soon as it stops. Waits at most 1 s for all of them.
    pub(crate) fn resume_all(mut threads: Vec<Self>) {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            Self::resume_stopped(&mut threads);
            if threads.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Resumes the threads in `threads` that have stopped, and removes them. Also removes threads that have ended.
    pub(crate) fn resume_stopped(threads: &mut Vec<Self>) {
        threads.retain(|thread| match thread.poll() {
            Ok(Some(stopped)) => {
                if let Some(registers) = stopped.registers() {
                    stopped.go_on(registers);
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
    }

    /// Returns the thread if it has stopped, or `None` if it has not stopped yet.
    ///
    /// # Errors
    /// Returns the reason why the thread cannot be stopped.
    pub(crate) fn poll(&self) -> Result<Option<Stopped>, NotStopped> {
        let thread = self.tid();
        let mut status = 0;
        // SAFETY: the kernel writes the status into a local.
        let waited =
            unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if waited == 0 {
            return Ok(None);
        }
        if waited != thread || !libc::WIFSTOPPED(status) {
            return Err(NotStopped::Gone);
        }
        let signal = libc::WSTOPSIG(status);
        let is_event = status >> 16 == libc::PTRACE_EVENT_STOP;
        let stopped = Stopped {
            thread: self.0,
            since: Instant::now(),
        };
        match (is_event, signal) {
            (true, libc::SIGTRAP) => Ok(Some(stopped)),
            (true, _) => {
                stopped.detach();
                Err(NotStopped::ByASignal)
            }
            // The thread stopped because a signal is about to be delivered, so it continues with that signal. If the
            // process ignores the signal, the thread was woken only because it is traced. Then the system call that the
            // signal interrupted is repeated.
            (false, _) => {
                if let Some(registers) = stopped.registers()
                    && was_cut_short(&registers)
                    && process::ignores(thread, signal)
                {
                    stopped.make_again(registers);
                }
                match go_on(thread, signal) {
                    Ok(()) => Ok(None),
                    Err(_) => Err(NotStopped::Gone),
                }
            }
        }
    }
}

pub(crate) struct Stopped {
    thread: Pid,
    pub since: Instant,
}

impl Stopped {
    /// Starts to trace a thread and waits until it has stopped, for at most `patience`.
    ///
    /// # Errors
    /// Returns the reason why the thread did not stop.
    pub(crate) fn stop(thread: i32, patience: Duration) -> Result<Self, NotStopped> {
        let thread = Stopping::seize(thread)?;
        thread.interrupt();
        let deadline = Instant::now() + patience;
        loop {
            match thread.poll()? {
                Some(stopped) => return Ok(stopped),
                None if Instant::now() > deadline => {
                    thread.go_on();
                    return Err(NotStopped::Late);
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    pub(crate) const fn tid(&self) -> i32 {
        self.thread.as_raw()
    }

    pub(crate) fn registers(&self) -> Option<Registers> {
        ptrace::getregs(self.thread).ok()
    }

    /// Sets all general registers of the stopped thread at once. Returns `None` if this fails, for example because the
    /// thread was killed.
    pub(crate) fn set_registers(&self, registers: Registers) -> Option<()> {
        ptrace::setregs(self.thread, registers).ok()
    }

    /// Writes to the process's memory, even where the process itself can only read. The data is padded with zeros
    /// to a multiple of 8 bytes. Returns `None` if a write fails, for example because the thread was killed; the words
    /// before it may then have been written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let place = core::ptr::without_provenance_mut((address + 8 * index as u64) as usize);
            ptrace::write(self.thread, place, i64::from_le_bytes(word)).ok()?;
        }
        Some(())
    }

    /// Returns true if the thread is inside a restartable sequence (rseq). Such a thread is not at a safe point (where
    /// it can run injected code), because the kernel would have to restart the sequence when the thread resumes.
    pub(crate) fn is_in_sequence(&self, memory: &ProcessMemory, rip: u64) -> bool {
        const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        let mut found = [0u64; 3];
        let size = size_of_val(&found);
        // SAFETY: the kernel writes at most `size` bytes into the array.
        let result = unsafe {
            libc::ptrace(
                PTRACE_GET_RSEQ_CONFIGURATION,
                self.thread.as_raw(),
                size,
                found.as_mut_ptr(),
            )
        };
        if result <= 0 || found[0] == 0 {
            return false;
        }
        let Some(sequence) = memory.word(found[0] + 8) else {
            return true;
        };
        let range = || {
            let (start, length) = (memory.word(sequence + 8)?, memory.word(sequence + 16)?);
            Some(start..start + length)
        };
        sequence != 0 && range().is_none_or(|range| range.contains(&rip))
    }

    /// Returns the system call filter with this index, where 0 is the filter that was installed last. Returns `None` if
    /// the thread has no more filters.
    ///
    /// # Errors
    /// Returns an error if filters cannot be read: that requires CAP_SYS_ADMIN, and that this process has no
    /// filters itself.
    pub(crate) fn filter(&self, index: usize) -> io::Result<Option<Vec<Instruction>>> {
        const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
        let get = |into: *mut Instruction| {
            // SAFETY: without a buffer, the kernel returns the number of instructions and writes none. With a
            // buffer, it writes that number of instructions. The buffer has room for them, because the filters of a
            // stopped thread do not change.
            let count = unsafe {
                libc::ptrace(PTRACE_SECCOMP_GET_FILTER, self.thread.as_raw(), index, into)
            };
            usize::try_from(count).map_err(|_| io::Error::last_os_error())
        };
        let count = match get(core::ptr::null_mut()) {
            Ok(count) => count,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut filter = vec![Instruction::default(); count];
        get(filter.as_mut_ptr())?;
        Ok(Some(filter))
    }

    /// Resumes the thread as if it had not been stopped. `registers` are the registers that it had when it stopped.
    /// Returns how long the thread was stopped.
    pub(crate) fn go_on(self, registers: Registers) -> Duration {
        self.settle(registers);
        self.detach()
    }

    /// Sets the thread's registers so that it continues as if it had not been stopped. A system call that the stop has
    /// cut short is repeated, unless a signal is pending, which would have ended the call in any case. `registers` are
    /// the registers that the thread had when it stopped.
    pub(crate) fn settle(&self, registers: Registers) {
        let tid = self.thread.as_raw();
        if was_cut_short(&registers) {
            match process::has_signal(tid, tid) {
                true => drop(self.set_registers(registers)),
                false => self.make_again(registers),
            }
        }
    }

    /// Makes the thread repeat the system call that returned early because of the stop, so that the program does not
    /// notice the stop.
    pub(crate) fn make_again(&self, registers: Registers) {
        let mut again = resumed(registers);
        // Marks the thread as not in a system call, so that the kernel does not change the registers when the thread
        // resumes.
        again.orig_rax = u64::MAX;
        self.set_registers(again);
    }

    /// Resumes the thread and stops tracing it. Returns how long the thread was stopped.
    pub(crate) fn detach(self) -> Duration {
        let _ = ptrace::detach(self.thread, None);
        self.since.elapsed()
    }
}

/// Resumes a traced thread and delivers `signal` to it. `signal` may be any number, also one that `nix` has no name
/// for.
fn go_on(thread: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the request takes the signal's number as data, and no address.
    let result = unsafe { libc::ptrace(libc::PTRACE_CONT, thread, 0, i64::from(signal)) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// System calls that the kernel does not restart after a stop. They end with EINTR instead, as if a signal handler
/// had run. A call that ends like this has consumed no data, so it can be repeated.
const CUT_SHORT: [libc::c_long; 20] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_io_getevents,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_io_uring_enter,
];

/// Returns true if the thread's system call returned early because a tracer stopped the thread. A signal has the same
/// effect on the registers, so the caller must check for pending signals itself.
pub(crate) fn was_cut_short(registers: &Registers) -> bool {
    registers.rax.cast_signed() == i64::from(-libc::EINTR)
        && CUT_SHORT.contains(&registers.orig_rax.cast_signed())
}

/// Returns true if the thread was stopped in a system call that creates a process or a thread (`fork`, `clone`).
pub(crate) fn has_made_process(registers: &Registers) -> bool {
    let calls = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
    ];
    calls.contains(&registers.orig_rax.cast_signed())
}

/// Returns the registers with which the thread has to continue so that the program does not notice the stop. If the
/// stop interrupted a system call that has to be repeated, these registers make the thread repeat it.
pub(crate) fn resumed(registers: Registers) -> Registers {
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOINTR: i64 = -513;
    const ERESTARTNOHAND: i64 = -514;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    /// Size of the `syscall` instruction, in bytes.
    const LENGTH: u64 = 2;
    let mut resumed = registers;
    if registers.orig_rax.cast_signed() >= 0 {
        let again = match registers.rax.cast_signed() {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Some(registers.orig_rax),
            // The repeated system call waits only for its remaining time. If a signal handler runs in between, the call
            // ends with EINTR, as it would without the stop.
            ERESTART_RESTARTBLOCK => Some(libc::SYS_restart_syscall.cast_unsigned()),
            _ if was_cut_short(&registers) => Some(registers.orig_rax),
            _ => None,
        };
        if let Some(call) = again {
            resumed.rax = call;
            resumed.rip = registers.rip.wrapping_sub(LENGTH);
        }
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(rax: i64, orig_rax: i64) -> Registers {
        // SAFETY: the structure has only integer fields, for which zero is a valid value.
        let mut registers: Registers = unsafe { core::mem::zeroed() };
        registers.rax = rax.cast_unsigned();
        registers.orig_rax = orig_rax.cast_unsigned();
        registers.rip = 0x1002;
        registers
    }

    #[test]
    fn an_interrupted_system_call_is_made_again_and_no_other() {
        let after = |rax, orig_rax| {
            let registers = resumed(made(rax, orig_rax));
            (registers.rax.cast_signed(), registers.rip)
        };
        for restart in [-512, -513, -514] {
            assert_eq!(after(restart, 7), (7, 0x1000), "{restart}");
        }
        assert_eq!(after(-516, 35), (219, 0x1000), "what is left of it");
        assert_eq!(after(-4, 7), (-4, 0x1002), "it has ended with EINTR");
        let epoll_wait = libc::SYS_epoll_wait;
        assert_eq!(after(-4, epoll_wait), (epoll_wait, 0x1000));
        assert_eq!(after(3, epoll_wait), (3, 0x1002), "it has an answer");
        assert_eq!(after(0, 0), (0, 0x1002), "it has ended");
        assert_eq!(after(-512, -1), (-512, 0x1002), "no system call");
    }
}
