//! What becomes of the library's state when the process forks.
//!
//! Each module that has such state declares it beside the state with [`at_fork!`]. The declarations
//! are collected by the linker, so that no list of them is kept by hand. Locks are held over the
//! fork, so that the child, which has none of the other threads, finds them free and what they guard
//! whole. Each is given up on after a while: a fork may come from a signal handler that interrupted
//! the library.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

pub use tllmprof_sync::OnlyThread;

use crate::ids;
use crate::thread::Inside;

/// The order of the hooks: before a fork and in the child from first to last, in the parent
/// backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The session, whose lock is taken before all others.
    Session,
    /// The tables of the doors.
    Doors,
    /// The walks over loaded modules.
    Modules,
    /// What records and captures.
    Sinks,
    /// The threads' records, when all have looked at their parts.
    Last,
    /// What depends on the new state.
    Again,
}

impl Stage {
    const ALL: [Self; 6] = [
        Self::Session,
        Self::Doors,
        Self::Modules,
        Self::Sinks,
        Self::Last,
        Self::Again,
    ];
}

/// What a module does about a fork.
pub struct Hook {
    pub stage: Stage,
    pub before: Option<fn()>,
    pub parent: Option<fn()>,
    pub child: Option<fn(&OnlyThread)>,
}

/// All of them.
#[linkme::distributed_slice]
pub static HOOKS: [Hook];

#[doc(hidden)]
pub use linkme;

/// Declares what a module does about a fork: `stage`, and any of `before`, `parent` and `child`.
#[doc(hidden)]
#[macro_export]
macro_rules! __at_fork {
    (stage: $stage:expr, $($when:ident: $act:expr),+ $(,)?) => {
        const _: () = {
            #[$crate::lifecycle::linkme::distributed_slice($crate::lifecycle::HOOKS)]
            #[linkme(crate = $crate::lifecycle::linkme)]
            static HOOK: $crate::lifecycle::Hook = $crate::lifecycle::Hook {
                stage: $stage,
                $($when: Some($act),)+
                ..$crate::lifecycle::Hook::NONE
            };
        };
    };
}
pub use crate::__at_fork as at_fork;

impl Hook {
    /// Does nothing.
    pub const NONE: Self = Self {
        stage: Stage::Again,
        before: None,
        parent: None,
        child: None,
    };
}

/// The thread that forks and has the locks, 0 for none. A second fork at the same time goes without.
static FORKER: AtomicI32 = AtomicI32::new(0);
/// That thread was outside the library's code. Calls that other handlers make meanwhile are passed
/// through: the thread has our locks.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);
/// Whether the process is a copy of another.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether the process is a forked child.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Has the hooks called at each fork. Once, before the first look-up or call of a program.
pub fn register() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

fn hooks(stage: Stage) -> impl Iterator<Item = &'static Hook> {
    HOOKS.iter().filter(move |hook| hook.stage == stage)
}

extern "C" fn before() {
    let us = ids::thread();
    if FORKER
        .compare_exchange(0, us, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    HAS_ENTERED.store(
        Inside::enter().map(Inside::stay).is_some(),
        Ordering::Relaxed,
    );
    for before in Stage::ALL.into_iter().flat_map(hooks).filter_map(|hook| hook.before) {
        before();
    }
}

extern "C" fn in_parent() {
    if FORKER.load(Ordering::Acquire) != ids::thread() {
        return;
    }
    for parent in Stage::ALL
        .into_iter()
        .rev()
        .flat_map(hooks)
        .filter_map(|hook| hook.parent)
    {
        parent();
    }
    let has_entered = HAS_ENTERED.load(Ordering::Relaxed);
    FORKER.store(0, Ordering::Release);
    if has_entered {
        Inside::leave();
    }
}

/// The child starts anew: nothing counted, nothing open, one thread.
extern "C" fn in_child() {
    // SAFETY: the child of a fork has one thread.
    let alone = unsafe { OnlyThread::new() };
    IS_CHILD.store(true, Ordering::Relaxed);
    for child in Stage::ALL.into_iter().flat_map(hooks).filter_map(|hook| hook.child) {
        child(&alone);
    }
    // The number is the parent's thread's: the child's own is another one.
    if FORKER.swap(0, Ordering::Relaxed) != 0 && HAS_ENTERED.load(Ordering::Relaxed) {
        Inside::leave();
    }
}
