//! No stubs for functions that a rule names: on processors that nobody has written them for.

use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Whether there are stubs.
pub const HAS_STUBS: bool = false;

/// As on processors that have stubs; there is none here.
pub struct Return {
    pub address: AtomicUsize,
    pub iteration: AtomicU64,
}

pub static AWAITED: [Return; 0] = [];

pub fn stub(_real: usize) -> Option<usize> {
    None
}

pub fn is_stub(_value: usize) -> bool {
    false
}

pub fn return_stub(_index: usize) -> usize {
    0
}

pub fn has_shadow_stack() -> bool {
    true
}

pub fn start() {}
