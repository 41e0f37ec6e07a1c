//! GOT slots of functions whose entry is left as it is.
//!
//! A slot that the loader has filled holds the function's address; one that it fills at the first
//! call leads back into its own module until then, and what it would be filled with is looked up
//! here, as the loader does. In a module with RELRO the slots are read-only: they are made writable
//! for the one store and then what they were.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering;

use super::maps::{Maps, page_size};
use super::modules::{is_relocated, relro};
use super::pool;
use crate::elf::{Found, Module, Slot};
use crate::intercept::resolve;

/// A function that is seen where others reach it by name.
pub struct ByName {
    pub found: Found,
    pub names: Vec<std::ffi::CString>,
}

impl ByName {
    pub fn is_called(&self, name: &CStr) -> bool {
        self.names.iter().any(|known| known.as_c_str() == name)
    }
}

/// Leads the slots of `module` that stand for `functions` to their stubs. How many.
pub fn lead_to_stubs(
    module: &Module,
    functions: &[ByName],
    modules: &[Module],
    maps: &Maps,
) -> usize {
    let mut count = 0;
    let relro = relro(module);
    module.each_slot(
        |name| functions.iter().any(|function| function.is_called(name)),
        |slot| {
            let of_slot = functions.iter().find_map(|function| {
                let is_it = function.is_called(slot.name);
                is_it
                    .then(|| real(module, &slot, function, modules))
                    .flatten()
            });
            let stub = of_slot.and_then(pool::stub);
            if stub.is_some_and(|stub| store(&slot, stub, maps, &relro)) {
                count += 1;
            }
        },
    );
    count
}

/// A function that a module is to find elsewhere.
pub struct Redirect {
    pub name: &'static CStr,
    pub to: usize,
}

/// Leads the slots of `module` for these functions elsewhere, if it is loaded for good. Whether
/// there are any.
pub fn redirect(module: &Module, redirects: &[Redirect]) -> bool {
    let Ok(maps) = Maps::read() else { return false };
    if !is_relocated(module, &maps) {
        return false;
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
    count > 0
}

/// Leads slots of `module` elsewhere, if it is loaded for good: those of names that are `wanted`, to
/// where `elsewhere` says for a name and what the slot holds; nothing where the loader fills it at the
/// first call. How many, or nothing where the module is being loaded or a slot cannot be written.
pub fn lead(
    module: &Module,
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

/// What the slot leads to, if that is `function`.
fn real(module: &Module, slot: &Slot<'_>, function: &ByName, modules: &[Module]) -> Option<usize> {
    let value = slot.place.load(Ordering::Relaxed);
    if pool::is_stub(value) {
        return None;
    }
    let found = function.found;
    // Such a slot may serve calls, or say the function's address, for the program to compare. The
    // module that defines the function keeps that address in other words, too.
    if !slot.may_be_lazy && module.contains(found.address) {
        return None;
    }
    if value == found.address && !found.is_ifunc {
        return Some(value);
    }
    let is_unbound = slot.may_be_lazy && module.contains(value);
    if !found.is_ifunc && !is_unbound {
        return None;
    }
    if binding(module, slot.name, slot.version, modules) != Some(found) {
        return None;
    }
    Some(match (found.is_ifunc, is_unbound) {
        // Not what the loader has not made an address yet.
        (true, false) if modules.iter().any(|module| module.contains(value)) => value,
        (true, false) => return None,
        // SAFETY: the function is an IFUNC of a module that is loaded and relocated, and made to be
        // asked by the loader at any time.
        (true, true) => unsafe { chosen(found.address) },
        (false, _) => found.address,
    })
}

/// The function that an IFUNC says is meant.
///
/// # Safety
/// `address` is that of an IFUNC of a module that stays loaded.
unsafe fn chosen(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance::<core::ffi::c_void>(address);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        core::mem::transmute::<*const core::ffi::c_void, extern "C" fn() -> usize>(place)()
    }
    // What the processor can do, as glibc tells it: see its sys/ifunc.h.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise; getauxval takes no pointers.
    unsafe {
        type Resolver = extern "C" fn(u64, *const [u64; 3]) -> usize;
        const HAS_MORE: u64 = 1 << 62;
        let features = libc::getauxval(libc::AT_HWCAP);
        let more = [
            size_of::<[u64; 3]>() as u64,
            features,
            libc::getauxval(libc::AT_HWCAP2),
        ];
        core::mem::transmute::<*const core::ffi::c_void, Resolver>(place)(
            features | HAS_MORE,
            &raw const more,
        )
    }
}

/// What `module` gets when it asks for `name`, as far as can be told: from what the process started
/// with, in order, then from itself and what it needs.
pub fn binding(
    module: &Module,
    name: &CStr,
    version: Option<&CStr>,
    modules: &[Module],
) -> Option<Found> {
    let theirs = |module: &Module| !resolve::is_us(module);
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
                    let is_known =
                        |known: &[Module], m: &Module| known.iter().any(|k| k.start == m.start);
                    let found = modules.iter().find(|m| is_called(m, needed));
                    scope.extend(found.filter(|m| !is_known(&scope, m)).copied().as_slice());
                });
                index += 1;
            }
            None
        })
}

/// Whether another module needs it by this name. Where it has none of its own, that is its file's.
fn is_called(module: &Module, needed: &CStr) -> bool {
    module.soname() == Some(needed)
        || module.path() == needed
        || module.file_name() == needed.to_bytes()
}

fn store(slot: &Slot<'_>, stub: usize, maps: &Maps, relro: &Range<usize>) -> bool {
    let place = core::ptr::from_ref(slot.place);
    let size = page_size();
    let page = place.addr() & !(size - 1);
    let Some(mapping) = maps.at(place.addr()) else {
        return false;
    };
    let is_writable = mapping.is_writable;
    let protect = |rights: i32| {
        // SAFETY: the page is one of the module's data, and stays readable.
        unsafe { libc::mprotect(core::ptr::with_exposed_provenance_mut(page), size, rights) == 0 }
    };
    if !is_writable && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // One store: a thread that calls meanwhile finds the old address or the new one.
    slot.place.store(stub, Ordering::Release);
    // Not a page beside them, which another thread will write to: what tells of the mappings may be
    // wrong while the loader changes them (qemu's does not do it at one time).
    if !is_writable && relro.contains(&page) {
        protect(libc::PROT_READ);
    }
    true
}
