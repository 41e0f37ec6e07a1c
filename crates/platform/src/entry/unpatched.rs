//! The version for AArch64 of the code that patches function entries with jumps. On AArch64 no entry is patched. But
//! a function's code is examined for reads of its return address, as on x86-64.

use super::PatchRefusal;

pub const JUMP: usize = 4;

/// A function's entry that can be patched. The type has no values, because on AArch64 no entry can be
/// patched.
#[derive(Clone, Copy)]
pub enum PatchableEntry {}

impl PatchableEntry {
    pub fn at(&self) -> usize {
        match *self {}
    }

    pub fn looks_back(&self) -> bool {
        match *self {}
    }
}

pub fn examine(
    start: usize,
    code: &[u8],
    read: impl Fn(usize, &mut [u8]) -> bool,
) -> Result<PatchableEntry, PatchRefusal> {
    let looks_back = code.chunks(4).enumerate().any(|(index, word)| {
        let Ok(word) = word.try_into().map(u32::from_le_bytes) else {
            return true;
        };
        uses_return_address(word)
            || near_target(word, start + index * 4).is_some_and(|target| {
                !(start..start + code.len()).contains(&target) && leads_out(target, &read)
            })
    });
    Err(PatchRefusal::Processor { looks_back })
}

/// Returns the target of `instruction`, which is at the address `at`, if it is `b`: the unconditional direct branch
/// that is not a call. Returns `None` for all other instructions.
fn near_target(instruction: u32, at: usize) -> Option<usize> {
    let distance = (instruction << 6).cast_signed() >> 4;
    (instruction >> 26 == 0b00_0101).then(|| at.wrapping_add_signed(distance as isize))
}

/// Returns true if the code at `target` is a stub that jumps to another module through a GOT slot, or if the code
/// cannot be read.
///
/// After a jump to such a stub, the other module's function returns directly to the caller of the examined function.
/// Some functions of the loader read the return address to identify that caller, so the return address must not be
/// replaced.
fn leads_out(target: usize, read: &impl Fn(usize, &mut [u8]) -> bool) -> bool {
    const BTI_C: [u8; 4] = 0xd503_245f_u32.to_le_bytes();
    let mut code = [0; 8];
    if !read(target, &mut code) {
        return true;
    }
    let code = code.strip_prefix(&BTI_C).unwrap_or(&code);
    // The first instruction of such a stub is `adrp x16, PAGE`.
    code.first_chunk()
        .is_none_or(|first| u32::from_le_bytes(*first) & 0x9f00_001f == 0x9000_0010)
}

/// Returns true if an instruction uses the return address, which is in `x30`, for something other than the return: it
/// computes with `x30`, saves `x30` elsewhere than on the stack, or reads the return address from the frame record.
/// Also returns true for a jump to an address in a register, because a function of another module may be at this
/// address. Some compilers also use `x30` as an ordinary register, which counts as a use.
fn uses_return_address(instruction: u32) -> bool {
    /// The instruction `xpaclri`, which removes the pointer authentication code from `x30`. A function
    /// executes it if it needs the plain return address.
    const XPACLRI: u32 = 0xd503_20ff;
    const LINK: u32 = 30;
    const FRAME: u32 = 29;
    const STACK: u32 = 31;
    let at = |bit: u32| instruction >> bit & 0x1f;
    let (target, base, second, index) = (at(0), at(5), at(10), at(16));
    // These bits select one of the classes of instructions in the Arm Architecture Reference
    // Manual, C4.1.
    match instruction >> 25 & 0xf {
        // These bits select loads and stores.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            let kind = instruction >> 27 & 7;
            let (is_vector, is_scaled) = (instruction >> 26 & 1 != 0, instruction >> 24 & 1 != 0);
            let is_pair = kind == 0b101;
            let is_single = kind == 0b111;
            if kind == 0b011 && !is_scaled {
                return false; // a load relative to the program counter, which does not use `x30`
            }
            let is_load = instruction >> 22 & if is_single { 3 } else { 1 } != 0;
            let is_indexed = is_single && !is_scaled && instruction >> 21 & 1 != 0;
            let keeps = !is_vector && !is_load && (target == LINK || is_pair && second == LINK);
            // Two instructions read the frame record: `ldr xN, [x29, #8]` and `ldp xN, xM, [x29]`.
            let reads_record = instruction & 0xffff_ffe0 == 0xf940_07a0 && target != LINK
                || instruction & 0xffff_83e0 == 0xa940_03a0 && second != LINK;
            base == LINK
                || is_indexed && index == LINK
                || keeps && base != STACK && base != FRAME
                || reads_record
        }
        // These bits select arithmetic on registers.
        0b0101 | 0b1101 => base == LINK || index == LINK || at(24) == 0x1b && second == LINK,
        // These bits select instructions with a constant. Those that compute an address (`adr`, `adrp`) and moves
        // of a constant are skipped, because they have no source register.
        0b1000 | 0b1001 => {
            let kind = instruction >> 23 & 7;
            let is_extract = kind == 0b111;
            kind > 1 && kind != 0b101 && (base == LINK || (is_extract && index == LINK))
        }
        // The other classes include branches to an address in a register, within the function or out
        // of it: `br`, `braa` and similar.
        _ => instruction == XPACLRI || instruction & 0xfeff_f000 == 0xd61f_0000,
    }
}

pub fn fits_one_store(entry: &PatchableEntry) -> bool {
    match *entry {}
}

pub fn jump(_: usize, _: usize) -> Option<[u8; JUMP]> {
    None
}

/// # Safety
/// There are no requirements.
pub unsafe fn write(entry: &PatchableEntry, _: [u8; JUMP], _: bool) -> Result<(), PatchRefusal> {
    match *entry {}
}
