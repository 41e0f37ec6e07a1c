//! Unwinds the native stack of another thread of this process: in place if the thread sleeps, or
//! from a copy if it runs.
//!
//! For a sleeping thread, only the stack pointer and the program counter are known. They are enough
//! for functions that find their caller with the stack pointer, as optimised code does. If a
//! function needs its frame pointer, its frame is found by searching the stack for its return
//! address. All memory is read through the kernel, because another thread may unmap it.

mod calls;
mod rules;

use tllmprof_instructions::CallInstruction;
use tllmprof_platform::ids;
use tllmprof_platform::peek;

use super::modules::Modules;
use calls::CallInstructions;
use rules::{Caller, Cfa, Rules, Saved, UnwindInfo, UnwindRule};

/// The most frames that are unwound: of a sleeping thread's stack, and of a copy of a stack.
const MAX_FRAMES: usize = 32;
const MAX_FRAMES_OF_COPY: usize = 127;
/// Number of bytes of the stack that are read at once.
const CHUNK_BYTES: usize = 8 << 10;
/// Number of words of the stack that are searched for a return address.
const SEARCH_WORDS: usize = 512;
const WORD: usize = size_of::<usize>();

/// The unwinder, with cached data about the code of the modules.
#[derive(Default)]
pub(crate) struct Unwinder {
    rules: Rules,
    calls: CallInstructions,
    stack: Stack,
}

/// The registers that are needed to find callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    pub program_counter: usize,
    pub stack_pointer: usize,
    /// The frame pointer register; `None` if its value is unknown.
    pub frame_pointer: Option<usize>,
}

/// The place of the return address of a C library function that starts a process, while the thread is in the system
/// call that this function makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessStart {
    /// The return address is at the stack pointer.
    OnStack,
    /// `vfork` has taken its return address off the stack, because the new process uses the same stack. It keeps the
    /// address in the register of the first argument.
    InRegister(usize),
}

/// A walk along a stack, from given registers outwards.
struct Walk<'a> {
    unwinder: &'a mut Unwinder,
    modules: &'a Modules,
    registers: Registers,
    /// 1 if the walk has reached a caller, else 0. Subtracted from the program counter before
    /// look-ups, because a return address may lie beyond the end of a function whose last
    /// instruction is a call.
    behind_call: usize,
}

impl Unwinder {
    /// Clears the cached data, because modules were loaded or unloaded.
    pub(crate) fn forget(&mut self) {
        (self.rules, self.calls) = (Rules::default(), CallInstructions::default());
    }

    /// Returns the start of the function that contains an address.
    #[cfg(test)]
    pub(crate) fn start_of(&mut self, modules: &Modules, address: usize) -> Option<usize> {
        Some(self.rules.function_at(modules, address)?.start)
    }

    /// Adds a code address to `frames` for each function of a sleeping thread's stack, innermost first. Stops at a
    /// function whose caller cannot be determined, or when `frames` has [`MAX_FRAMES`] addresses. For callers, the
    /// address is inside the call instruction. `start` has a value if the thread sleeps in a system call that starts a
    /// process.
    pub(crate) fn unwind(
        &mut self,
        modules: &Modules,
        mut registers: Registers,
        start: Option<ProcessStart>,
        frames: &mut Vec<usize>,
    ) {
        self.stack.forget();
        if let Some(start) = start
            && let Some(caller) = self.caller_of_clone(registers, start)
        {
            frames.push(registers.program_counter);
            registers = caller;
        }
        self.walk(modules, registers, MAX_FRAMES, frames);
    }

    /// Returns the registers of the caller, if the thread is in a C library function that starts a process. The unwind
    /// table says that such a function has no caller, because the new process or thread has none. The function saves
    /// nothing on the stack, so its return address is where `start` says.
    fn caller_of_clone(&mut self, registers: Registers, start: ProcessStart) -> Option<Registers> {
        if cfg!(not(target_arch = "x86_64")) {
            return None; // the return address is in a register
        }
        let at = registers.stack_pointer;
        let (address, stack_pointer) = match start {
            ProcessStart::OnStack => (self.stack.word(at)?, at + WORD),
            ProcessStart::InRegister(address) => (address, at),
        };
        self.calls.before(address)?;
        Some(Registers {
            // An address inside the call instruction.
            program_counter: address - 1,
            stack_pointer,
            frame_pointer: None,
        })
    }

    /// Does the same as [`Self::unwind`] for a copy of the stack, whose first word is at the stack
    /// pointer. The stack itself may have changed since. Returns true if the whole stack could be
    /// unwound.
    pub(crate) fn unwind_copy(
        &mut self,
        modules: &Modules,
        registers: Registers,
        stack: &[u64],
        frames: &mut Vec<usize>,
    ) -> bool {
        self.stack.copy(registers.stack_pointer, stack);
        self.walk(modules, registers, MAX_FRAMES_OF_COPY, frames)
    }

    fn walk(
        &mut self,
        modules: &Modules,
        registers: Registers,
        most: usize,
        frames: &mut Vec<usize>,
    ) -> bool {
        let mut walk = Walk {
            unwinder: self,
            modules,
            registers,
            behind_call: 0,
        };
        frames.push(registers.program_counter);
        while frames.len() < most {
            match walk.step() {
                UnwindResult::Caller => frames.push(walk.address()),
                UnwindResult::End => return true,
                UnwindResult::Unknown => return false,
            }
        }
        false
    }
}

/// The result of a step from a function to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnwindResult {
    Caller,
    /// The function has no caller, because the thread began there.
    End,
    Unknown,
}

impl Walk<'_> {
    fn address(&self) -> usize {
        self.registers.program_counter - self.behind_call
    }

    /// Replaces the registers with those of the caller. If the function has no caller, or the caller cannot be
    /// determined, the registers are unchanged.
    fn step(&mut self) -> UnwindResult {
        let function = self
            .unwinder
            .rules
            .function_at(self.modules, self.address());
        let (start, rule) = match function {
            Some(UnwindInfo {
                caller: Some(Caller::Nobody),
                ..
            }) => return UnwindResult::End,
            Some(UnwindInfo {
                start,
                caller: Some(Caller::By(rule)),
            }) => (start, rule),
            _ => return UnwindResult::Unknown,
        };
        match self.caller(start, rule) {
            Some(caller) if caller.program_counter > 1 => {
                (self.registers, self.behind_call) = (caller, 1);
                UnwindResult::Caller
            }
            Some(_) => UnwindResult::End,
            None => UnwindResult::Unknown,
        }
    }

    /// Returns the registers of the caller of a function; `None` if they cannot be determined.
    fn caller(&mut self, function: usize, rule: UnwindRule) -> Option<Registers> {
        let Registers {
            stack_pointer,
            frame_pointer,
            ..
        } = self.registers;
        let own = match frame_pointer {
            None if rule.cfa.needs_frame_pointer() => self.find_frame(function, rule),
            known => known,
        };
        let stack = &mut self.unwinder.stack;
        let cfa = match rule.cfa {
            Cfa::Stack(offset) => stack_pointer.wrapping_add_signed(offset),
            Cfa::Frame(offset) => own?.wrapping_add_signed(offset),
            Cfa::AtFrame(offset) => stack.word(own?.wrapping_add_signed(offset))?,
        };
        if cfa <= stack_pointer {
            return None;
        }
        let frame_pointer = match rule.frame_pointer {
            Saved::Kept => own,
            Saved::FromCfa(offset) => stack.word(cfa.wrapping_add_signed(offset)),
            Saved::FromFramePointer(offset) => stack.word(own?.wrapping_add_signed(offset)),
        };
        Some(Registers {
            program_counter: stack.word(cfa.wrapping_add_signed(rule.return_address))?,
            stack_pointer: cfa,
            frame_pointer,
        })
    }

    /// Finds the frame pointer of the function that the walk has reached, by searching the stack for the function's
    /// return address. Prefers an address right after a direct call of this function, or of a function of the same
    /// module that jumps to it near its start (such as `__pread_chk` of the C library, which jumps to `pread`). If
    /// there is none, takes the first address after an indirect call from which the stack can be unwound further.
    fn find_frame(&mut self, function: usize, rule: UnwindRule) -> Option<usize> {
        let from = self.registers.stack_pointer;
        let mut indirect = Vec::new();
        for at in (from..).step_by(WORD).take(SEARCH_WORDS) {
            let Some(word) = self.unwinder.stack.word(at) else {
                break;
            };
            if self.modules.unwind_table(word).is_none() {
                continue;
            }
            match self.unwinder.calls.before(word) {
                Some(CallInstruction::Of(called)) if self.leads_to(called, function) => {
                    return rule.frame_pointer_of(at);
                }
                Some(CallInstruction::Indirect) => indirect.push(at),
                _ => {}
            }
        }
        let mut frames = indirect.into_iter().map(|at| rule.frame_pointer_of(at));
        frames.find_map(|frame| frame.filter(|frame| self.goes_on(function, rule, *frame)))
    }

    /// Returns true if `called` is the start of `function`, or of a function of the same module that jumps to it.
    fn leads_to(&mut self, called: usize, function: usize) -> bool {
        if called == function {
            return true;
        }
        let module = |address| self.modules.unwind_table(address);
        let is_near = matches!((module(called), module(function)), (Some(a), Some(b)) if a == b);
        is_near && self.unwinder.calls.jumps(called, function)
    }

    /// Returns true if the stack can be unwound further, given that the function has this frame
    /// pointer.
    fn goes_on(&mut self, function: usize, rule: UnwindRule, frame_pointer: usize) -> bool {
        let mut walk = Walk {
            registers: Registers {
                frame_pointer: Some(frame_pointer),
                ..self.registers
            },
            unwinder: self.unwinder,
            ..*self
        };
        let Some(caller) = walk.caller(function, rule) else {
            return false;
        };
        (walk.registers, walk.behind_call) = (caller, 1);
        for _ in 0..MAX_FRAMES {
            match walk.step() {
                UnwindResult::Caller => {}
                UnwindResult::End => return true,
                UnwindResult::Unknown => return false,
            }
        }
        true
    }
}

/// A copy of part of the stack.
#[derive(Default)]
struct Stack {
    start: usize,
    bytes: Vec<u8>,
    /// True if words outside this copy must not be read from the stack itself, because it may have
    /// changed since.
    is_all: bool,
}

impl Stack {
    fn forget(&mut self) {
        self.bytes.clear();
        self.is_all = false;
    }

    fn copy(&mut self, start: usize, words: &[u64]) {
        self.bytes.clear();
        self.bytes.reserve(size_of_val(words));
        for word in words {
            self.bytes.extend_from_slice(&word.to_ne_bytes());
        }
        (self.start, self.is_all) = (start, true);
    }

    /// Returns the word of the stack at an address; `None` if the word is not in the copy and cannot be read.
    fn word(&mut self, address: usize) -> Option<usize> {
        let known = self.known(address);
        if known.is_some() || self.is_all {
            return known;
        }
        self.bytes.resize(CHUNK_BYTES, 0);
        self.start = address;
        let span = peek::MemoryRange {
            address,
            length: CHUNK_BYTES,
        };
        let read = peek::read(ids::process(), &[span], &mut self.bytes);
        self.bytes.truncate(read.unwrap_or(0));
        self.known(address)
    }

    fn known(&self, address: usize) -> Option<usize> {
        let from = address.checked_sub(self.start)?;
        let bytes = self.bytes.get(from..from.checked_add(WORD)?)?;
        Some(usize::from_ne_bytes(bytes.try_into().ok()?))
    }
}
