//! Decodes the call instruction before a return address, to find the function that it calls. Also searches the start
//! of a function for a jump to another function.
//!
//! A walker of stacks needs this where the unwind tables refer to a frame pointer that is not known. Both the sampler
//! of the library and the command, which reads another process, use this crate.

#![forbid(unsafe_code)]

/// Memory that contains code: that of this process, or of another one.
pub trait CodeMemory {
    /// Returns the bytes at `address`; `None` if not all of them can be read.
    fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]>;
}

/// A call instruction, with the function that it calls, if it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallInstruction {
    /// A call of the function with this address. The call is direct, or it uses an entry in a table
    /// that the linker made. The call may also lead to a stub of the linker that jumps through such
    /// an entry.
    Of(usize),
    /// A call of an address in a register or in memory. The function is unknown.
    Indirect,
}

/// Number of bytes at the start of a function that are searched for a jump to another function. Functions that only
/// check their arguments before they jump are shorter.
const JUMP_BYTES: usize = 64;

/// Returns the call instruction that ends at `address`, if there is one.
pub fn call_before(memory: &impl CodeMemory, address: usize) -> Option<CallInstruction> {
    arch::call_before(memory, address)
}

/// Returns true if the code at the start of the function `from` contains a jump to the start of the function `to`.
pub fn jumps(memory: &impl CodeMemory, from: usize, to: usize) -> bool {
    let code = memory.bytes::<JUMP_BYTES>(from);
    code.is_some_and(|code| arch::has_jump(&code, from, to))
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::{CallInstruction, CodeMemory};

    pub(super) fn call_before(memory: &impl CodeMemory, address: usize) -> Option<CallInstruction> {
        let code = memory.bytes::<7>(address.wrapping_sub(7))?;
        let [_, opcode, operand, distance @ ..] = code;
        let function = match (opcode, operand) {
            // These bytes are the code of `call *ENTRY(%rip)`, a call through a table entry.
            (0xff, 0x15) => entry(memory, distance, address),
            // These bytes are the code of `call FUNCTION`, a direct call. The byte may also belong to the operand of
            // another instruction. The target can then hardly ever be read.
            (_, 0xe8) => behind_stub(memory, relative(distance, address)),
            _ => None,
        };
        let indirect = || is_indirect(code).then_some(CallInstruction::Indirect);
        function.map(CallInstruction::Of).or_else(indirect)
    }

    /// Returns true if the code ends with an indirect call (`ff /2`). The byte after `ff` determines
    /// the length.
    pub(super) fn is_indirect(code: [u8; 7]) -> bool {
        (2..=code.len()).any(|length| {
            let [0xff, operand, ..] = code[code.len() - length..] else {
                return false;
            };
            let (mode, is_call, place) = (operand >> 6, operand >> 3 & 7 == 2, operand & 7);
            let distance = match (mode, place) {
                (0, 5) | (2, _) => 4,
                (1, _) => 1,
                _ => 0,
            };
            let has_index = mode != 3 && place == 4;
            is_call && length == 2 + usize::from(has_index) + distance
        })
    }

    /// Returns the function to which the linker's stub `jmp *ENTRY(%rip)` at `address` jumps. An `endbr64` or a `bnd`
    /// prefix may come first. Returns `address` if there is no stub, and `None` if no code can be read there.
    fn behind_stub(memory: &impl CodeMemory, address: usize) -> Option<usize> {
        const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
        let code = memory.bytes::<11>(address)?;
        let rest = code.strip_prefix(ENDBR64).unwrap_or(&code);
        let rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
        let [0xff, 0x25, a, b, c, d, ..] = *rest else {
            return Some(address);
        };
        let length = code.len() - rest.len() + 6;
        entry(memory, [a, b, c, d], address.wrapping_add(length)).or(Some(address))
    }

    /// Returns true if code that lies at `from` contains a jump to `to`, with a distance of four bytes: `jmp` (`e9`)
    /// or a conditional jump (`0f 80` to `0f 8f`). The code is not decoded but searched at each byte, and the first
    /// byte of a conditional jump is not examined: other code hardly ever looks like a jump to exactly this address.
    pub(super) fn has_jump(code: &[u8], from: usize, to: usize) -> bool {
        let mut places = code.windows(5).enumerate();
        places.any(|(at, bytes)| {
            let [0xe9 | 0x80..=0x8f, a, b, c, d] = *bytes else {
                return false;
            };
            relative([a, b, c, d], from.wrapping_add(at + bytes.len())) == to
        })
    }

    /// Returns the function address in a table entry. `distance` is the signed distance of the entry
    /// from the end of the instruction that uses it.
    fn entry(memory: &impl CodeMemory, distance: [u8; 4], behind: usize) -> Option<usize> {
        let address = memory.bytes(relative(distance, behind));
        address.map(usize::from_le_bytes)
    }

    fn relative(distance: [u8; 4], behind: usize) -> usize {
        behind.wrapping_add_signed(i32::from_le_bytes(distance) as isize)
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::{CallInstruction, CodeMemory};

    pub(super) fn call_before(memory: &impl CodeMemory, address: usize) -> Option<CallInstruction> {
        let at = address.wrapping_sub(4);
        let code = u32::from_le_bytes(memory.bytes(at)?);
        let words = (code << 6).cast_signed() >> 6;
        match code {
            // These bits are the code of `bl FUNCTION`, a direct call.
            _ if code >> 26 == 0b10_0101 => Some(CallInstruction::Of(
                at.wrapping_add_signed(words as isize * 4),
            )),
            // These bits are the code of `blr REGISTER`, a call of an address in a register.
            _ if code & 0xffff_fc1f == 0xd63f_0000 => Some(CallInstruction::Indirect),
            _ => None,
        }
    }

    /// Returns true if code that lies at `from` contains a jump to `to` (`b FUNCTION`).
    pub(super) fn has_jump(code: &[u8], from: usize, to: usize) -> bool {
        code.chunks_exact(4).enumerate().any(|(at, bytes)| {
            let &[a, b, c, d] = bytes else {
                return false;
            };
            let code = u32::from_le_bytes([a, b, c, d]);
            let words = (code << 6).cast_signed() >> 6;
            let target = from.wrapping_add_signed((at as isize + words as isize) * 4);
            code >> 26 == 0b00_0101 && target == to
        })
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::arch::{has_jump, is_indirect};
    use super::*;

    /// Memory that contains only these bytes, at this address.
    struct Code(usize, Vec<u8>);

    impl CodeMemory for Code {
        fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
            let start = address.checked_sub(self.0)?;
            self.1.get(start..)?.first_chunk().copied()
        }
    }

    #[test]
    fn indirect_calls_are_known_by_their_instruction() {
        let code = |tail: &[u8]| {
            let mut code = [0x90; 7];
            code[7 - tail.len()..].copy_from_slice(tail);
            is_indirect(code)
        };
        // The indirect calls *%rax, *%r13, *%r12, *(%rax), *0x18(%rax), *(%rax,%rcx,8), *0x8(%rsp), *0x10(%rsp),
        // *0x100(%rax), *0x100(%rbx), *0x100(%rsp), *(%r12).
        for tail in [
            &[0xff, 0xd0][..],
            &[0x41, 0xff, 0xd5],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x10],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x14, 0xc8],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x54, 0x24, 0x10],
            &[0xff, 0x90, 0, 1, 0, 0],
            &[0xff, 0x93, 0, 1, 0, 0],
            &[0xff, 0x94, 0x24, 0, 1, 0, 0],
            &[0x41, 0xff, 0x14, 0x24],
        ] {
            assert!(code(tail), "{tail:x?}");
        }
        // None of these is a call instruction: jmp *%rax, push (%rax), inc %eax, a call whose distance is cut off, a
        // call with another instruction after it, mov %rdx,%rax.
        for tail in [
            &[0xff, 0xe0][..],
            &[0xff, 0x30],
            &[0xff, 0xc0],
            &[0xff, 0x50],
            &[0xff, 0x50, 0x18, 0x90],
            &[0x48, 0x89, 0xd0],
        ] {
            assert!(!code(tail), "{tail:x?}");
        }
    }

    #[test]
    fn jumps_to_another_function_are_known_by_their_distance() {
        // The code is `cmp %rcx,%rdx; ja ...; jmp +0x100`, and lies at 0x1000. The jump ends at 0x100a.
        let code = [0x48, 0x39, 0xca, 0x77, 0x05, 0xe9, 0, 1, 0, 0, 0x90];
        assert!(has_jump(&code, 0x1000, 0x110a));
        assert!(!has_jump(&code, 0x1000, 0x110b));
        // The code is `ja -0x10`, and ends at 0x1006.
        let code = [0x0f, 0x87, 0xf0, 0xff, 0xff, 0xff];
        assert!(has_jump(&code, 0x1000, 0xff6));
        assert!(!has_jump(&[], 0x1000, 0x1000));
    }

    #[test]
    fn calls_by_the_linkers_tables_lead_to_their_function() {
        // The code is `call 1f; 1: jmp *2f(%rip); 2: FUNCTION`, followed by `call *2b(%rip)`.
        let mut code = vec![0x90, 0x90, 0xe8, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0];
        code.extend(0x1234_usize.to_le_bytes());
        code.extend([0xff, 0x15]);
        code.extend((-14_i32).to_le_bytes());
        let end = 0x1000 + code.len();
        let memory = Code(0x1000, code);
        let of_function = Some(CallInstruction::Of(0x1234));
        assert_eq!(call_before(&memory, 0x1007), of_function);
        assert_eq!(call_before(&memory, end), of_function);
        assert_eq!(call_before(&memory, 16), None);
    }

    #[test]
    fn a_direct_call_has_a_target_that_can_be_read() {
        // The code is `mov ...(%rip),%rax; call *%rax`. One byte of the distance looks like a direct call.
        let code = vec![0x48, 0x8b, 0x05, 0, 0xe8, 0, 0, 0xff, 0xd0];
        let end = 0x1000 + code.len();
        let memory = Code(0x1000, code);
        assert_eq!(call_before(&memory, end), Some(CallInstruction::Indirect));
    }
}
