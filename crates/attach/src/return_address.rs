//! Searches a thread's stack for the return address of a frame.
//!
//! Of the registers that unwinding needs, `/proc/PID/task/TID/syscall` shows only the stack pointer and the instruction
//! pointer. The unwind tables of code with frame pointers refer to the frame pointer (RBP), which is then not known.
//! Ubuntu 24.04, for example, builds its C library with frame pointers. So this module searches the stack for a word
//! that points right after a call instruction. The function that this instruction calls must be the function of the
//! frame, another function of the same module, or not known.

use crate::elf::Module;
use crate::memory::ProcessMemory;

/// Number of bytes of the stack that are searched. The local variables of most functions need less space.
const SEARCHED_BYTES: usize = 8192;
/// Size of a return address in bytes.
const WORD: u64 = 8;
/// Alignment of the stack pointer before a call, in bytes.
const STACK_ALIGNMENT: u64 = 16;
/// Length in bytes of the longest call instruction without prefixes.
const LONGEST_CALL: usize = 7;

/// The function that a call instruction calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Callee {
    /// The function at this address.
    Known(u64),
    /// The function's address was in a register, or in memory at an address that is not known.
    Unknown,
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
        let is_likely = match callee(memory, modules, u64::from_le_bytes(*word)) {
            Some(Callee::Known(callee)) if callee == function => return Some(end),
            Some(Callee::Known(callee)) => module.contains(callee),
            Some(Callee::Unknown) => true,
            None => false,
        };
        if is_likely && likely.is_none() {
            likely = Some(end);
        }
    }
    likely
}

/// Returns the function that the call instruction before the address `returns_to` calls. `None` if there is no call
/// instruction, or if no module has code there.
fn callee(memory: &ProcessMemory, modules: &[Module], returns_to: u64) -> Option<Callee> {
    let has_code = |address: u64| modules.iter().any(|module| module.has_code_at(address));
    let last = returns_to.checked_sub(1)?;
    has_code(last).then_some(())?;
    let code: [u8; LONGEST_CALL] = memory.bytes(returns_to.checked_sub(LONGEST_CALL as u64)?)?;
    let [_, opcode, operand, a, b, c, d] = code;
    let relative = returns_to.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
    // call FUNCTION (its distance from `returns_to` follows the opcode)
    if operand == 0xe8 && has_code(relative) {
        return Some(Callee::Known(behind_stub(memory, relative)));
    }
    // call [rip + DISTANCE] (the function's address is in memory)
    if (opcode, operand) == (0xff, 0x15)
        && let Some(callee) = memory.word(relative)
    {
        return Some(Callee::Known(callee));
    }
    is_indirect_call(code).then_some(Callee::Unknown)
}

/// Returns true if the bytes end with a call instruction whose operand is a register, or memory to which a register
/// points.
fn is_indirect_call(code: [u8; LONGEST_CALL]) -> bool {
    let is_call_from = |start: usize| {
        let (opcode, operand) = (code[start], code[start + 1]);
        let (mode, extension, has_index) = (operand >> 6, operand >> 3 & 7, operand & 7 == 4);
        // The operand may be followed by an index byte, by an offset of 1 or 4 bytes, or by both.
        let length = match (mode, has_index) {
            (0, false) | (3, _) => 2,
            (0, true) | (1, false) => 3,
            (1, true) => 4,
            (_, false) => 6,
            (_, true) => 7,
        };
        opcode == 0xff && extension == 2 && start + length == LONGEST_CALL
    };
    (0..LONGEST_CALL - 1).any(is_call_from)
}

/// Returns the function to which the stub at `address` jumps. If there is no stub (an entry of a procedure linkage
/// table) at `address`, returns `address`.
fn behind_stub(memory: &ProcessMemory, address: u64) -> u64 {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const BND: u8 = 0xf2;
    const JUMP: [u8; 2] = [0xff, 0x25];
    let Some(code) = memory.bytes::<11>(address) else {
        return address;
    };
    let mut start = if code.starts_with(&ENDBR64) { 4 } else { 0 };
    start += usize::from(code[start] == BND);
    let [first, second, a, b, c, d] = std::array::from_fn(|index| code[start + index]);
    if [first, second] != JUMP {
        return address;
    }
    let next = address + start as u64 + 6;
    let slot = next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
    memory.word(slot).unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::tests::here;

    #[test]
    fn indirect_calls_are_recognized_by_their_length() {
        let ends_with = |bytes: &[u8]| {
            let mut code = [0x90; LONGEST_CALL];
            code[LONGEST_CALL - bytes.len()..].copy_from_slice(bytes);
            is_indirect_call(code)
        };
        let calls: [&[u8]; 7] = [
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x14, 0xc8],
            &[0xff, 0x54, 0x24, 0x10],
            &[0xff, 0x90, 0, 1, 0, 0],
            &[0xff, 0x94, 0x24, 0, 1, 0, 0],
        ];
        for call in calls {
            assert!(ends_with(call), "{call:x?}");
        }
        // A jump, an increment, a call with another length, and no call at all.
        let others: [&[u8]; 4] = [
            &[0xff, 0xe0],
            &[0xff, 0xc0],
            &[0xff, 0x50, 0x18, 0x90],
            &[0x48, 0x89, 0xd0],
        ];
        for other in others {
            assert!(!ends_with(other), "{other:x?}");
        }
    }

    #[test]
    fn an_address_outside_of_all_code_is_no_return_address() {
        let (memory, modules) = here();
        let data = Box::new(0_u64);
        let address_of_data = (&raw const *data).expose_provenance() as u64;
        for address in [0, 1, 0x1000, u64::MAX, address_of_data] {
            assert_eq!(callee(&memory, &modules, address), None);
        }
    }
}
