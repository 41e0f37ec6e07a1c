//! Functions whose calls are scopes (`TLLMPROF_SCOPES`), as their trampolines know them: by number.

use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::hash::DefaultHasher;
use std::path::Path;

use tllmprof_platform::{lifecycle, log};
use tllmprof_recorder::Label;
use tllmprof_symbols::short;
use tllmprof_sync::Published;

use super::pool::SCOPES;

/// Functions that can be scopes.
pub const MOST: usize = 256;

/// A function whose calls are scopes. One that is unloaded and loaded again has the same number.
pub struct Function {
    /// Of its file and place in there; 0 for none.
    hash: AtomicU64,
    name: Published<Label>,
    /// The rule of steps names it, too.
    is_step: AtomicBool,
}

lifecycle::global! {
    #[fork(keep = "code says the numbers")]
    static FUNCTIONS: [Function; MOST] = [const {
        Function {
            hash: AtomicU64::new(0),
            name: Published::none(),
            is_step: AtomicBool::new(false),
        }
    }; MOST];
}

impl Function {
    /// What the scope is called.
    pub fn name(&self) -> Option<&'static [u8]> {
        Some(self.name.get()?.text())
    }

    pub fn is_step(&self) -> bool {
        self.is_step.load(Ordering::Relaxed)
    }

    pub fn set_step(&self) {
        self.is_step.store(true, Ordering::Relaxed);
    }
}

/// The function of that number.
pub fn function(number: usize) -> Option<&'static Function> {
    FUNCTIONS.get(number)
}

/// The number of the function `name` at `address` of the file at `path`; none where too many have one. Not for several
/// threads at a time.
pub fn number(path: &Path, address: usize, name: &str) -> Option<usize> {
    let mut hasher = DefaultHasher::new();
    (path, address, name).hash(&mut hasher);
    let hash = hasher.finish() | 1;
    let of = |hash| {
        let known = |function: &Function| function.hash.load(Ordering::Relaxed) == hash;
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

/// The instruction behind the call in a trampoline, which does nothing and says the number: `nop dword ptr [rax + …]`.
pub const SAYS_NUMBER: [u8; 3] = [0x0f, 0x1f, 0x80];

/// The function whose trampoline returns to `from`.
pub fn of_trampoline(from: usize) -> Option<&'static Function> {
    let number = core::ptr::with_exposed_provenance::<u32>(from + SAYS_NUMBER.len());
    // SAFETY: `from` is the return address of the call in a trampoline that is a scope's, which lies in front of that
    // instruction.
    function(unsafe { number.read_unaligned() } as usize)
}

/// More calls are under way than can be scopes.
#[cold]
pub fn report_over_full() {
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
        let others: Vec<_> = (1..MOST).map(|place| of(0x10 + place).unwrap()).collect();
        assert!(!others.contains(&one));
        assert_eq!(of(0), None, "all are in use");
        assert_eq!(of(0x11), Some(others[0]));
        assert!(function(MOST).is_none());
    }
}
