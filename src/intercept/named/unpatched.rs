//! No jump at a function's entry: on processors that nobody has written it for.

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
    _code: &[u8],
    _read: impl Fn(usize, &mut [u8]) -> bool,
) -> Result<Entry, Refusal> {
    Err(Refusal::Processor)
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
