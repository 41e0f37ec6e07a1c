//! Hooks native functions that a rule names (`sym:`).
//!
//! ```text
//! modules ──▶ functions ──▶ patching                calls ──▶ session
//!                             └─ refused ──▶ slots, dlsym
//! ```
//!
//! **One method for each function**, so that no call counts twice. Patching the entry is preferred: it catches every
//! call, including those from within the function's own library and those through pointers. GOT slots would catch the
//! calls of some modules and not of others, and the count would depend on how the program was linked. If an entry
//! cannot be patched ([`PatchRefusal`](tllmprof_platform::entry::PatchRefusal) gives the reason), calls are intercepted
//! through GOT slots and `dlsym` instead, and the log reports the reason.
//!
//! **When.** Modules that are loaded at start are searched in this library's constructor, before `main`. A module that
//! is loaded later is found at the next look-up (`dlsym`, `dlvsym`, `cuGetProcAddress`), the next `dlclose`, or a
//! module's first call of a CUDA function. Usually one of these events occurs before the first call of the new module's
//! functions. Otherwise the calls until the next such event are missed. When a module is unloaded, this library forgets
//! the module's functions and patches.
//!
//! This library, the loader and the C library with its parts (such as libpthread) are never hooked, because this
//! library's hooks use them. A process in which nothing matches has no cost after the search of its files.

mod calls;
mod ends;
mod followed;
mod functions;
mod lookup;
pub(crate) mod patch;
pub(crate) mod pool;
#[cfg_attr(target_arch = "aarch64", path = "processor_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "processor_x86_64.rs")]
pub(crate) mod processor;
mod report;
#[cfg(all(test, target_arch = "x86_64"))]
mod scoped_tests;
mod scopes;
mod slots;
#[cfg(test)]
mod tests;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_trampoline.rs")]
pub(crate) mod trampoline;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use core::time::Duration;

use tllmprof_config::{NativeFunctions, Step};
use tllmprof_platform::elf;
#[cfg(target_arch = "aarch64")]
use tllmprof_platform::entry::PatchRefusal;
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::modules::{self, ARE_WATCHED, has_watcher, notify_watcher};
use tllmprof_platform::thread::Inside;
use tllmprof_session::engines;
use tllmprof_sync::{Guard, Lock};

#[cfg(target_arch = "x86_64")]
pub(crate) use calls::scope_begins;
pub(crate) use calls::{after, before};
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use ends::await_end as await_end_of;
#[cfg(target_arch = "x86_64")]
pub(crate) use ends::passes;
use followed::{FunctionRule, NamedRules};
pub(crate) use lookup::lookup;
use patch::Means;
pub(crate) use report::{report, report_unmatched, report_unmatched_scopes};

/// Longest time that a look-up waits for another thread that is searching modules.
const SEARCH_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

lifecycle::global! {
    stage: Doors;

    #[fork(hold)]
    static FOLLOWED: Lock<Option<NamedRules>> = Lock::new(None);
    /// ID of the thread that holds the lock of [`FOLLOWED`], or 0. While that thread holds the lock, the program's
    /// allocator may look up a function, and the thread then enters this module again. In that case the thread must not
    /// wait for its own lock.
    #[fork(by = in_child)]
    static LOOKING: AtomicI32 = AtomicI32::new(0);
    /// True if the step rule (the rule that defines a step) depends on the inference engine, and no known engine has
    /// been found among the modules yet.
    #[fork(keep = "the settings are the same")]
    static SEEKS_ENGINE: AtomicBool = AtomicBool::new(false);
    /// True if there are rules for functions whose calls are scopes (GPU work is attributed to them).
    #[fork(keep = "the settings are the same")]
    static SEEKS_SCOPES: AtomicBool = AtomicBool::new(false);
    /// Value of `elf::changes` (the number of module loads and unloads) at the last search.
    #[fork(keep = "the child's modules are its parent's")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
}

/// Searches the modules that are loaded at start. Called when the library is loaded.
pub fn start() {
    let Some(settings) = tllmprof_session::activity::settings() else {
        return;
    };
    if !tllmprof_session::activity::has_work(settings) {
        return;
    }
    if tllmprof_scopes::are_on() && !settings.scopes.is_empty() {
        follow_scopes(&settings.scopes);
    }
    match &settings.step {
        step @ Step::Symbol { .. } => follow(step),
        Step::Auto => SEEKS_ENGINE.store(true, Ordering::Release),
        _ if SEEKS_SCOPES.load(Ordering::Relaxed) => {}
        _ => return,
    }
    ARE_WATCHED.store(true, Ordering::Release);
    patch::BEFORE_MAIN.store(
        tllmprof_platform::injection::is_preloaded(),
        Ordering::Relaxed,
    );
    calls::remember_loader();
    look_at(elf::changes());
    patch::BEFORE_MAIN.store(false, Ordering::Relaxed);
}

/// Sets the step rule (the rule that defines a step) from a `sym:` rule. Does nothing for other rules.
fn follow(step: &Step) {
    let Step::Symbol { name, library, .. } = step else {
        return;
    };
    if let Some(mut followed) = FOLLOWED.lock_for(SEARCH_LOCK_TIMEOUT) {
        let followed = followed.get_or_insert_default();
        followed.set_step(FunctionRule::new(name, library.clone()));
    }
}

/// Sets the rules for functions whose calls are scopes (GPU work is attributed to them).
fn follow_scopes(functions: &[NativeFunctions]) {
    if let Some(mut followed) = FOLLOWED.lock_for(SEARCH_LOCK_TIMEOUT) {
        let rules = functions.iter();
        let rules = rules.map(|rule| FunctionRule::new(&rule.name, rule.library.clone()));
        followed.get_or_insert_default().scopes = rules.collect();
        SEEKS_SCOPES.store(true, Ordering::Relaxed);
    }
}

/// Searches for a known inference engine whose step is a native function. If one is loaded, the engine's function
/// becomes the step rule (the rule that defines a step).
fn seek_engine() {
    if SEEKS_ENGINE.load(Ordering::Acquire)
        && let Some(found) = engines::find()
        && SEEKS_ENGINE.swap(false, Ordering::AcqRel)
    {
        follow(&found.step);
    }
}

/// Searches the modules for functions that `sym:` rules name, if modules were loaded or unloaded since the last
/// search.
pub(crate) fn look() {
    if lifecycle::is_filtered() {
        return;
    }
    if !ARE_WATCHED.load(Ordering::Acquire) || !crate::bypass::is_looked_up() {
        return;
    }
    crate::attached::look();
    let changes = elf::changes();
    notify_watcher(changes);
    if changes == SEEN.load(Ordering::Acquire) {
        return;
    }
    if SEEKS_ENGINE.load(Ordering::Acquire)
        && !SEEKS_SCOPES.load(Ordering::Relaxed)
        && !engines::is_native_there()
    {
        // No known engine is loaded, as in most processes, so there is nothing to search. This check comes first
        // because it is cheaper than the check of the remaining stack.
        SEEN.store(changes, Ordering::Release);
    } else if modules::has_stack() {
        look_at(changes);
    }
}

fn look_at(changes: u64) {
    seek_engine();
    let is_complete = with_followed(NamedRules::look).unwrap_or_else(follows_nothing_yet);
    if is_complete {
        SEEN.store(changes, Ordering::Release);
    }
}

/// Returns true if modules must be watched although there are no rules yet. There are three such cases: an inference
/// engine is still sought, another part of the library must be called after modules were loaded or unloaded, or the
/// library was attached to a running process.
fn follows_nothing_yet() -> bool {
    SEEKS_ENGINE.load(Ordering::Relaxed) || has_watcher() || crate::attached::is_on()
}

/// Runs `act` on the `sym:` rules under their lock. Returns `None` if the lock is not available or there are no rules.
fn with_followed<R>(act: impl FnOnce(&mut NamedRules) -> R) -> Option<R> {
    // `act` may call a function that a `sym:` rule names. While `Inside` is set, the hook of that function passes the
    // call on without counting it, because counting may wait for a lock that this thread holds.
    let _inside = Inside::enter();
    let us = ids::thread();
    if LOOKING.load(Ordering::Relaxed) == us {
        return None;
    }
    let mut guard: Guard<'_, Option<NamedRules>> = FOLLOWED.lock_for(SEARCH_LOCK_TIMEOUT)?;
    LOOKING.store(us, Ordering::Relaxed);
    let result = guard.as_mut().map(act);
    LOOKING.store(0, Ordering::Relaxed);
    result
}

/// Returns true if this call's return address may be replaced, so that the library sees the call return. This is so
/// if the function's code is known and does not read its return address. `from` is the address in the trampoline or
/// stub (see [`before`]).
fn may_await_end(from: usize) -> bool {
    let may = with_followed(|followed| {
        followed
            .functions
            .iter()
            .any(|function| match &function.means {
                Means::Entry {
                    trampoline,
                    looks_back,
                    ..
                } => trampoline.contains(&from) && !looks_back,
                #[cfg(target_arch = "aarch64")]
                Means::Name(PatchRefusal::Processor { looks_back }) => {
                    function.address == from && !looks_back
                }
                _ => false,
            })
    });
    may == Some(true)
}

/// Runs in the child after a fork. If another thread of the parent held the lock of [`FOLLOWED`], that thread does not
/// exist in the child, and its search is never finished. Then the child searches no further modules.
fn in_child(_: &OnlyThread) {
    if LOOKING.swap(0, Ordering::Relaxed) != 0 {
        ARE_WATCHED.store(false, Ordering::Relaxed);
    }
}
