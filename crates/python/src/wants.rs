//! The features in Python that the settings request.

use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

/// The features in Python that the settings request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wants {
    pub gc: bool,
    pub gil: bool,
    /// True if the library's hooks have to see calls of Python functions, to count, mark or measure them.
    pub functions: bool,
    /// True if the PyTorch profiler runs in windows.
    pub torch: bool,
    /// True if torch modules get ranges or scopes.
    pub modules: bool,
    /// True if the registered extension (work of another crate in the interpreter) is requested.
    pub extension: bool,
    /// True if Python stacks are sampled.
    pub stacks: bool,
    /// True if the rank is needed. The rank is read from Python's modules, which needs no hooks.
    pub rank: bool,
}

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static WANTS: OnceBox<Wants> = OnceBox::new();
}

/// Returns the requested features; none before [`set`] was called.
pub(crate) fn wants() -> Wants {
    WANTS.get().copied().unwrap_or_default()
}

/// Stores the requested features. Called when the library is loaded.
pub(crate) fn set(wants: Wants) {
    WANTS.get_or_init(|| Box::new(wants));
}

impl Wants {
    pub(crate) const fn anything(self) -> bool {
        self.is_installed() || self.rank
    }

    /// Returns true if hooks have to be installed in the interpreter.
    pub(crate) const fn is_installed(self) -> bool {
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
