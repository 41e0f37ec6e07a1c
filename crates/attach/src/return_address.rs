//! Searches a thread's stack for the return address of a frame.
//!
//! Of the registers that unwinding needs, `/proc/PID/task/TID/syscall` shows only the stack pointer and the instruction
//! pointer. The unwind tables of code with frame pointers refer to the frame pointer (RBP), which is then not known.
//! Ubuntu 24.04, for example, builds its C library with frame pointers. So this module searches the stack for a word
//! that points right after a call instruction. The function that this instruction calls must be the function of the
//! frame, another function of the same module, or not known.

use tllmprof_instructions::{CallInstruction, CodeMemory, call_before};

use crate::elf::Module;
use crate::memory::ProcessMemory;

/// Number of bytes of the stack that are searched. The local variables of most functions need less space.
const SEARCHED_BYTES: usize = 8192;
/// Size of a return address in bytes.
const WORD: u64 = 8;
/// Alignment of the stack pointer before a call, in bytes.
const STACK_ALIGNMENT: u64 = 16;

impl CodeMemory for ProcessMemory {
    fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
        self.bytes(address as u64)
    }
}

/// Finds the frame of the function that begins at `function` in `module`. Returns the address after the frame's return
/// address, that is, the caller's stack pointer after the return. `None` if no word on the stack is a likely return
/// address.
///
/// A call of `function` itself is preferred. Otherwise, takes the nearest call whose callee is not known or belongs to
/// `module`: such a callee may be `function`, or may have jumped to it.
pub(crate) fn find_frame_end(
    memory: &ProcessMemory,
    modules: &[Module],
    module: &Module,
    function: u64,
    stack_pointer: u64,
) -> Option<u64> {
    let mut stack = vec![0; SEARCHED_BYTES];
    let first = stack_pointer & !(WORD - 1);
    let length = memory.read_some(first, &mut stack);
    let mut likely = None;
    for (index, word) in stack[..length].as_chunks::<8>().0.iter().enumerate() {
        let end = first + WORD * (index as u64 + 1);
        if !end.is_multiple_of(STACK_ALIGNMENT) {
            continue;
        }
        let is_likely = match call(memory, modules, u64::from_le_bytes(*word)) {
            Some(CallInstruction::Of(callee)) if callee as u64 == function => return Some(end),
            Some(CallInstruction::Of(callee)) => module.contains(callee as u64),
            Some(CallInstruction::Indirect) => true,
            None => false,
        };
        if is_likely && likely.is_none() {
            likely = Some(end);
        }
    }
    likely
}

/// Returns the call instruction before the address `returns_to`. `None` if there is none, or if no module has code
/// there.
fn call(memory: &ProcessMemory, modules: &[Module], returns_to: u64) -> Option<CallInstruction> {
    let last = returns_to.checked_sub(1)?;
    let has_code = modules.iter().any(|module| module.has_code_at(last));
    has_code.then(|| call_before(memory, returns_to as usize))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::tests::here;

    #[test]
    fn an_address_outside_of_all_code_is_no_return_address() {
        let (memory, modules) = here();
        let data = Box::new(0_u64);
        let address_of_data = (&raw const *data).expose_provenance() as u64;
        for address in [0, 1, 0x1000, u64::MAX, address_of_data] {
            assert_eq!(call(&memory, &modules, address), None);
        }
    }
}
