//! Patches GOT slots of functions whose entry cannot be patched.
//!
//! A slot that the loader has bound holds the function's address. A lazily bound slot points into its own module until
//! the first call. For such a slot, this module finds the function that the loader will bind, by the loader's rules. In
//! a module with RELRO the slots are read-only: they are made writable for one store, and then read-only again.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use tllmprof_platform::elf::{DefinedFunction, ElfModule, Slot};
use tllmprof_platform::function;
use tllmprof_platform::got::{binding, store};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules::relro;

use super::pool;

/// A function whose calls are intercepted only through GOT slots and `dlsym`. `names` are the names under which its
/// module exports it.
pub(super) struct ByName {
    pub found: DefinedFunction,
    pub names: Vec<std::ffi::CString>,
}

impl ByName {
    pub(crate) fn is_called(&self, name: &CStr) -> bool {
        self.names.iter().any(|known| known.as_c_str() == name)
    }
}

/// Points the GOT slots of `module` that refer to `functions` to the functions' stubs (code that counts calls). Returns
/// the number of patched slots.
pub(super) fn lead_to_stubs(
    module: &ElfModule,
    functions: &[ByName],
    modules: &[ElfModule],
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

/// Returns the address that calls through the slot reach, if the slot leads to `function` and may be patched. For an
/// IFUNC, this is the address of the variant that its resolver selects. Returns `None` in four cases: the slot belongs
/// to another function, already holds a stub's address, is not relocated yet, or may hold the function's address for
/// the program to compare.
fn real(
    module: &ElfModule,
    slot: &Slot<'_>,
    function: &ByName,
    modules: &[ElfModule],
) -> Option<usize> {
    let value = slot.place.load(Ordering::Relaxed);
    if pool::is_stub(value) {
        return None;
    }
    let found = function.found;
    // The loader binds a slot that is not lazy at load time. Such a slot may serve calls, or hold the function's
    // address for the program to compare. Skip it in the module that defines the function: other variables of that
    // module hold the same address, and comparisons with them must not fail.
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
        // Use the slot's value only if it is an address in a module. Otherwise the loader has not
        // relocated the slot yet.
        (true, false) if modules.iter().any(|module| module.contains(value)) => value,
        (true, false) => return None,
        // SAFETY: the function is an IFUNC of a module that is loaded and relocated, so the loader may call it at any
        // time, too.
        (true, true) => unsafe { chosen(found.address) },
        (false, _) => found.address,
    })
}

/// Calls the resolver of an IFUNC, and returns the address of the function that the resolver selects.
///
/// # Safety
/// `address` is that of an IFUNC of a module that stays loaded.
unsafe fn chosen(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance_mut(address);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: an IFUNC's symbol is the address of its resolver, which takes no arguments here, and its module stays
        // loaded.
        let resolver: Option<extern "C" fn() -> usize> = unsafe { function::at(place) };
        resolver.map_or(0, |resolver| resolver())
    }
    // The resolver gets the processor's features as arguments, as glibc's header `sys/ifunc.h` defines them.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: an IFUNC's symbol is the address of its resolver, which takes these arguments, and its module stays
    // loaded. `getauxval` takes no pointers.
    unsafe {
        type Resolver = extern "C" fn(u64, *const [u64; 3]) -> usize;
        const HAS_MORE: u64 = 1 << 62;
        let features = libc::getauxval(libc::AT_HWCAP);
        let more = [
            size_of::<[u64; 3]>() as u64,
            features,
            libc::getauxval(libc::AT_HWCAP2),
        ];
        let resolver = function::at::<Resolver>(place);
        resolver.map_or(0, |resolver| resolver(features | HAS_MORE, &raw const more))
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_platform::elf;
    use tllmprof_steps::step::counted::Counted;

    use super::*;
    use crate::made::{alone, stranger};

    /// Runs `act` with the test program's module, all modules, and the memory mappings.
    fn with_us(act: impl FnOnce(&ElfModule, &[ElfModule], &Maps)) {
        let maps = Maps::read().unwrap();
        elf::with_modules(|modules| {
            let us = lead_to_stubs as *const () as usize;
            let us = modules.iter().find(|module| module.contains(us)).unwrap();
            act(us, modules, &maps);
        });
    }

    #[test]
    fn a_slot_of_a_named_function_leads_to_its_stub() {
        let rule = [
            ("TLLMPROF_STEP", "sym:getppid"),
            ("TLLMPROF_START_STOP", "1000"),
        ];
        alone(&rule, || {
            let address = stranger();
            let found = DefinedFunction {
                address,
                is_ifunc: false,
            };
            let named = |name: &str, found| ByName {
                found,
                names: vec![std::ffi::CString::new(name).unwrap()],
            };
            // SAFETY: `getppid` takes no arguments and returns a number.
            let before = unsafe { libc::getppid() };
            with_us(|us, modules, maps| {
                let lead = |function| lead_to_stubs(us, &[function], modules, maps);
                assert_eq!(lead(named("no_function_is_called_so", found)), 0);
                let another = DefinedFunction {
                    address: address + 1,
                    is_ifunc: false,
                };
                assert_eq!(
                    lead(named("getppid", another)),
                    0,
                    "another function of that name"
                );
                assert!(lead(named("getppid", found)) > 0);
                assert_eq!(lead(named("getppid", found)), 0, "it leads there already");
            });
            // SAFETY: `getppid` takes no arguments and returns a number.
            let after = unsafe { [libc::getppid(), libc::getppid()] };
            assert_eq!(after, [before; 2]);
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(Counted::Named).count(), 2);
        });
    }

    /// Returns the result of [`real`] for a GOT slot of the test program. The slot is for `name` and holds `value`.
    /// `found` is the function to which the slot has to lead.
    fn leads(
        name: &CStr,
        found: DefinedFunction,
        value: usize,
        may_be_lazy: bool,
    ) -> Option<usize> {
        let function = ByName {
            found,
            names: vec![name.to_owned()],
        };
        let place = core::sync::atomic::AtomicUsize::new(value);
        let mut leads = None;
        with_us(|us, modules, _| {
            let slot = Slot {
                place: &place,
                name,
                version: us.wants(name),
                may_be_lazy,
            };
            leads = real(us, &slot, &function, modules);
        });
        leads
    }

    #[test]
    fn a_slot_that_is_not_bound_yet_leads_where_the_loader_would_bind_it() {
        alone(&[], || {
            tllmprof_platform::resolve::remember_initial();
            let address = stranger();
            let found = DefinedFunction {
                address,
                is_ifunc: false,
            };
            let us = lead_to_stubs as *const () as usize;
            assert_eq!(
                leads(c"getppid", found, address, true),
                Some(address),
                "bound"
            );
            assert_eq!(
                leads(c"getppid", found, us, true),
                Some(address),
                "not bound yet"
            );
            assert_eq!(
                leads(c"getppid", found, us, false),
                None,
                "bound to something else"
            );
            assert_eq!(
                leads(c"getpid", found, us, true),
                None,
                "another function's"
            );
            let stub = pool::stub(address).unwrap();
            assert_eq!(
                leads(c"getppid", found, stub, true),
                None,
                "it leads there already"
            );
            let ours = DefinedFunction {
                address: us,
                is_ifunc: false,
            };
            assert_eq!(
                leads(c"getppid", ours, us, false),
                None,
                "the module's own address"
            );
        });
    }

    #[test]
    fn an_ifunc_leads_to_the_function_that_it_chooses() {
        alone(&[], || {
            tllmprof_platform::resolve::remember_initial();
            // `memchr` is an IFUNC: the C library has a variant for each type of processor.
            let name = c"memchr";
            let mut found = None;
            with_us(|us, modules, _| found = binding(us, name, us.wants(name), modules));
            let found = found.unwrap();
            if !found.is_ifunc {
                return crate::skipped::skipped("the C library has no ifunc");
            }
            let chosen = libc::memchr as *const () as usize;
            let us = lead_to_stubs as *const () as usize;
            assert_ne!(chosen, found.address);
            assert_eq!(leads(name, found, chosen, true), Some(chosen), "bound");
            assert_eq!(leads(name, found, us, true), Some(chosen), "not bound yet");
            assert_eq!(leads(name, found, 0x10, true), None, "no address yet");
        });
    }

    #[test]
    fn a_function_is_called_by_any_of_its_names() {
        let function = ByName {
            found: DefinedFunction {
                address: 1,
                is_ifunc: false,
            },
            names: vec![c"f".to_owned(), c"f_alias".to_owned()],
        };
        assert!(function.is_called(c"f") && function.is_called(c"f_alias"));
        assert!(!function.is_called(c"f_") && !function.is_called(c""));
    }
}
