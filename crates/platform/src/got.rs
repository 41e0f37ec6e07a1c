//! GOT slots: what a module's calls through names lead to.
//!
//! A slot that the loader has filled holds the function's address; one that it fills at the first
//! call leads back into its own module until then. In a module with RELRO the slots are read-only:
//! they are made writable for the one store and then what they were.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::elf::{Found, Module, Slot};
use crate::maps::{Maps, page_size};
use crate::modules::{is_relocated, relro};
use crate::resolve;

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

/// What `module` gets when it asks for `name`, as far as can be known: from what the process started
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

/// Leads one slot to `to`; whether that could be done.
pub fn store(slot: &Slot<'_>, to: usize, maps: &Maps, relro: &Range<usize>) -> bool {
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
    slot.place.store(to, Ordering::Release);
    // Not a page beside them, which another thread will write to: the list of mappings may be wrong
    // while the loader changes them (qemu's does not do it at one time).
    if !is_writable && relro.contains(&page) {
        protect(libc::PROT_READ);
    }
    true
}
