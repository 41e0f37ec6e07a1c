//! Gates for linked driver functions. A gate is code in front of a driver function that counts the threads inside and
//! can hold calls back. A module that is linked to the driver makes no look-up that could be intercepted: it calls
//! the functions through its GOT slots. So slots for functions that this library does not export are redirected to
//! gates. (If this library is preloaded, the loader binds the slots for the functions that it exports to the exports.)

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::lifecycle;
use crate::system::{self, SystemClock};
use tllmprof_calls::is_called_in_context;

use super::{is_hooked, is_profiler, is_wanted, stand_in};
use crate::elf;
use crate::elf::ElfModule;
use crate::got::lead;
use crate::resolve;

lifecycle::global! {
    /// The value of [`elf::changes`] (the number of loads and unloads of modules) when [`lead_links`] last examined all
    /// modules and missed no slot; 0 if it never did.
    #[fork(keep = "the child's modules are its parent's")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
    /// The value of [`elf::changes`] (the number of loads and unloads of modules) when [`lead_new_links`] last ran.
    #[fork(keep = "the child's modules are its parent's")]
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    /// The time when GOT slots were last redirected to gates (code in front of the driver's functions), in nanoseconds
    /// of `CLOCK_MONOTONIC`; 0 if none were redirected after the last [`forget_new`].
    #[fork(keep = "the child's modules are its parent's")]
    static NEW: AtomicU64 = AtomicU64::new(0);
}

/// The result of redirecting GOT slots to gates (code in front of the driver's functions).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// [`lead_links`] had nothing to redirect: all slots already lead to gates, this process needs no gates, or the
    /// driver is not loaded.
    Led,
    /// [`lead_links`] has redirected some slots. The gates have not counted the calls of driver functions that began
    /// earlier through these slots.
    New,
    /// Some slots cannot be redirected, or a module is still being loaded. Calls through these slots do not pass a
    /// gate.
    Missed,
}

/// Redirects the GOT slots of linked driver functions to gates (code in front of these functions).
pub fn lead_links() -> Links {
    let changes = elf::changes();
    if !is_wanted() || SEEN.load(Ordering::Relaxed) == changes {
        return Links::Led;
    }
    let mut links = Links::Led;
    elf::with_modules(|modules| {
        let Some(driver) = modules.iter().find(|m| m.soname() == Some(c"libcuda.so.1")) else {
            return;
        };
        for module in modules {
            if resolve::is_us(module)
                || module.start == driver.start
                || is_profiler(module.start)
                || !needs_driver(module)
            {
                continue;
            }
            let to_gate = |name: &CStr, value: Option<usize>| {
                let real = match value {
                    Some(value) => driver.contains(value).then_some(value)?,
                    // The slot is not bound yet. Its gate calls the function that the loader would bind. If this
                    // library exports a function of that name, the loader will bind the slot to the export, so the
                    // slot is left unchanged.
                    None if is_hooked(name) => return None,
                    None => driver.defines(name, None)?.addr(),
                };
                let real = core::ptr::with_exposed_provenance_mut(real);
                let gate = stand_in(real, name);
                (gate != real).then_some(gate.addr())
            };
            match lead(module, is_called_in_context, to_gate) {
                Some(0) => {}
                Some(_) if links == Links::Led => links = Links::New,
                Some(_) => {}
                None => links = Links::Missed,
            }
        }
    });
    if links != Links::Missed {
        SEEN.store(changes, Ordering::Relaxed);
    }
    if links == Links::New {
        NEW.store(now(), Ordering::Relaxed);
    }
    links
}

/// Does the work of [`lead_links`], but only if modules were loaded or unloaded since this function last ran. So it
/// does not retry slots that could not be redirected before.
pub fn lead_new_links() {
    let changes = elf::changes();
    if LOOKED.swap(changes, Ordering::Relaxed) != changes {
        lead_links();
    }
}

/// Forgets that slots were redirected, so that [`have_settled`] returns true. The caller ensures that calls that
/// began through the slots' old values have ended by then.
pub fn forget_new() {
    NEW.store(0, Ordering::Relaxed);
}

/// Returns true if no slot was redirected within the last `time`. A call through a slot's old value has not passed a
/// gate (code that counts calls). So it is not counted, and may still be in progress for some time.
pub fn have_settled(time: Duration) -> bool {
    let new = NEW.load(Ordering::Relaxed);
    new == 0 || u128::from(now().saturating_sub(new)) >= time.as_nanos()
}

fn now() -> u64 {
    system::nanoseconds(SystemClock::Monotonic)
}

fn needs_driver(module: &ElfModule) -> bool {
    let mut needs = false;
    module.each_needed(|name| needs |= name.to_bytes().starts_with(b"libcuda.so"));
    needs
}
