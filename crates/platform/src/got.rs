//! GOT slots: the words that hold the addresses through which a module calls functions by name.
//!
//! A slot that the loader has filled holds the function's address. A lazily bound slot points into its own module until
//! the first call. In a module with RELRO the slots are read-only: they are made writable for one store and then
//! protected again.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::barrier;
use crate::elf::{DefinedFunction, ElfModule, Slot};
use crate::maps::{Maps, Unreadable, page_size};
use crate::modules::{is_relocated, relro};
use crate::resolve;

/// A function name, and the address that the name's GOT slots are to hold.
pub struct Redirect {
    pub name: &'static CStr,
    pub to: usize,
}

/// Redirects the GOT slots of `module` for the functions in `redirects`, if the module is completely loaded.
/// Returns true if at least one slot was redirected.
///
/// # Errors
/// Returns an error if the memory mappings cannot be read, because it is then unknown whether the slots may
/// be written.
pub fn redirect(module: &ElfModule, redirects: &[Redirect]) -> Result<bool, Unreadable> {
    let maps = Maps::read()?;
    if !is_relocated(module, &maps) {
        return Ok(false);
    }
    let relro = relro(module);
    let is_one = |name: &CStr| redirects.iter().find(|redirect| redirect.name == name);
    let mut count = 0;
    module.each_slot(
        |name| is_one(name).is_some(),
        |slot| {
            if let Some(redirect) = is_one(slot.name)
                && store(&slot, redirect.to, &maps, &relro)
            {
                count += 1;
            }
        },
    );
    Ok(count > 0)
}

/// Redirects GOT slots of `module`, if it is completely loaded. `wanted` selects slots by name. `elsewhere`
/// gets the name and the slot's value (`None` if the slot is not bound yet) and returns the new address, or
/// `None` to leave the slot unchanged. Returns the number of redirected slots; `None` if the module is still
/// being loaded or a slot cannot be written.
pub fn lead(
    module: &ElfModule,
    wanted: impl Fn(&CStr) -> bool,
    elsewhere: impl Fn(&CStr, Option<usize>) -> Option<usize>,
) -> Option<usize> {
    let mut has_any = false;
    module.each_slot(&wanted, |_| has_any = true);
    if !has_any {
        return Some(0);
    }
    let maps = Maps::read()
        .ok()
        .filter(|maps| is_relocated(module, maps))?;
    let relro = relro(module);
    let (mut count, mut is_whole) = (0, true);
    module.each_slot(wanted, |slot| {
        let value = slot.place.load(Ordering::Relaxed);
        let is_unbound = slot.may_be_lazy && module.contains(value);
        if let Some(to) = elsewhere(slot.name, (!is_unbound).then_some(value)) {
            if store(&slot, to, &maps, &relro) {
                count += 1;
            } else {
                is_whole = false;
            }
        }
    });
    is_whole.then_some(count)
}

/// Returns the function that the loader would bind to `name` for `module` if this library were not loaded, as far as
/// can be determined. Searches the initially loaded modules in load order, then `module` itself and the modules that
/// it needs.
pub fn binding(
    module: &ElfModule,
    name: &CStr,
    version: Option<&CStr>,
    modules: &[ElfModule],
) -> Option<DefinedFunction> {
    let theirs = |module: &ElfModule| !resolve::is_us(module);
    let initial = modules.iter().filter(|module| resolve::is_initial(module));
    initial
        .filter(|module| theirs(module))
        .find_map(|module| module.definition(name, version))
        .or_else(|| {
            let mut scope = vec![*module];
            let mut index = 0;
            while let Some(next) = scope.get(index).copied() {
                if let Some(found) = Some(&next)
                    .filter(|m| theirs(m))
                    .and_then(|m| m.definition(name, version))
                {
                    return Some(found);
                }
                next.each_needed(|needed| {
                    let is_known = |known: &[ElfModule], m: &ElfModule| {
                        known.iter().any(|k| k.start == m.start)
                    };
                    let found = modules.iter().find(|m| is_called(m, needed));
                    scope.extend(found.filter(|m| !is_known(&scope, m)).copied().as_slice());
                });
                index += 1;
            }
            None
        })
}

/// Returns true if `module` is the library that another module requires by the name `needed` (`DT_NEEDED`). A module
/// without a soname is required by its path or file name.
fn is_called(module: &ElfModule, needed: &CStr) -> bool {
    module.soname() == Some(needed)
        || module.path() == needed
        || module.file_name() == needed.to_bytes()
}

/// Stores the address `to` in one slot. Returns false if the slot is in no mapping, or cannot be made writable.
pub fn store(slot: &Slot<'_>, to: usize, maps: &Maps, relro: &Range<usize>) -> bool {
    let place = core::ptr::from_ref(slot.place);
    let size = page_size();
    let page = place.addr() & !(size - 1);
    let Some(mapping) = maps.at(place.addr()) else {
        return false;
    };
    let is_writable = mapping.is_writable;
    let protect = |rights: i32| {
        // SAFETY: the page contains data of the module, and stays readable.
        unsafe { libc::mprotect(core::ptr::with_exposed_provenance_mut(page), size, rights) == 0 }
    };
    if !is_writable && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // A caller loads the slot and jumps to the address. On AArch64, a thread could see the slot's new value, but not
    // yet the data that the code at that address needs. So the barrier makes all earlier stores visible to all threads
    // before the slot changes.
    if cfg!(target_arch = "aarch64") {
        barrier::process_wide();
    }
    // Write the slot with one store: a thread that calls at this moment uses either the old or the new address.
    slot.place.store(to, Ordering::Release);
    // The page is made read-only again only if it lies in the module's RELRO range. The list of mappings may wrongly
    // report a page after this range as read-only, if it was read while the loader changed the mappings (qemu does not
    // change them atomically). Such a page has to stay writable.
    if !is_writable && relro.contains(&page) {
        protect(libc::PROT_READ);
    }
    true
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::elf;
    use crate::modules::tests::PAGES;

    extern "C" fn other() -> libc::pid_t {
        42
    }

    fn us() -> ElfModule {
        elf::containing(us as *const () as usize).unwrap()
    }

    fn parent() -> libc::pid_t {
        // SAFETY: `getppid` takes no arguments and always succeeds.
        unsafe { libc::getppid() }
    }

    /// Returns the values of this module's GOT slots for the function `wanted`.
    fn slots(wanted: &CStr) -> Vec<usize> {
        let mut slots = Vec::new();
        let visit = |slot: Slot<'_>| slots.push(slot.place.load(Ordering::Relaxed));
        us().each_slot(|name| name == wanted, visit);
        slots
    }

    #[test]
    fn a_slot_is_led_elsewhere_and_back() {
        let _pages = PAGES.lock();
        let real = parent();
        let name = c"getppid";
        let [address] = slots(name)[..] else {
            panic!("{:?}", slots(name));
        };
        let to = other as *const () as usize;
        assert_eq!(redirect(&us(), &[Redirect { name, to }]), Ok(true));
        assert_eq!((parent(), slots(name)), (42, vec![to]));
        let maps = Maps::read().unwrap();
        assert!(is_relocated(&us(), &maps), "the slots are read-only again");

        let held = Cell::new(None);
        let back = lead(
            &us(),
            |slot| slot == name,
            |_, value| {
                held.set(value);
                Some(address)
            },
        );
        assert_eq!((back, held.get()), (Some(1), Some(to)));
        assert_eq!((parent(), slots(name)), (real, vec![address]));
    }

    #[test]
    fn what_a_module_does_not_call_has_no_slot() {
        let _pages = PAGES.lock();
        let name = c"no_such_function";
        assert_eq!(redirect(&us(), &[Redirect { name, to: 0 }]), Ok(false));
        let nowhere = |_: &CStr, _| Some(0);
        assert_eq!(lead(&us(), |slot| slot == name, nowhere), Some(0));
        let left = |_: &CStr, _| None;
        assert_eq!(lead(&us(), |slot| slot == c"getpid", left), Some(0));
    }

    #[test]
    fn a_name_is_bound_as_the_loader_binds_it() {
        resolve::remember_initial();
        elf::with_modules(|modules| {
            let found = |name| binding(&us(), name, None, modules).map(|found| found.address);
            // SAFETY: the name is terminated. RTLD_DEFAULT searches the modules that the process started with.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
            assert_eq!(found(c"getpid"), Some(expected.addr()));
            assert_eq!(found(c"no_such_function"), None);
            let libc = modules
                .iter()
                .find(|module| module.contains(expected.addr()))
                .unwrap();
            assert!(is_called(libc, c"libc.so.6") && !is_called(libc, c"libm.so.6"));
            assert!(is_called(libc, libc.path()));
        });
        assert!(us().is_bound());
    }
}
