//! What is asked for of Python in this process.

use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

/// What is asked for of Python.
#[derive(Clone, Copy, Default)]
pub struct Wants {
    pub gc: bool,
    pub gil: bool,
    /// Functions are marked, or counted.
    pub functions: bool,
    /// The PyTorch profiler runs in the windows.
    pub torch: bool,
    /// Ranges for torch modules.
    pub modules: bool,
    /// An extension has something to do.
    pub extension: bool,
    /// Stacks are sampled.
    pub stacks: bool,
    /// The rank, which is read where the interpreter is as it is: nothing is installed for it.
    pub rank: bool,
}

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static WANTS: OnceBox<Wants> = OnceBox::new();
}

/// What is asked for; nothing before [`set`].
pub fn wants() -> Wants {
    WANTS.get().copied().unwrap_or_default()
}

/// Remembers what is asked for. For the constructor.
pub fn set(wants: Wants) {
    WANTS.get_or_init(|| Box::new(wants));
}

impl Wants {
    pub const fn anything(self) -> bool {
        self.is_installed() || self.rank
    }

    /// Whether something is installed in the interpreter.
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
