//! No jump at a function's entry: AArch64, which nobody has written it for. What a function's code
//! tells all the same is whether it looks at its return address.

use core::ops::Range;

use super::maps::Maps;
use super::refusal::Refusal;
use crate::elf::Module;

pub const JUMP: usize = 4;

/// An entry that can be patched: there is none.
#[derive(Clone, Copy)]
pub enum Entry {}

impl Entry {
    pub fn at(&self) -> usize {
        match *self {}
    }

    pub fn looks_back(&self) -> bool {
        match *self {}
    }
}

pub fn examine(
    _start: usize,
    code: &[u8],
    _read: impl Fn(usize, &mut [u8]) -> bool,
) -> Result<Entry, Refusal> {
    let mut words = code.chunks(4);
    let looks_back = words.any(|word| {
        word.try_into()
            .map_or(true, |word| uses_return_address(u32::from_le_bytes(word)))
    });
    Err(Refusal::Processor { looks_back })
}

/// Whether an instruction does with `x30` what a function need not do to return: computes with it,
/// keeps it elsewhere than on the stack, or reads it from the caller's frame record. Where a
/// compiler uses the register for something else the answer may be yes, too.
fn uses_return_address(instruction: u32) -> bool {
    /// Strips a signature off `x30`, for a function that wants to know the address.
    const XPACLRI: u32 = 0xd503_20ff;
    const LINK: u32 = 30;
    const FRAME: u32 = 29;
    const STACK: u32 = 31;
    let at = |bit: u32| instruction >> bit & 0x1f;
    let (target, base, second, index) = (at(0), at(5), at(10), at(16));
    // The classes of the Arm Architecture Reference Manual, C4.1.
    match instruction >> 25 & 0xf {
        // Loads and stores.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            let kind = instruction >> 27 & 7;
            let (is_vector, is_scaled) = (instruction >> 26 & 1 != 0, instruction >> 24 & 1 != 0);
            let is_pair = kind == 0b101;
            let is_single = kind == 0b111;
            if kind == 0b011 && !is_scaled {
                return false; // from a place beside the code
            }
            let is_load = instruction >> 22 & if is_single { 3 } else { 1 } != 0;
            let is_indexed = is_single && !is_scaled && instruction >> 21 & 1 != 0;
            let keeps = !is_vector && !is_load && (target == LINK || is_pair && second == LINK);
            // `ldr xN, [x29, #8]` and `ldp xN, xM, [x29]`
            let reads_record = instruction & 0xffff_ffe0 == 0xf940_07a0 && target != LINK
                || instruction & 0xffff_83e0 == 0xa940_03a0 && second != LINK;
            base == LINK
                || is_indexed && index == LINK
                || keeps && base != STACK && base != FRAME
                || reads_record
        }
        // Arithmetic on registers.
        0b0101 | 0b1101 => base == LINK || index == LINK || at(24) == 0x1b && second == LINK,
        // Arithmetic on a register and a constant; not addresses and moves, which have none.
        0b1000 | 0b1001 => {
            let kind = instruction >> 23 & 7;
            let is_extract = kind == 0b111;
            kind > 1 && kind != 0b101 && (base == LINK || (is_extract && index == LINK))
        }
        _ => instruction == XPACLRI,
    }
}

/// Executable memory near a module: none is needed.
pub struct Region {
    pub of: usize,
}

impl Region {
    pub fn near(_: &Module, _: usize, _: &Maps) -> Option<Self> {
        None
    }

    pub fn add(&mut self, entry: &Entry) -> Result<Range<usize>, Refusal> {
        match *entry {}
    }

    pub fn finish(&self) -> bool {
        false
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn free(self) {}
}

pub fn fits_one_store(entry: &Entry) -> bool {
    match *entry {}
}

pub fn jump(_: usize, _: usize) -> Option<[u8; JUMP]> {
    None
}

/// # Safety
/// None is needed.
pub unsafe fn write(entry: &Entry, _: [u8; JUMP], _: bool) -> Result<(), Refusal> {
    match *entry {}
}
