//! Defines what happens to the library's state when the process forks, exits, runs another program, or starts an
//! interpreter again.
//!
//! Every static that can change is declared with [`global!`], and its declaration states how each of these events
//! affects it. `tests/globals.rs` fails for a static that is not declared in this way. The linker collects the actions,
//! so no list of them is maintained by hand. An action that is more than a store is a function. It is named in the
//! declaration or, if it belongs to no static, passed to [`at_fork!`].
//!
//! - **Fork.** The child has one thread. In the child, the `global!` blocks are processed in the order of [`Stage`],
//!   and the statics of a block from first to last. If a lock's value must be consistent in the child, the lock is held
//!   during the fork. Each wait for a lock is bounded: a fork may come from a signal handler that interrupted the
//!   library. A value that a reset replaces is forgotten, not dropped, because the allocator may be in any state.
//! - **Restart.** An interpreter that the process embeds ends, and a new one starts: [`restart`]. A value that a reset
//!   replaces is forgotten here as well, because it may belong to the old interpreter.
//! - **Exit.** No static is reset or dropped. The session (the part of the library that opens and closes windows, the
//!   recorded intervals) finishes pending work in its exit handler. `#[exit = "..."]` marks a static that exit affects.
//! - **Exec.** All state is lost, regardless of the declarations: the new program's copy of the library begins with the
//!   initial values. Environment variables and descriptors that are not closed survive. `#[exec = "..."]` marks a
//!   static that represents such a variable or descriptor.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering,
};
use core::time::Duration;
use std::time::Instant;

pub use tllmprof_sync::OnlyThread;
use tllmprof_sync::{Lock, Published};

use crate::block::Inside;
use crate::errno::SavedErrno;
use crate::ids;
use crate::panics::contained;

pub mod attic;
#[cfg(test)]
pub(crate) mod tests;

/// The order of the hooks (actions at a fork). Before a fork and in the child they run from the first stage
/// to the last, in the parent from the last to the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The library's heap. In the child its lock is released first, because the actions of later stages may allocate.
    Heap,
    /// The session: the part of the library that opens and closes windows (recorded intervals). Its lock is taken
    /// before the locks of all later stages.
    Session,
    /// The tables of intercepted functions, through which calls reach the library.
    Doors,
    /// The walks over loaded modules, which must not begin during a fork.
    Modules,
    /// The crates that write the record and that control profilers.
    Sinks,
    /// The library's state for each thread. This stage comes after the stages of the components that keep a part of
    /// this state.
    Last,
    /// State that is derived from state of an earlier stage, so it can be set in the child only after that stage.
    /// Before the fork, the heap's lock is taken in this stage, because the actions of other stages may allocate.
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

/// The actions of a module at a fork or a restart; `None` for no action.
pub struct Hook {
    pub stage: Stage,
    pub before: Option<fn()>,
    pub parent: Option<fn()>,
    pub child: Option<fn(&OnlyThread)>,
    pub restart: Option<fn()>,
}

/// The hooks (actions at a fork or restart) of all modules, which the linker collects.
#[linkme::distributed_slice]
pub static HOOKS: [Hook];

#[doc(hidden)]
pub use linkme;

/// Declares the actions of a module at a fork or restart, in addition to those of its statics. Takes `stage`, and any
/// of `before`, `parent`, `child` and `restart`.
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
    /// A hook with no actions. Other hooks (actions at a fork or restart) are made from it by setting some of its
    /// fields.
    pub const NONE: Self = Self {
        stage: Stage::Again,
        before: None,
        parent: None,
        child: None,
        restart: None,
    };
}

/// Defines statics, each with the effects of a fork and of other events on it.
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
/// `stage`, a [`Stage`], is left out if every static is kept. The attributes come in this order:
///
/// - `#[fork(...)]`, always. The value in the child is:
///   - `keep = "why"`: the value in the parent;
///   - `reset`: the initial value, set by [`Reset`];
///   - `free`: a free lock, even if a thread of the parent held it; the value that it guards is kept;
///   - `hold`: like `free`, but the lock is held during the fork, so that its value is consistent;
///   - `hold, reset`: the lock is held during the fork, and its value is then the initial one;
///   - `in_child`: set by the static's method of that name, which takes the [`OnlyThread`];
///   - `by = function`: set by this function, which takes the [`OnlyThread`], too;
///   - `with = OTHER`: set by the function of another static of the block.
/// - `#[restart(...)]`, required in the crates that use the Python interpreter and not allowed in others: `keep`,
///   `reset`, and `by` and `with` as above, but the function takes no argument.
/// - `#[exit = "..."]` and `#[exec = "..."]`, for the few statics that these events affect.
/// - `#[together(calls)]`, for values that each recorded call reads and that are written at most once an iteration;
///   `#[together(iterations)]`, for values that each iteration uses. Between two calls the program fills the caches
///   with its own data, so each cache line that a call reads costs a cache miss. Therefore the `calls` values lie in
///   one cache line, and the `iterations` values in a few.
///   `#[together(tables)]`, for large values that are zero at first: next to small statics they would spread those over
///   many pages, and each page that a starting process uses costs a page fault.
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
    // This arm matches a block without `stage`: such a block begins with a doc comment or an attribute.
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
        // SAFETY: the section is for data that is read and written, like the default section of such a static.
        #[unsafe(link_section = ".data.tllmprof_calls")]
        $static
    };
    ([iterations] $static:item) => {
        // SAFETY: the section is for data that is read and written, like the default section of such a static.
        #[unsafe(link_section = ".data.tllmprof_iterations")]
        $static
    };
    ([tables] $static:item) => {
        // SAFETY: the section is for data that is read, written and zero at first, like the default section of such a
        // static.
        #[unsafe(link_section = ".bss.tllmprof_tables")]
        $static
    };
}

// Each of these sections begins at a cache line. The library is linked from one object, so the
// statics of a section are adjacent.
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

/// Longest time that the reset of a static waits for the static's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A static that can be reset to its initial value.
pub trait Reset: Sized {
    /// Sets this static to `initial`. The old value of a pointer or of a lock is put into the [`attic`], and not
    /// dropped. Does nothing if the static has a lock that cannot be acquired.
    fn reset(&self, initial: Self);

    /// Sets this static to `initial` in the child of a fork, even if a thread of the parent held its lock.
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
        if let Some(mut value) = self.lock_for(LOCK_TIMEOUT) {
            attic::put(core::mem::replace(&mut *value, initial.into_inner()));
        }
    }

    fn in_child(&self, initial: Self, alone: &OnlyThread) {
        self.break_open(alone);
        self.reset(initial);
    }
}

global! {
    /// ID of the thread that is forking and holds the locks that the hooks (actions at a fork) take; 0 if there is
    /// none. If another thread forks at the same time, its fork continues without these locks.
    #[fork(keep = "`in_child` gives it up when the hooks are through")]
    static FORKER: AtomicI32 = AtomicI32::new(0);
    /// True if the forking thread was not in the library's own code when the fork began. During the fork it counts as
    /// being in that code, because it holds the library's locks. So calls that other libraries' fork handlers make
    /// are passed on to the real functions, and the library does nothing else with them.
    #[fork(keep = "it belongs to the forking thread, which continues in the child")]
    static HAS_ENTERED: AtomicBool = AtomicBool::new(false);
    /// True if the library must not make system calls any more, because the program has installed a filter
    /// for them (seccomp).
    #[fork(keep = "a child has its parent's filters")]
    static IS_FILTERED: AtomicBool = AtomicBool::new(false);
    /// True if the process is a child that was forked from another one.
    #[fork(keep = "`in_child` sets it before the hooks")]
    static IS_CHILD: AtomicBool = AtomicBool::new(false);
}

/// The longest time that [`filter_is_installed`] waits for the fork of another thread.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which [`filter_is_installed`] checks if that fork is over.
const FORK_CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// Called just before the program installs a filter for system calls (seccomp). The filter may end the process at any
/// system call that the program itself does not make. So from now on the library makes no system calls, except to
/// complete a fork that has begun.
///
/// If another thread is forking, waits for the end of the fork, for a limited time. So usually no fork is under way
/// when the library stops making system calls, and no lock stays held that was taken for a fork.
pub fn filter_is_installed() {
    let us = ids::thread();
    let begin = || FORKER.compare_exchange(0, us, Ordering::AcqRel, Ordering::Acquire);
    let since = Instant::now();
    let mut begun = begin();
    while begun.is_err_and(|forker| forker != us) && since.elapsed() < FORK_TIMEOUT {
        let never = AtomicU32::new(0);
        tllmprof_sync::wait(&never, 0, FORK_CHECK_INTERVAL);
        begun = begin();
    }
    if begun.is_ok() {
        // While this thread is stored in `FORKER`, the fork of another thread takes no locks, and its thread does not
        // enter the library's own code. `in_child` of such a fork still reads `HAS_ENTERED`, so the flag must be false.
        HAS_ENTERED.store(false, Ordering::Relaxed);
    }
    IS_FILTERED.store(true, Ordering::Release);
    if begun.is_ok() {
        FORKER.store(0, Ordering::Release);
    }
}

/// Returns true if the library must not make system calls.
#[inline]
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed)
}

/// Returns true if the process is a forked child.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Registers the library's actions at a fork with `pthread_atfork`. Called at least once, before the program's first
/// look-up or call that the library intercepts.
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

/// Called when an interpreter starts after an earlier one has ended, or for the first time: resets the statics that
/// depend on the earlier interpreter.
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
    let _errno = SavedErrno::new();
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
    // `is_filtered` is not checked here: if the fork began before a filter was installed, its locks have to be
    // released. If no fork holds locks, this function makes no system call.
    if FORKER.load(Ordering::Acquire) == 0 {
        return;
    }
    let _errno = SavedErrno::new();
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

/// Runs in the child of a fork, which has only one thread. Runs the hooks (actions at a fork) that set the library's
/// state for the child. Afterwards no window (recorded interval) is open in the child.
extern "C" fn in_child() {
    // If the fork began before a filter was installed, the locks that it holds have to be released.
    if is_filtered() && FORKER.load(Ordering::Acquire) == 0 {
        return;
    }
    let _errno = SavedErrno::new();
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
    // The stored thread ID is only compared with 0: it is the ID in the parent, and the thread has
    // another ID in the child.
    if FORKER.swap(0, Ordering::Relaxed) != 0 && HAS_ENTERED.load(Ordering::Relaxed) {
        Inside::leave();
    }
}
