//! What becomes of the library's state when the process forks, exits, runs another program, or
//! starts an interpreter again.
//!
//! Every static that can change is declared with [`global!`], which says what becomes of it beside
//! its definition; `tests/globals.rs` fails for one that is not. What has to be done is collected by
//! the linker, so that no list of it is kept by hand. Only what is more than a store is a function of
//! its own: named in the declaration, or, where it belongs to no static, given to [`at_fork!`].
//!
//! - **Fork.** In the child, which has one thread, the blocks are gone through by [`Stage`], and the
//!   statics of a block from first to last. A lock that must be whole there is held over the fork.
//!   Each is given up on after a while: a fork may come from a signal handler that interrupted the
//!   library. What a reset replaces is forgotten, not dropped: the allocator may be in any condition.
//! - **Restart.** An interpreter that the process embeds ends, and one starts anew: [`restart`]. What
//!   a reset replaces is forgotten then, too, as it may have been the old interpreter's.
//! - **Exit.** Memory goes without destructors: nothing is reset. What has to be finished by then is
//!   finished by the session, in its exit handler; a static says so with `#[exit = "..."]`.
//! - **Exec.** All of it is gone, whatever is declared: the new program's copy of the library begins
//!   with the initial values. Environment variables and descriptors that are not closed survive; a
//!   static that stands for one says so with `#[exec = "..."]`.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering,
};
use core::time::Duration;

pub use tllmprof_sync::OnlyThread;
use tllmprof_sync::{Lock, Published};

use crate::block::Inside;
use crate::errno::Kept;
use crate::ids;
use crate::panics::contained;

pub mod attic;
#[cfg(test)]
pub(crate) mod tests;

/// The order of the hooks: before a fork and in the child from first to last, in the parent
/// backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The library's own heap: the child's hooks may allocate.
    Heap,
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
    const ALL: [Self; 7] = [
        Self::Heap,
        Self::Session,
        Self::Doors,
        Self::Modules,
        Self::Sinks,
        Self::Last,
        Self::Again,
    ];
}

/// What a module does about a fork or a restart.
pub struct Hook {
    pub stage: Stage,
    pub before: Option<fn()>,
    pub parent: Option<fn()>,
    pub child: Option<fn(&OnlyThread)>,
    pub restart: Option<fn()>,
}

/// All of them.
#[linkme::distributed_slice]
pub static HOOKS: [Hook];

#[doc(hidden)]
pub use linkme;

/// Declares what a module does about a fork, beside what its statics declare: `stage`, and any of
/// `before`, `parent` and `child`.
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
        restart: None,
    };
}

/// Defines statics, each with what becomes of it.
///
/// ```text
/// global! {
///     stage: Sinks;
///
///     /// Calls so far.
///     #[fork(reset)]
///     static COUNT: AtomicU64 = AtomicU64::new(0);
///     /// The library that was found.
///     #[fork(keep = "the child has it loaded, too")]
///     #[restart(reset)]
///     pub static FOUND: AtomicPtr<Library> = AtomicPtr::new(core::ptr::null_mut());
/// }
/// ```
///
/// `stage`, a [`Stage`], is left out where every static is kept. The attributes come in this order:
///
/// - `#[fork(...)]`, always. In the child:
///   - `keep = "why"`: as in the parent;
///   - `reset`: its initial value, by [`Reset`];
///   - `free`: a lock that is free, whoever held it; what it guards is kept;
///   - `hold`: as `free`, and held over the fork, so that what it guards is whole;
///   - `hold, reset`: held over the fork, and its initial value;
///   - `in_child`: what its method of that name, which takes the [`OnlyThread`], makes of it;
///   - `by = function`: what this makes of it, which takes the same;
///   - `with = OTHER`: what the function of another static of the block makes of it.
/// - `#[restart(...)]`, in the crates that know an interpreter: `keep`, `reset`, and `by` and `with`
///   as above, but that the function takes nothing.
/// - `#[exit = "..."]` and `#[exec = "..."]`, for the few for which these do anything.
/// - `#[together(calls)]`, for what each recorded call reads and at most each iteration writes; `#[together(iterations)]`, for what each
///   iteration uses. Between two calls the program uses the caches for itself: so these lie in one cache line, and in a few.
#[doc(hidden)]
#[macro_export]
macro_rules! __global {
    (@ $stage:tt $(
        $(#[doc = $doc:expr])*
        #[fork($($fork:tt)+)]
        $(#[restart($($restart:tt)+)])?
        $(#[exit = $exit:literal])?
        $(#[exec = $exec:literal])?
        $(#[together($together:ident)])?
        $vis:vis static $name:ident: $type:ty = $initial:expr;
    )+) => {
        $(
            $crate::__global_static!([$($together)?] $(#[doc = $doc])* $vis static $name: $type = $initial;);
            $crate::__global_held!($stage [$($fork)+] $name);
            $($crate::__global_restart!([$($restart)+] $name = $initial);)?
        )+
        $crate::__global_child!($stage $({ [$($fork)+] $name = $initial })+);
    };
    (stage: $stage:ident; $($statics:tt)+) => {
        $crate::__global!(@ [$stage] $($statics)+);
    };
    // A doc comment or the first attribute.
    (# $($statics:tt)+) => {
        $crate::__global!(@ [] # $($statics)+);
    };
}
pub use crate::__global as global;

#[doc(hidden)]
#[macro_export]
macro_rules! __global_static {
    ([] $static:item) => {
        $static
    };
    ([calls] $static:item) => {
        // SAFETY: a section of data that is read and written, as the static's own would be.
        #[unsafe(link_section = ".data.tllmprof_calls")]
        $static
    };
    ([iterations] $static:item) => {
        // SAFETY: a section of data that is read and written, as the static's own would be.
        #[unsafe(link_section = ".data.tllmprof_iterations")]
        $static
    };
}

// Each section begins with a cache line. The library is one object when it is linked, so what is in a section lies together.
core::arch::global_asm!(
    ".section .data.tllmprof_calls,\"aw\",@progbits",
    ".p2align 6",
    ".section .data.tllmprof_iterations,\"aw\",@progbits",
    ".p2align 6",
    ".text",
);

#[doc(hidden)]
#[macro_export]
macro_rules! __global_held {
    ([$stage:ident] [hold $($more:tt)*] $name:ident) => {
        $crate::lifecycle::at_fork! {
            stage: $crate::lifecycle::Stage::$stage,
            before: || $name.hold_over_fork(),
            parent: || $name.release_after_fork(),
        }
    };
    ($stage:tt $fork:tt $name:ident) => {};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __global_child {
    ([] $({ [keep = $why:literal] $name:ident = $initial:expr })+) => {};
    ([$stage:ident] $({ $fork:tt $name:ident = $initial:expr })+) => {
        $crate::lifecycle::at_fork! {
            stage: $crate::lifecycle::Stage::$stage,
            child: |alone: &$crate::lifecycle::OnlyThread| {
                let _ = alone;
                $($crate::__global_in_child!(alone $fork $name = $initial);)+
            },
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __global_in_child {
    ($alone:ident [keep = $why:literal] $name:ident = $initial:expr) => {};
    ($alone:ident [reset] $name:ident = $initial:expr) => {
        $crate::lifecycle::Reset::in_child(&$name, const { $initial }, $alone)
    };
    ($alone:ident [free] $name:ident = $initial:expr) => {
        $name.break_open($alone)
    };
    ($alone:ident [hold] $name:ident = $initial:expr) => {
        $name.break_open($alone)
    };
    ($alone:ident [hold, reset] $name:ident = $initial:expr) => {
        $crate::lifecycle::Reset::in_child(&$name, const { $initial }, $alone)
    };
    ($alone:ident [in_child] $name:ident = $initial:expr) => {
        $name.in_child($alone)
    };
    ($alone:ident [by = $function:path] $name:ident = $initial:expr) => {
        $function($alone)
    };
    ($alone:ident [with = $other:ident] $name:ident = $initial:expr) => {
        let _ = &$other;
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __global_restart {
    ([keep] $name:ident = $initial:expr) => {};
    ([reset] $name:ident = $initial:expr) => {
        $crate::lifecycle::at_fork! {
            stage: $crate::lifecycle::Stage::Sinks,
            restart: || $crate::lifecycle::Reset::reset(&$name, const { $initial }),
        }
    };
    ([by = $function:path] $name:ident = $initial:expr) => {
        $crate::lifecycle::at_fork! {
            stage: $crate::lifecycle::Stage::Sinks,
            restart: $function,
        }
    };
    ([with = $other:ident] $name:ident = $initial:expr) => {
        const _: () = {
            let _ = &raw const $other;
        };
    };
}

/// How long a reset waits for a lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// A static that can be given its initial value again.
pub trait Reset: Sized {
    /// Gives it this value. What it was is put away, not dropped. Leaves it as it is if it is locked
    /// for long.
    fn reset(&self, initial: Self);

    /// As [`Reset::reset`], in the child of a fork, whoever has it locked.
    fn in_child(&self, initial: Self, _: &OnlyThread) {
        self.reset(initial);
    }
}

macro_rules! reset_atomics {
    ($($type:ident),+) => {
        $(
            impl Reset for $type {
                fn reset(&self, initial: Self) {
                    self.store(initial.into_inner(), Ordering::Release);
                }
            }
        )+
    };
}
reset_atomics!(
    AtomicBool,
    AtomicI32,
    AtomicU8,
    AtomicU16,
    AtomicU32,
    AtomicU64,
    AtomicUsize
);

impl<T> Reset for AtomicPtr<T> {
    fn reset(&self, initial: Self) {
        attic::put(self.swap(initial.into_inner(), Ordering::AcqRel));
    }
}

impl<T: Sync> Reset for Published<T> {
    fn reset(&self, initial: Self) {
        attic::put(self.take());
        self.set(initial.get());
    }
}

impl<T: Reset, const N: usize> Reset for [T; N] {
    fn reset(&self, initial: Self) {
        for (place, initial) in self.iter().zip(initial) {
            place.reset(initial);
        }
    }

    fn in_child(&self, initial: Self, alone: &OnlyThread) {
        for (place, initial) in self.iter().zip(initial) {
            place.in_child(initial, alone);
        }
    }
}

impl<T> Reset for Lock<T> {
    fn reset(&self, initial: Self) {
        if let Some(mut value) = self.lock_for(PATIENCE) {
            attic::put(core::mem::replace(&mut *value, initial.into_inner()));
        }
    }

    fn in_child(&self, initial: Self, alone: &OnlyThread) {
        self.break_open(alone);
        self.reset(initial);
    }
}

global! {
    /// The thread that forks and has the locks, 0 for none. A second fork at the same time goes
    /// without.
    #[fork(keep = "`in_child` gives it up when the hooks are through")]
    static FORKER: AtomicI32 = AtomicI32::new(0);
    /// That thread was outside the library's code. Calls that other handlers make meanwhile are
    /// passed through: the thread has our locks.
    #[fork(keep = "it is the forking thread's, which goes on in the child")]
    static HAS_ENTERED: AtomicBool = AtomicBool::new(false);
    /// The library makes no system calls any more.
    #[fork(keep = "a child has its parent's filters")]
    static IS_FILTERED: AtomicBool = AtomicBool::new(false);
    /// Whether the process is a copy of another.
    #[fork(keep = "`in_child` sets it before the hooks")]
    static IS_CHILD: AtomicBool = AtomicBool::new(false);
}

/// The program installs a filter for system calls, which may end the process for any call that the program does not make
/// itself: the library makes none from now on.
pub fn filter_is_installed() {
    IS_FILTERED.store(true, Ordering::Release);
}

/// Whether the library has to do without system calls.
#[inline]
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed)
}

/// Whether the process is a forked child.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Has the hooks called at each fork. Once, before the first look-up or call of a program.
pub fn register() {
    global! {
        #[fork(keep = "handlers are inherited")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// An interpreter starts in the process where none was, or none any more: what the statics keep of an
/// earlier one goes.
pub fn restart() {
    for restart in Stage::ALL
        .into_iter()
        .flat_map(hooks)
        .filter_map(|hook| hook.restart)
    {
        restart();
    }
}

fn hooks(stage: Stage) -> impl Iterator<Item = &'static Hook> {
    HOOKS.iter().filter(move |hook| hook.stage == stage)
}

extern "C" fn before() {
    if is_filtered() {
        return;
    }
    let _errno = Kept::new();
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
    for before in Stage::ALL
        .into_iter()
        .flat_map(hooks)
        .filter_map(|hook| hook.before)
    {
        contained((), before);
    }
}

extern "C" fn in_parent() {
    if is_filtered() {
        return;
    }
    let _errno = Kept::new();
    if FORKER.load(Ordering::Acquire) != ids::thread() {
        return;
    }
    for parent in Stage::ALL
        .into_iter()
        .rev()
        .flat_map(hooks)
        .filter_map(|hook| hook.parent)
    {
        contained((), parent);
    }
    let has_entered = HAS_ENTERED.load(Ordering::Relaxed);
    FORKER.store(0, Ordering::Release);
    if has_entered {
        Inside::leave();
    }
}

/// The child starts anew: nothing counted, nothing open, one thread.
extern "C" fn in_child() {
    if is_filtered() {
        return;
    }
    let _errno = Kept::new();
    // SAFETY: the child of a fork has one thread.
    let alone = unsafe { OnlyThread::new() };
    IS_CHILD.store(true, Ordering::Relaxed);
    for child in Stage::ALL
        .into_iter()
        .flat_map(hooks)
        .filter_map(|hook| hook.child)
    {
        contained((), || child(&alone));
    }
    // The number is the parent's thread's: the child's own is another one.
    if FORKER.swap(0, Ordering::Relaxed) != 0 && HAS_ENTERED.load(Ordering::Relaxed) {
        Inside::leave();
    }
}
