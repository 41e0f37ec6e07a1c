//! Reads the memory and the stacks of a process that continues to run. None of its threads is stopped.

use std::io;

use crate::elf::{self, Module};
use crate::memory::{self, ProcessMemory};
use crate::unwind::{self, UnknownRegister};

/// The memory of a process, and the modules that were loaded when this view was opened.
pub struct ProcessView {
    memory: ProcessMemory,
    modules: Vec<Module>,
}

/// A frame of the stack of a thread in native code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NativeFrame {
    /// Path of the module that contains the frame's code, as the process sees it.
    pub path: String,
    /// Address in the module's file: of the current instruction in the innermost frame, or of the last byte of the call
    /// instruction in the other frames.
    pub address: u64,
}

impl ProcessView {
    /// Opens a process to read its memory.
    ///
    /// # Errors
    /// Fails if no process has the id `pid`, or if the system does not permit reading its memory.
    pub fn open(pid: i32) -> io::Result<Self> {
        let memory = ProcessMemory::open(pid)?;
        let modules = elf::modules(&memory, &memory::maps(pid)?);
        Ok(Self { memory, modules })
    }

    /// Returns the stack of a sleeping thread, the innermost frame first. Outer frames that cannot be found are
    /// missing. The caller has read `stack_pointer` and `instruction` from `/proc/PID/task/TID/syscall`. The other
    /// registers are not known, so return addresses may have to be guessed from the stack's content.
    #[must_use]
    pub fn frames(&self, stack_pointer: u64, instruction: u64) -> Vec<NativeFrame> {
        let mut addresses = Vec::new();
        let registers = unwind::start(stack_pointer, instruction);
        let _ = unwind::follow(
            &self.memory,
            &self.modules,
            registers,
            UnknownRegister::SearchStack,
            &mut addresses,
        );
        let frame = |(index, address): (usize, u64)| {
            let address = address.checked_sub(u64::from(index > 0))?;
            let module = self
                .modules
                .iter()
                .find(|module| module.contains(address))?;
            Some(NativeFrame {
                path: module.path.clone(),
                address: address.wrapping_sub(module.base),
            })
        };
        addresses
            .into_iter()
            .enumerate()
            .filter_map(frame)
            .collect()
    }

    /// Returns the address of the exported variable `name`, which is searched for in all modules of the process.
    /// Returns `None` if no module exports it.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<u64> {
        let mut modules = self.modules.iter();
        modules.find_map(|module| module.variable(&self.memory, name))
    }

    /// Returns the paths of all modules (program and shared libraries) of the process.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|module| module.path.as_str())
    }

    /// Fills `buffer` from the process's memory at `address`. Returns false if not all of the requested memory is
    /// mapped.
    #[must_use]
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.memory.read(address, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use super::*;

    // The function `read(file, to, count)`, written in assembly with a frame pointer. During its system call, the
    // unwind tables find the caller only by the register RBP. The stack also contains a decoy: an address right after
    // another call instruction. It is closer to the stack pointer than the real return address.
    core::arch::global_asm!(
        ".pushsection .text.tllmprof_made_read,\"ax\",@progbits",
        ".p2align 4",
        ".hidden tllmprof_made_read",
        ".globl tllmprof_made_read",
        ".type tllmprof_made_read,@function",
        "tllmprof_made_read:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset 6, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register 6",
        "sub rsp, 64",
        "lea rcx, [rip + 99f]",
        "mov qword ptr [rsp + 24], rcx",
        "xor eax, eax",
        "syscall",
        "leave",
        ".cfi_def_cfa 7, 8",
        "ret",
        "call rax",
        "99:",
        "ret",
        ".cfi_endproc",
        ".size tllmprof_made_read, . - tllmprof_made_read",
        ".popsection",
    );

    // SAFETY: the assembly above defines this function with these arguments.
    unsafe extern "C" {
        fn tllmprof_made_read(file: i32, to: *mut u8, count: usize) -> isize;
    }

    /// Waits until the thread sleeps in the system call `number`. Returns its stack pointer and instruction pointer.
    fn registers(thread: i32, number: libc::c_long) -> [u64; 2] {
        let path = format!("/proc/self/task/{thread}/syscall");
        loop {
            let text = std::fs::read_to_string(&path).unwrap();
            let words: Vec<_> = text.split_whitespace().collect();
            if let [found, .., stack, instruction] = words[..]
                && found.parse() == Ok(number)
            {
                let hexadecimal = |word: &str| u64::from_str_radix(&word[2..], 16).unwrap();
                break [stack, instruction].map(hexadecimal);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_stack_of_a_thread_that_sleeps_is_read_without_stopping_it() {
        let (send, receive) = mpsc::channel::<()>();
        let (send_id, receive_id) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: the function `gettid` has no arguments.
            send_id.send(unsafe { libc::gettid() }).unwrap();
            let _ = receive.recv();
        });
        let registers = registers(receive_id.recv().unwrap(), libc::SYS_futex);
        let view = ProcessView::open(std::process::id().cast_signed()).unwrap();
        let frames = view.frames(registers[0], registers[1]);
        drop(send);
        thread.join().unwrap();
        let program = std::env::current_exe().unwrap();
        assert!(frames[0].path.contains("libc"), "{frames:?}");
        assert!(
            frames.iter().any(|frame| *frame.path == *program),
            "{frames:?}"
        );
    }

    #[test]
    fn the_callers_of_code_with_a_frame_pointer_are_found() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (send_id, receive_id) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut byte = 0;
            // SAFETY: the function `gettid` has no arguments, and there is room for the byte that is read.
            unsafe {
                send_id.send(libc::gettid()).unwrap();
                tllmprof_made_read(reader.as_raw_fd(), &raw mut byte, 1)
            }
        });
        let registers = registers(receive_id.recv().unwrap(), libc::SYS_read);
        let view = ProcessView::open(std::process::id().cast_signed()).unwrap();
        let frames = view.frames(registers[0], registers[1]);
        drop(writer);
        assert_eq!(thread.join().unwrap(), 0);
        let program = std::env::current_exe().unwrap();
        assert!(*frames[0].path == *program, "{frames:?}");
        // The outermost functions, which start each thread, belong to the C library.
        assert!(
            frames.len() > 3 && frames[frames.len() - 1].path.contains("libc"),
            "{frames:?}"
        );
    }
}
