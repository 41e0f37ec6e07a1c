//! Interception in a process that the library was attached to: patched GOT slots, and patched entries of the driver.
//!
//! The exports of a preloaded library come first in load order, so the loader binds callers to them. In a running
//! process the callers are already bound. So `attach` patches the modules' GOT slots to point to thunks (the library's
//! replacements), and `detach` restores them. Pointers that the program got from `dlsym` or `cuGetProcAddress` are not
//! changed: calls through these reach the driver, whose patched entries jump to the library ([`crate::jumps`]).

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use tllmprof_platform::elf::{self, ElfModule};
use tllmprof_platform::got::{self, binding};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules::{self, ARE_WATCHED};
use tllmprof_platform::resolve;
use tllmprof_sync::Lock;

use super::dlsym::role_of;
use super::fed;
use super::thunk::{Role, Thunk};

/// Longest time that a thread waits for the lock of [`SLOTS`], which another thread holds while it patches GOT slots.
const SLOTS_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// A function that this library replaces in GOT slots, such as a function of the C library. `ours` is the address of
/// this library's replacement.
#[derive(Clone, Copy)]
pub struct Hook {
    pub name: &'static CStr,
    pub ours: usize,
    /// The address of the function that `ours` replaces. A GOT slot that holds any other address is not patched.
    pub real: usize,
}

impl Hook {
    /// Returns a hook that replaces `name` with this library's function of that name. The address comes from the
    /// library's own symbol table: a look-up by name would find the C library's function, because an attached library
    /// comes late in load order. Returns `None` if the symbol table has no function `name`.
    pub fn own(name: &'static CStr, real: usize) -> Option<Self> {
        let us = elf::containing(attach as *const () as usize)?;
        let ours = us.defines(name, None)?.addr();
        Some(Self { name, ours, real })
    }
}

/// A GOT slot that the library has patched. `place` is the slot's address, `before` its value before the patch, and
/// `now` the value that the library wrote.
struct Led {
    place: usize,
    before: usize,
    now: usize,
}

struct Slots {
    hooks: Vec<Hook>,
    /// The functions that switch the driver's patched entries, if the library was attached to the process. `None` if
    /// the library was preloaded but comes after another library that defines `dlsym`: then only the GOT slots of
    /// look-up functions are patched.
    entries: Option<Entries>,
    led: Vec<Led>,
    /// Address ranges of the modules that were scanned for GOT slots of look-up functions, such as `dlsym`. A module
    /// in this list is not scanned again.
    seen: Vec<(usize, usize)>,
}

/// Functions that switch the driver's patched entries. After `lead`, a call of such a driver function goes to its thunk
/// (this library's replacement). After `release`, the call bypasses this library.
pub struct Entries {
    pub lead: fn(),
    pub release: fn(),
}

lifecycle::global! {
    stage: Doors;

    #[fork(hold)]
    static SLOTS: Lock<Option<Slots>> = Lock::new(None);
    /// True while GOT slots are patched.
    #[fork(keep = "the child's slots are its parent's")]
    static IS_ON: AtomicBool = AtomicBool::new(false);
    /// Value of `elf::changes` (the number of module loads and unloads) at the last scan.
    #[fork(keep = "the child's modules are its parent's")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
}

/// Attaches the library: patches the GOT slots of all loaded modules. Slots of modules that are loaded afterwards are
/// patched by [`look`]. Returns false, and patches nothing, if the lock of [`SLOTS`] is not free in time.
pub fn attach(hooks: Vec<Hook>, entries: Entries) -> bool {
    let Some(mut slots) = SLOTS.lock_for(SLOTS_LOCK_TIMEOUT) else {
        return false;
    };
    slots.get_or_insert_with(|| Slots {
        hooks,
        entries: Some(entries),
        led: Vec::new(),
        seen: Vec::new(),
    });
    drop(slots);
    attach_again()
}

/// Patches the GOT slots that are bound to the `dlsym` of another library. Used if this library was preloaded, but
/// the other library comes first in load order. Slots of modules that are loaded afterwards are patched by [`look`].
pub fn lead_look_ups(hook: Hook) {
    let Some(mut slots) = SLOTS.lock_for(SLOTS_LOCK_TIMEOUT) else {
        return;
    };
    let slots = slots.get_or_insert_with(|| Slots {
        hooks: vec![hook],
        entries: None,
        led: Vec::new(),
        seen: Vec::new(),
    });
    slots.switch_on();
}

/// Returns true while the GOT slots are patched.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Patches the GOT slots again after [`detach`]. Returns false, and patches nothing, if the library was never attached
/// or if the lock of [`SLOTS`] is not free in time.
pub fn attach_again() -> bool {
    let Some(mut slots) = SLOTS.lock_for(SLOTS_LOCK_TIMEOUT) else {
        return false;
    };
    let Some(slots) = slots.as_mut() else {
        return false;
    };
    let Some(entries) = &slots.entries else {
        return false;
    };
    (entries.lead)();
    slots.switch_on();
    true
}

/// Restores the GOT slots, and makes calls of the driver's patched functions bypass this library.
///
/// # Errors
/// Returns the reason why nothing was changed.
pub fn detach() -> Result<(), &'static str> {
    let Some(mut slots) = SLOTS.lock_for(SLOTS_LOCK_TIMEOUT) else {
        return Err("another thread of the process is busy with its modules: try again");
    };
    let attached = slots.as_mut().and_then(|slots| {
        let release = slots.entries.as_ref()?.release;
        Some((slots, release))
    });
    let Some((slots, release)) = attached else {
        return Err("the library was preloaded when the process started, not attached");
    };
    let Some(left) = slots.put_back() else {
        return Err("the memory mappings of the process cannot be read: try again");
    };
    IS_ON.store(false, Ordering::Release);
    SEEN.store(0, Ordering::Release);
    release();
    if left > 0 {
        log::say!(
            Warn,
            "detach: GOT slots that could not be restored: {left} (their memory cannot be made writable). Calls through \
             them still pass through the library, which stays loaded"
        );
    }
    Ok(())
}

/// Patches the GOT slots of modules that have been loaded since the last scan. Scans the modules only if some may have
/// been loaded or unloaded. Does nothing while [`is_on`] returns false.
pub fn look() {
    if !IS_ON.load(Ordering::Acquire) {
        return;
    }
    let changes = elf::changes();
    if SEEN.load(Ordering::Acquire) == changes {
        return;
    }
    if let Some(mut slots) = SLOTS.lock_for(SLOTS_LOCK_TIMEOUT)
        && let Some(slots) = slots.as_mut()
        && IS_ON.load(Ordering::Acquire)
        && slots.lead()
    {
        SEEN.store(changes, Ordering::Release);
    }
}

/// Scans all modules again, even if none was loaded since the last scan. A slot that the loader was binding during
/// the last scan may have a value only now.
pub fn look_again() {
    SEEN.store(0, Ordering::Release);
    look();
}

impl Slots {
    fn switch_on(&mut self) {
        let changes = elf::changes();
        if self.lead() {
            SEEN.store(changes, Ordering::Release);
        }
        IS_ON.store(true, Ordering::Release);
        ARE_WATCHED.store(true, Ordering::Release);
    }

    /// Patches the GOT slots of all modules to point to this library. Returns false if the loader
    /// had not yet relocated one of the modules, or if the memory mappings cannot be read.
    fn lead(&mut self) -> bool {
        lifecycle::register();
        if self.entries.is_none() {
            return self.lead_look_ups();
        }
        let mut is_complete = true;
        let Self { hooks, led, .. } = self;
        elf::with_modules(|modules| {
            let Ok(maps) = Maps::read() else {
                is_complete = false;
                return;
            };
            // Forget GOT slots of unloaded modules: other modules may use their addresses now.
            let is_there = |place: usize| modules.iter().any(|module| module.contains(place));
            led.retain(|slot| is_there(slot.place));
            for module in modules {
                if modules::is_left_alone(module) {
                    continue;
                }
                if !modules::is_relocated(module, &maps) {
                    is_complete = false;
                    continue;
                }
                lead_module(module, modules, hooks, led, &maps);
            }
        });
        is_complete
    }

    /// Patches the GOT slots for look-up functions such as `dlsym`, in modules that were not scanned before. Returns
    /// false if a module with such a slot was left out because the loader has not yet relocated it, or because the
    /// memory mappings cannot be read. Reads the mappings only if a module has such a slot: some processes load
    /// hundreds of modules, and few of them look up functions.
    fn lead_look_ups(&mut self) -> bool {
        let mut is_complete = true;
        let Self { hooks, seen, .. } = self;
        elf::with_modules(|modules| {
            seen.retain(|place| {
                modules
                    .iter()
                    .any(|module| (module.start, module.end) == *place)
            });
            let mut known = None;
            for module in modules {
                let place = (module.start, module.end);
                if seen.contains(&place) || modules::is_left_alone(module) {
                    continue;
                }
                let mut has_any = false;
                let is_hooked = |name: &CStr| hooks.iter().any(|hook| hook.name == name);
                module.each_slot(is_hooked, |_| has_any = true);
                if has_any {
                    // If the list of memory mappings cannot be read, it is unknown which pages are
                    // writable, so no GOT slot is written.
                    let Ok(maps) = known.get_or_insert_with(Maps::read) else {
                        is_complete = false;
                        return;
                    };
                    if !modules::is_relocated(module, maps) {
                        is_complete = false;
                        continue;
                    }
                    lead_hooked(module, modules, hooks, maps);
                }
                seen.push(place);
            }
        });
        is_complete
    }

    /// Restores the patched GOT slots. Returns the number of slots that could not be written. They stay in the list of
    /// patched slots, so that a later call tries again. Returns `None`, and restores no slot, if the process's memory
    /// mappings cannot be read: then it is not known which pages are writable.
    fn put_back(&mut self) -> Option<usize> {
        let mut is_done = false;
        let mut left = Vec::new();
        let Self { hooks, led, .. } = self;
        elf::with_modules(|modules| {
            let Ok(maps) = Maps::read() else { return };
            is_done = true;
            for module in modules {
                let relro = modules::relro(module);
                module.each_slot(
                    |name| is_wanted(name, hooks),
                    |slot| {
                        let place = core::ptr::from_ref(slot.place).addr();
                        let value = slot.place.load(Ordering::Relaxed);
                        let was = led
                            .iter()
                            .find(|led| led.place == place && led.now == value);
                        if let Some(was) = was
                            && !got::store(&slot, was.before, &maps, &relro)
                        {
                            left.push(place);
                        }
                    },
                );
            }
        });
        if is_done {
            led.retain(|slot| left.contains(&slot.place));
        }
        is_done.then_some(left.len())
    }
}

fn is_wanted(name: &CStr, hooks: &[Hook]) -> bool {
    hooks.iter().any(|hook| hook.name == name) || role_of(name).is_some()
}

fn lead_module(
    module: &ElfModule,
    modules: &[ElfModule],
    hooks: &[Hook],
    led: &mut Vec<Led>,
    maps: &Maps,
) {
    let relro = modules::relro(module);
    module.each_slot(
        |name| is_wanted(name, hooks),
        |slot| {
            let value = slot.place.load(Ordering::Relaxed);
            let is_unbound = slot.may_be_lazy && module.contains(value);
            let real = if is_unbound {
                let found = binding(module, slot.name, slot.version, modules);
                found
                    .filter(|found| !found.is_ifunc)
                    .map(|found| found.address)
            } else {
                Some(value)
            };
            // Skip a GOT slot that points into its own module, into no module (an undefined weak name), or into this
            // library.
            let Some(real) = real.filter(|real| {
                let other = modules.iter().find(|other| other.contains(*real));
                other.is_some_and(|other| other.start != module.start && !resolve::is_us(other))
            }) else {
                return;
            };
            let to = match hooks.iter().find(|hook| hook.name == slot.name) {
                Some(hook) => (hook.real == real).then_some(hook.ours),
                None => thunk(module, slot.name, real),
            };
            if let Some(to) = to
                && got::store(&slot, to, maps, &relro)
            {
                led.push(Led {
                    place: core::ptr::from_ref(slot.place).addr(),
                    before: value,
                    now: to,
                });
            }
        },
    );
}

/// Patches the GOT slots of `module` that point to a function that one of the `hooks` replaces.
fn lead_hooked(module: &ElfModule, modules: &[ElfModule], hooks: &[Hook], maps: &Maps) {
    let relro = modules::relro(module);
    for hook in hooks {
        module.each_slot(
            |name| name == hook.name,
            |slot| {
                let value = slot.place.load(Ordering::Relaxed);
                let is_bound = !slot.may_be_lazy || !module.contains(value);
                let real = match is_bound {
                    true => Some(value),
                    false => {
                        binding(module, slot.name, slot.version, modules).map(|found| found.address)
                    }
                };
                if real == Some(hook.real) && !module.contains(hook.real) {
                    got::store(&slot, hook.ours, maps, &relro);
                }
            },
        );
    }
}

/// Returns the stub of the thunk (the library's replacement) that takes the place of the CUDA
/// function `name` in the GOT slots of `module`. Returns `None` if this function is not hooked.
fn thunk(module: &ElfModule, name: &CStr, real: usize) -> Option<usize> {
    let role = role_of(name)?;
    match role {
        // Do not hook CUPTI: kernels are not recorded in a process that the library was attached to.
        Role::Cupti(_) => return None,
        Role::Driver(call) => fed::feed(module.start, call),
        _ => {}
    }
    let real = core::ptr::with_exposed_provenance_mut::<c_void>(real);
    Some(Thunk::for_function(real, role)?.named(name).stub().addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{alone, library, open};

    const CALLER: &str = "int cuGraphLaunch(void*, void*); int getppid(void);\n\
        int call(void) { return cuGraphLaunch(0, 0) + (getppid() == 0); }\n";
    const DRIVER: &str = "int cuGraphLaunch(void* graph, void* stream) { return 42; }\n";

    type Call = extern "C" fn() -> i32;

    const NONE: Entries = Entries {
        lead: || {},
        release: || {},
    };

    extern "C" fn other() -> libc::pid_t {
        0
    }

    fn count() -> u64 {
        use tllmprof_calls::Call::GraphLaunch;
        tllmprof_session::slot().map_or(0, |slot| slot.live(GraphLaunch).count())
    }

    #[test]
    fn slots_lead_to_thunks_until_they_are_given_back() {
        alone(&[("TLLMPROF_START_STOP", "1000")], || {
            let (driver, caller) = (
                library("libcuda.so.1", DRIVER),
                library("libcaller.so", CALLER),
            );
            let name = std::ffi::CString::new(driver.as_str()).unwrap();
            // SAFETY: this test built the library, and it has no constructors.
            let global = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            assert!(!global.is_null());
            let handle = open(&caller);
            // SAFETY: the library defines `call` with this type.
            let call = unsafe {
                core::mem::transmute::<*mut c_void, Call>(libc::dlsym(handle, c"call".as_ptr()))
            };
            let hook = Hook {
                name: c"getppid",
                ours: other as *const () as usize,
                real: libc::getppid as *const () as usize,
            };
            assert!(!attach_again() && detach().is_err(), "it never was");
            assert_eq!((call(), count()), (42, 0));
            assert!(attach(vec![hook], NONE));
            assert_eq!((call(), count()), (43, 1));
            look_again();
            assert_eq!((call(), count()), (43, 2), "once");
            detach().unwrap();
            assert_eq!((call(), count()), (42, 2));
            look_again();
            assert_eq!((call(), count()), (42, 2), "it stays so");
            assert!(attach_again());
            assert_eq!((call(), count()), (43, 3));
            // Load a second module after the library has been attached.
            let later = library("liblater.so", CALLER);
            let handle = open(&later);
            look();
            // SAFETY: the library defines `call` with this type.
            let call = unsafe {
                core::mem::transmute::<*mut c_void, Call>(libc::dlsym(handle, c"call".as_ptr()))
            };
            assert_eq!((call(), count()), (43, 4));
        });
    }

    #[test]
    fn a_slot_that_holds_something_else_is_left_alone() {
        alone(&[("TLLMPROF_START_STOP", "1000")], || {
            // SAFETY: `getppid` takes no arguments and always succeeds.
            let parent = || unsafe { libc::getppid() };
            let before = parent();
            let hook = Hook {
                name: c"getppid",
                ours: other as *const () as usize,
                real: 0x1000,
            };
            assert!(attach(vec![hook], NONE));
            assert_eq!(parent(), before);
        });
    }
}
