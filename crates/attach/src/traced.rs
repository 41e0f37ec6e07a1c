//! One thread of another process, stopped.
//!
//! The kernel lets a stopped thread go when the thread that traces it ends. So whoever stops one does it on a thread of
//! its own, which ends soon whatever happens, also where the thread has not stopped in time and stops later.

use std::io;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::memory::Memory;
use crate::process;

/// Between two looks whether a thread has stopped.
const LOOK: Duration = Duration::from_micros(50);

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStopped {
    /// It has ended.
    Gone,
    /// It did not stop in time, as in uninterruptible sleep.
    Late,
    /// The whole process is stopped by a signal.
    ByASignal,
    NotPermitted,
}

/// An instruction of a filter of system calls, as the kernel has it (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub code: u16,
    pub then: u8,
    pub otherwise: u8,
    pub k: u32,
}

/// A thread that is traced, and runs until it is interrupted.
pub struct Stopping(Pid);

impl Stopping {
    /// Begins to trace a thread.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn seize(thread: i32) -> Result<Self, NotStopped> {
        let pid = Pid::from_raw(thread);
        let refused = |error| match error {
            Errno::EPERM => NotStopped::NotPermitted,
            _ => NotStopped::Gone,
        };
        // No option: above all none that ends the process when this one ends.
        ptrace::seize(pid, Options::empty()).map_err(refused)?;
        Ok(Self(pid))
    }

    pub const fn tid(&self) -> i32 {
        self.0.as_raw()
    }

    /// Has it stop soon. One that has ended says so when it is looked at.
    pub fn interrupt(&self) {
        let _ = ptrace::interrupt(self.0);
    }

    /// Lets it go on. It stops first, as it was interrupted, so that it does not see that.
    pub fn go_on(self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + PATIENCE;
        while let Ok(stopped) = self.poll()
            && Instant::now() < deadline
        {
            if let Some(stopped) = stopped {
                if let Some(registers) = stopped.registers() {
                    stopped.go_on(registers);
                }
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether it has stopped by now.
    ///
    /// # Errors
    /// Why it does not.
    pub fn poll(&self) -> Result<Option<Stopped>, NotStopped> {
        let thread = self.tid();
        let mut status = 0;
        // SAFETY: the place for the status is a local.
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
            // A signal that is about to be delivered: it goes on with that. One that is ignored has woken the thread only
            // because it is traced.
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

pub struct Stopped {
    thread: Pid,
    pub since: Instant,
}

impl Stopped {
    /// Stops a thread.
    ///
    /// # Errors
    /// Why it has not stopped.
    pub fn stop(thread: i32, patience: Duration) -> Result<Self, NotStopped> {
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
                None => std::thread::sleep(LOOK),
            }
        }
    }

    pub const fn tid(&self) -> i32 {
        self.thread.as_raw()
    }

    pub fn registers(&self) -> Option<Registers> {
        ptrace::getregs(self.thread).ok()
    }

    /// Sets all registers at once.
    pub fn set_registers(&self, registers: Registers) -> Option<()> {
        ptrace::setregs(self.thread, registers).ok()
    }

    /// Writes where the process itself can only read. The length is rounded up with zeros.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let place = core::ptr::without_provenance_mut((address + 8 * index as u64) as usize);
            ptrace::write(self.thread, place, i64::from_le_bytes(word)).ok()?;
        }
        Some(())
    }

    /// Whether it is within a sequence that the kernel would have to start again (rseq).
    pub fn is_in_sequence(&self, memory: &Memory, rip: u64) -> bool {
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

    /// One of its filters of system calls, the latest first; none behind the last.
    ///
    /// # Errors
    /// They cannot be read: it takes CAP_SYS_ADMIN, and that this process has no filters itself.
    pub fn filter(&self, index: usize) -> io::Result<Option<Vec<Instruction>>> {
        const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
        let get = |into: *mut Instruction| {
            // SAFETY: the kernel writes as many instructions as it says when there is no place for them. That is a place of
            // this size, or none. The filters of a stopped thread stay as they are.
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

    /// Lets it go on as if it had not been stopped, with `registers` that it has; for how long it was.
    pub fn go_on(self, registers: Registers) -> Duration {
        self.settle(registers);
        self.detach()
    }

    /// When it is let go it goes on as if it had not been stopped, with `registers` that it has.
    pub fn settle(&self, registers: Registers) {
        let tid = self.thread.as_raw();
        if was_cut_short(&registers) {
            match process::has_signal(tid, tid) {
                true => drop(self.set_registers(registers)),
                false => self.make_again(registers),
            }
        }
    }

    /// Has it make its system call again that was cut short. It does not see that.
    pub fn make_again(&self, registers: Registers) {
        let mut again = resumed(registers);
        // It is in no system call, so the kernel changes nothing more.
        again.orig_rax = u64::MAX;
        self.set_registers(again);
    }

    /// Lets it go on; for how long it was stopped.
    pub fn detach(self) -> Duration {
        let _ = ptrace::detach(self.thread, None);
        self.since.elapsed()
    }
}

/// Lets a thread go on with a signal of any number.
fn go_on(thread: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the request takes a number for its data and no address.
    let result = unsafe { libc::ptrace(libc::PTRACE_CONT, thread, 0, i64::from(signal)) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// System calls that the kernel does not make again after a stop, but ends with EINTR, as if a handler had run. They have
/// taken nothing then, so they can be made again.
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

/// Whether a thread's system call has ended because it was stopped, if no signal is pending that it ended for.
pub fn was_cut_short(registers: &Registers) -> bool {
    registers.rax.cast_signed() == i64::from(-libc::EINTR)
        && CUT_SHORT.contains(&registers.orig_rax.cast_signed())
}

/// Whether a thread was stopped in the system call in which it has made a process or a thread.
pub fn has_made_process(registers: &Registers) -> bool {
    let calls = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
    ];
    calls.contains(&registers.orig_rax.cast_signed())
}

/// What the registers of a thread have to be for it to go on as the kernel would have it go on: a system call that was
/// interrupted is made again.
pub fn resumed(registers: Registers) -> Registers {
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOINTR: i64 = -513;
    const ERESTARTNOHAND: i64 = -514;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    /// Of the `syscall` instruction.
    const LENGTH: u64 = 2;
    let mut resumed = registers;
    if registers.orig_rax.cast_signed() >= 0 {
        let again = match registers.rax.cast_signed() {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Some(registers.orig_rax),
            // It goes on with what is left of its time. A handler that has run meanwhile makes that an EINTR, as ever.
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
        // SAFETY: the structure is of integers alone.
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
