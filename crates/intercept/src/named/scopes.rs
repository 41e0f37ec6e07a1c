//! Functions whose calls are scopes (`TLLMPROF_SCOPES`): GPU work is attributed to them. Each has a number. Its
//! trampoline (the code to which its patched entry jumps) contains the number, and [`of_trampoline`] reads it there.

use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::hash::DefaultHasher;
use std::path::Path;

use tllmprof_platform::{lifecycle, log};
use tllmprof_recorder::Label;
use tllmprof_symbols::short;
use tllmprof_sync::Published;

use super::pool::SCOPES;

/// Largest number of functions whose calls can be scopes (GPU work is attributed to them).
pub(crate) const MAX_FUNCTIONS: usize = 256;

/// A function whose calls are scopes (GPU work is attributed to them). A function that is unloaded and loaded again
/// keeps its number.
pub(super) struct ScopeFunction {
    /// Hash of the function's file, address and name; 0 if this element of [`FUNCTIONS`] is free.
    hash: AtomicU64,
    name: Published<Label>,
    /// True if the step rule (the rule that defines a step) names the function, too, so that its calls are also
    /// counted.
    is_step: AtomicBool,
}

lifecycle::global! {
    #[fork(keep = "code contains the numbers")]
    #[together(tables)]
    static FUNCTIONS: [ScopeFunction; MAX_FUNCTIONS] = [const {
        ScopeFunction {
            hash: AtomicU64::new(0),
            name: Published::none(),
            is_step: AtomicBool::new(false),
        }
    }; MAX_FUNCTIONS];
}

impl ScopeFunction {
    /// Returns the name of the scope, or `None` if this element of [`FUNCTIONS`] is free.
    pub(crate) fn name(&self) -> Option<&'static [u8]> {
        Some(self.name.get()?.text())
    }

    pub(crate) fn is_step(&self) -> bool {
        self.is_step.load(Ordering::Relaxed)
    }

    pub(crate) fn set_step(&self) {
        self.is_step.store(true, Ordering::Relaxed);
    }
}

/// Returns the function with this number, whose calls are scopes (GPU work is attributed to them). Returns `None` if
/// the number is too large.
pub(super) fn function(number: usize) -> Option<&'static ScopeFunction> {
    FUNCTIONS.get(number)
}

/// Returns the number of the function `name` at `address` of the file at `path`, and assigns a number to a new
/// function. Returns `None` if all numbers are in use. Must not be called by several threads at a time.
pub(crate) fn number(path: &Path, address: usize, name: &str) -> Option<usize> {
    let mut hasher = DefaultHasher::new();
    (path, address, name).hash(&mut hasher);
    let hash = hasher.finish() | 1;
    let of = |hash| {
        let known = |function: &ScopeFunction| function.hash.load(Ordering::Relaxed) == hash;
        FUNCTIONS.iter().position(known)
    };
    let number = of(hash).or_else(|| of(0))?;
    let function = &FUNCTIONS[number];
    if function.name.get().is_none() {
        let name = short(name);
        function.name.set(Label::keep(|| name.bytes()));
        function.hash.store(hash, Ordering::Relaxed);
    }
    Some(number)
}

/// Opcode of the instruction after the call in a trampoline (the code to which a patched entry jumps). The instruction
/// has no effect; its operand is the function's number: `nop dword ptr [rax + …]`.
pub(crate) const SAYS_NUMBER: [u8; 3] = [0x0f, 0x1f, 0x80];

/// Returns the function whose trampoline (the code to which its patched entry jumps) contains the return address
/// `from`.
pub(super) fn of_trampoline(from: usize) -> Option<&'static ScopeFunction> {
    let number = core::ptr::with_exposed_provenance::<u32>(from + SAYS_NUMBER.len());
    // SAFETY: `from` is the return address of the call in a scope's trampoline, and the instruction with the number
    // lies there.
    function(unsafe { number.read_unaligned() } as usize)
}

/// Warns, once, that too many calls of scope functions are in progress at a time, so that no GPU work is attributed
/// to some of them.
#[cold]
pub(crate) fn report_over_full() {
    lifecycle::global! {
        #[fork(keep = "the parent has said it")]
        static SAID: AtomicBool = AtomicBool::new(false);
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        log::say!(
            Warn,
            "TLLMPROF_SCOPES: over {SCOPES} calls are under way at once, or were left by longjmp: what further ones launch has no \
             known layer"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_keeps_its_number_and_no_two_share_one() {
        let of = |address| number(Path::new("/lib/libmade.so"), address, "made::f(int)");
        let one = of(0x10).unwrap();
        assert_eq!(of(0x10), Some(one));
        assert_eq!(function(one).unwrap().name(), Some(&b"made::f"[..]));
        let others: Vec<_> = (1..MAX_FUNCTIONS)
            .map(|place| of(0x10 + place).unwrap())
            .collect();
        assert!(!others.contains(&one));
        assert_eq!(of(0), None, "all are in use");
        assert_eq!(of(0x11), Some(others[0]));
        assert!(function(MAX_FUNCTIONS).is_none());
    }
}
