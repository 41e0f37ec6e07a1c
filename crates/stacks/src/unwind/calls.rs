//! Stores what is known of the call instructions before return addresses and of jumps between functions, so that each
//! is decoded once.

use core::hash::BuildHasherDefault;
use std::collections::HashMap;

use tllmprof_instructions::{CallInstruction, CodeMemory, call_before, jumps};
use tllmprof_platform::peek;
use tllmprof_python::stacks::OfAddress;

/// The most return addresses whose call instruction is stored.
const MAX_ADDRESSES: usize = 1 << 12;
/// The most pairs of functions in `jumps`.
const MAX_JUMPS: usize = 1 << 10;

/// The memory of this process.
struct OwnMemory;

impl CodeMemory for OwnMemory {
    fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        peek::copy(address, &mut bytes)?;
        Some(bytes)
    }
}

/// The call instruction before each return address that was looked up; `None` if there is no call
/// instruction.
#[derive(Default)]
pub(super) struct CallInstructions {
    before: HashMap<usize, Option<CallInstruction>, BuildHasherDefault<OfAddress>>,
    /// For each pair of function addresses that was examined: true if the first function jumps to the second one.
    jumps: HashMap<(usize, usize), bool, BuildHasherDefault<OfAddress>>,
}

impl CallInstructions {
    /// Returns the call instruction that ends at an address, if there is one.
    pub(crate) fn before(&mut self, address: usize) -> Option<CallInstruction> {
        if self.before.len() >= MAX_ADDRESSES {
            self.before.clear();
        }
        *self
            .before
            .entry(address)
            .or_insert_with(|| call_before(&OwnMemory, address))
    }

    /// Returns true if the code at the start of the function `from` contains a jump to the start of the function `to`.
    pub(crate) fn jumps(&mut self, from: usize, to: usize) -> bool {
        if self.jumps.len() >= MAX_JUMPS {
            self.jumps.clear();
        }
        *self
            .jumps
            .entry((from, to))
            .or_insert_with(|| jumps(&OwnMemory, from, to))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn calls_in_this_process_lead_to_their_function() {
        // The code is `call 1f; 1: jmp *2f(%rip); 2: FUNCTION`, followed by `call *2b(%rip)`.
        let mut code = vec![0xe8, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0];
        code.extend(0x1234_usize.to_le_bytes());
        code.extend([0xff, 0x15]);
        code.extend((-14_i32).to_le_bytes());
        let padded = [&[0x90; 2][..], &code].concat();
        let start = padded.as_ptr().addr();
        let mut calls = CallInstructions::default();
        let of_function = Some(CallInstruction::Of(0x1234));
        assert_eq!(calls.before(start + 7), of_function);
        assert_eq!(calls.before(start + padded.len()), of_function);
        assert_eq!(calls.before(16), None);
    }
}
