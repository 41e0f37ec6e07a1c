//! The settings' requests for Python in this process.

use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

/// The settings' requests for Python.
#[derive(Clone, Copy, Default)]
pub struct Wants {
    pub gc: bool,
    pub gil: bool,
    /// True if functions are marked or counted.
    pub functions: bool,
    /// True if the PyTorch profiler runs in the windows.
    pub torch: bool,
    /// True if torch modules get ranges.
    pub modules: bool,
    /// True if the extension has work to do.
    pub extension: bool,
    /// True if stacks are sampled.
    pub stacks: bool,
    /// True if the rank is needed. It is read from the interpreter as it is: nothing is installed for it.
    pub rank: bool,
}

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static WANTS: OnceBox<Wants> = OnceBox::new();
}

/// Returns the requests; none before [`set`].
pub fn wants() -> Wants {
    WANTS.get().copied().unwrap_or_default()
}

/// Stores the requests. The constructor calls it.
pub fn set(wants: Wants) {
    WANTS.get_or_init(|| Box::new(wants));
}

impl Wants {
    pub const fn anything(self) -> bool {
        self.is_installed() || self.rank
    }

    /// Returns true if hooks are installed in the interpreter.
    pub const fn is_installed(self) -> bool {
        self.gc
            || self.gil
            || self.functions
            || self.torch
            || self.modules
            || self.extension
            || self.stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wish_is_enough() {
        assert!(!Wants::default().anything());
        let set: [fn(&mut Wants); 7] = [
            |it| it.gc = true,
            |it| it.gil = true,
            |it| it.functions = true,
            |it| it.torch = true,
            |it| it.modules = true,
            |it| it.extension = true,
            |it| it.stacks = true,
        ];
        for set in set {
            let mut wants = Wants::default();
            set(&mut wants);
            assert!(wants.anything() && wants.is_installed());
        }
        let rank = Wants {
            rank: true,
            ..Wants::default()
        };
        assert!(rank.anything() && !rank.is_installed());
    }
}
