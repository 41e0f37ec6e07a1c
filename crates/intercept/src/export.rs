//! The exported functions, to which the loader binds callers that are linked against CUDA.
//!
//! The real function to call depends on the caller's module. Each export remembers four bindings. A binding is a module
//! with a thunk, which describes the real function for callers in that module. The stub compares the caller with the
//! first binding, and other assembly code compares it with the remaining three. If none of them matches, [`bind`] looks
//! for the binding in the table of all bindings, and makes a new one if there is none.

use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use super::fed;
use super::handlers::handlers;
use super::thunk::{Role, Thunk};
use tllmprof_platform::elf;
use tllmprof_platform::gate;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve::{self, Scope};
use tllmprof_sync::Published;

/// Largest number of bindings (calling modules with the real function for each), for all exports together. For further
/// callers, the real function is searched again at each call.
const MAX_BINDINGS: usize = 1024;

/// The real function that an export stands for in one module. `thunk` describes it; callers from `start` to `start +
/// length` are in the module.
#[repr(C)]
pub struct Binding {
    start: AtomicUsize,
    length: AtomicUsize,
    thunk: AtomicPtr<c_void>,
    export: Published<Export>,
    real: AtomicPtr<c_void>,
}

/// Offsets of the fields in bytes, for the assembly code.
impl Binding {
    pub const START: usize = offset_of!(Self, start);
    pub const LENGTH: usize = offset_of!(Self, length);
    pub const THUNK: usize = offset_of!(Self, thunk);
}

impl Binding {
    const fn none() -> Self {
        Self {
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            thunk: AtomicPtr::new(core::ptr::null_mut()),
            export: Published::none(),
            real: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

lifecycle::global! {
    stage: Doors;

    /// A binding (a calling module and its real function) that is not in use. It matches no caller's address.
    #[fork(keep = "never changes")]
    static NONE: Binding = Binding::none();
    #[fork(keep = "the child's modules are its parent's")]
    #[together(tables)]
    static ALL: [Binding; MAX_BINDINGS] = [const { Binding::none() }; MAX_BINDINGS];
    #[fork(keep = "as the bindings")]
    static ANY: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "never changes")]
    static FAILED: Bare = Bare::new(fails as *mut c_void);
    #[fork(hold)]
    static BINDING: tllmprof_sync::Lock<()> = tllmprof_sync::Lock::new(());
}

/// One exported function. `recent` holds those four of its bindings (real functions, each for callers in one module)
/// that [`bind`] found or made last.
#[repr(C)]
pub struct Export {
    recent: [AtomicPtr<Binding>; 4],
    turn: AtomicUsize,
    name: &'static CStr,
    missing: OnceBox<Bare>,
}

/// Offset in bytes, in a thunk (which describes a real function), of the address of its handler. For the assembly
/// code.
pub const HANDLER: usize = Thunk::HANDLER;

/// A stand-in for a thunk: it has only the address of a handler, which the assembly code jumps to.
#[repr(C)]
struct Bare {
    handler: AtomicPtr<c_void>,
}

// A `Bare` replaces a thunk, and the assembly code reads the handler of both at the same offset.
const _: () = assert!(offset_of!(Bare, handler) == Thunk::HANDLER);

impl Bare {
    const fn new(handler: *mut c_void) -> Self {
        Self {
            handler: AtomicPtr::new(handler),
        }
    }
}

impl Export {
    /// Offset in bytes of the pointers to the four bindings (calling modules with their real functions) that [`bind`]
    /// found or made last, for the assembly code.
    pub const RECENT: usize = offset_of!(Self, recent);

    /// Returns the export for the function `name`, with no bindings (calling modules with their real functions) yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            recent: [const { AtomicPtr::new((&raw const NONE).cast_mut()) }; 4],
            turn: AtomicUsize::new(0),
            name,
            missing: OnceBox::new(),
        }
    }
}

/// Returns 3 (`not initialised`), as the assembly code's `missing` does, for a call whose function cannot be
/// determined.
extern "C" fn fails() -> core::ffi::c_int {
    // No panic: the result is a constant.
    3
}

/// Returns the thunk, which describes the real function, for a call of `export` that returns to the address `caller`.
///
/// The assembly code jumps to the handler of the result.
pub extern "C" fn bind(export: &'static Export, caller: usize) -> *const c_void {
    let _errno = tllmprof_platform::errno::SavedErrno::new();
    let thunk = contained(core::ptr::null(), || bound(export, caller));
    if thunk.is_null() {
        contained((&raw const FAILED).cast(), || straight(export, caller))
    } else {
        thunk
    }
}

/// Returns a stand-in for a thunk (the description of a real function) that jumps directly to the real function. Used
/// after [`bound`] has panicked.
fn straight(export: &'static Export, caller: usize) -> *const c_void {
    let real = resolve::resolve(caller, export.name, None, Scope::All);
    let handler = real.unwrap_or(handlers().missing as *mut c_void);
    core::ptr::from_ref(Box::leak(Box::new(Bare::new(handler)))).cast()
}

fn bound(export: &'static Export, caller: usize) -> *const c_void {
    #[cfg(test)]
    crate::made::panic_if_asked();
    tllmprof_platform::lifecycle::register();
    tllmprof_session::activity::touched();
    super::named::look();
    if let Some(binding) = known(export, caller) {
        remember(export, binding);
        return binding.thunk.load(Ordering::Relaxed);
    }
    let Some(real) = resolve::resolve(caller, export.name, None, Scope::All) else {
        log::once!(
            Warn,
            "{} was called, but no library that is loaded has it",
            export.name.to_string_lossy()
        );
        let missing = export
            .missing
            .get_or_init(|| Box::new(Bare::new(handlers().missing as *mut c_void)));
        return core::ptr::from_ref(missing).cast();
    };
    let thunk: *const c_void = match thunk_for(export, real, caller) {
        Some(thunk) => core::ptr::from_ref(thunk).cast(),
        None => core::ptr::from_ref(Box::leak(Box::new(Bare::new(real)))).cast(),
    };
    if let Some(module) = elf::containing(caller) {
        let _binding = BINDING.lock();
        // A free binding is reused only for the export that it belonged to before. A thread that is executing this
        // export's stub may still be reading the binding, and must not find the thunk of another function there.
        let free = |binding: &&Binding| {
            binding.length.load(Ordering::Relaxed) == 0
                && binding
                    .export
                    .get()
                    .is_none_or(|had| core::ptr::eq(had, export))
        };
        if known(export, caller).is_none()
            && let Some(binding) = ALL.iter().find(free)
        {
            binding.export.set(Some(export));
            binding.real.store(real, Ordering::Relaxed);
            binding.start.store(module.start, Ordering::Relaxed);
            binding.thunk.store(thunk.cast_mut(), Ordering::Relaxed);
            binding
                .length
                .store(module.end - module.start, Ordering::Release);
            remember(export, binding);
            ANY.store(true, Ordering::Release);
        }
    }
    thunk
}

fn known(export: &Export, caller: usize) -> Option<&'static Binding> {
    ALL.iter().find(|binding| {
        let length = binding.length.load(Ordering::Acquire);
        binding
            .export
            .get()
            .is_some_and(|known| core::ptr::eq(known, export))
            && caller.wrapping_sub(binding.start.load(Ordering::Relaxed)) < length
    })
}

fn thunk_for(export: &Export, real: *mut c_void, caller: usize) -> Option<&'static Thunk> {
    let role = super::dlsym::role_of(export.name)?;
    if let Role::Driver(call) = role {
        fed::feed(caller, call);
    }
    let thunk = Thunk::for_function(real, role)?.named(export.name);
    let is_used = match role {
        Role::Cupti(_) => gate::is_wanted() && !gate::is_profiler(caller),
        _ => true,
    };
    if !tllmprof_session::activity::is_active() || !is_used {
        thunk.make_transparent();
    }
    Some(thunk)
}

fn remember(export: &Export, binding: &'static Binding) {
    let turn = export.turn.fetch_add(1, Ordering::Relaxed);
    export.recent[turn % 4].store(core::ptr::from_ref(binding).cast_mut(), Ordering::Release);
}

/// Forgets the bindings (real functions, each for callers in one module) of unloaded modules, because other modules
/// may be loaded at their addresses.
///
/// Bindings of loaded modules are not changed, because other threads may be reading them.
pub fn forget_unloaded() {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    let _binding = BINDING.lock();
    for binding in ALL
        .iter()
        .filter(|binding| binding.length.load(Ordering::Relaxed) != 0)
    {
        let start = binding.start.load(Ordering::Relaxed);
        let caller = elf::containing(start).is_some_and(|module| module.start == start);
        let real = elf::containing(binding.real.load(Ordering::Relaxed).addr()).is_some();
        if caller && real {
            continue;
        }
        let ours = core::ptr::from_ref(binding).cast_mut();
        for recent in binding
            .export
            .get()
            .iter()
            .flat_map(|export| &export.recent)
        {
            let none = (&raw const NONE).cast_mut();
            let _ = recent.compare_exchange(ours, none, Ordering::AcqRel, Ordering::Relaxed);
        }
        binding.length.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{alone, panic_next, stranger};

    fn export(name: &'static CStr) -> &'static Export {
        Box::leak(Box::new(Export::new(name)))
    }

    fn us() -> usize {
        bound as *const () as usize
    }

    /// Returns the binding (the real function for callers in one module) that the stub of this
    /// export compares first.
    fn first(export: &Export) -> &'static Binding {
        // SAFETY: the most recent entry points to a binding, and bindings are statics.
        unsafe { &*export.recent[0].load(Ordering::Relaxed) }
    }

    #[test]
    fn a_module_that_calls_is_remembered() {
        alone(&[], || {
            let export = export(c"getppid");
            assert!(core::ptr::eq(first(export), &raw const NONE));
            let thunk = bound(export, us());
            let binding = first(export);
            assert_eq!(binding.thunk.load(Ordering::Relaxed).cast_const(), thunk);
            let module = elf::containing(us()).unwrap();
            assert_eq!(binding.start.load(Ordering::Relaxed), module.start);
            assert_eq!(
                binding.length.load(Ordering::Relaxed),
                module.end - module.start
            );
            assert_eq!(bound(export, us()), thunk, "the same again");
            assert_ne!(
                bound(export, stranger()),
                thunk,
                "another module's may be another"
            );
            let other = bound(self::export(c"getpid"), us());
            assert_ne!(other, thunk);
        });
    }

    #[test]
    fn an_export_that_panics_leads_to_its_function() {
        alone(&[], || {
            for (name, leads_to) in [
                (c"getppid", stranger()),
                (c"cuGraphLaunch", handlers().missing as usize),
            ] {
                panic_next();
                let thunk = bind(export(name), us());
                // SAFETY: `bind` returned a `Bare`, which consists only of a handler.
                let bare = unsafe { &*thunk.cast::<Bare>() };
                assert_eq!(bare.handler.load(Ordering::Relaxed).addr(), leads_to);
            }
        });
    }

    #[test]
    fn what_nobody_has_is_remembered_by_its_export() {
        alone(&[], || {
            let export = export(c"cuGraphLaunch");
            let missing = bound(export, us());
            assert_eq!(missing, bound(export, stranger()));
            // SAFETY: `bound` returned a `Bare` for the missing function, which consists only of a handler.
            let bare = unsafe { &*missing.cast::<Bare>() };
            let handler = bare.handler.load(Ordering::Relaxed);
            assert_eq!(handler, handlers().missing as *mut c_void);
        });
    }

    #[test]
    fn bindings_of_modules_that_are_gone_are_forgotten() {
        alone(&[], || {
            forget_unloaded();
            let (stays, goes) = (export(c"getppid"), export(c"getpid"));
            bound(stays, us());
            bound(goes, us());
            let gone = first(goes);
            // Simulate a binding whose module was unloaded: no module is at this address.
            gone.start.store(0x10, Ordering::Relaxed);
            forget_unloaded();
            assert!(core::ptr::eq(first(goes), &raw const NONE));
            assert_eq!(gone.length.load(Ordering::Relaxed), 0);
            assert!(known(stays, us()).is_some() && known(goes, 0x10).is_none());
            // The binding of the unloaded module is free again, but only for the export that it
            // belonged to.
            bound(goes, stranger());
            assert!(core::ptr::eq(known(goes, stranger()).unwrap(), gone));
            let function_is_gone = first(stays);
            function_is_gone
                .real
                .store(core::ptr::null_mut(), Ordering::Relaxed);
            forget_unloaded();
            assert!(known(stays, us()).is_none());
        });
    }

    /// Returns true if the library intercepts calls through the export `name`, and false if they go
    /// directly to the real function.
    fn is_seen(name: &'static CStr) -> bool {
        let real = core::ptr::with_exposed_provenance_mut::<c_void>(stranger());
        let thunk = thunk_for(export(name), real, stranger()).unwrap();
        // SAFETY: a thunk's first field is the address of its handler, as in `Bare`.
        let handler = unsafe { &*core::ptr::from_ref(thunk).cast::<Bare>() };
        handler.handler.load(Ordering::Relaxed) != real
    }

    #[test]
    fn in_a_process_that_counts_an_export_is_seen() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            assert!(is_seen(c"cuGraphLaunch") && is_seen(c"cudaGraphLaunch"));
            assert!(fed::is_fed(stranger(), tllmprof_calls::Call::GraphLaunch));
            let real = core::ptr::with_exposed_provenance_mut(stranger());
            assert!(thunk_for(export(c"getppid"), real, stranger()).is_none());
        });
    }

    #[test]
    fn in_a_process_that_asks_for_nothing_an_export_is_transparent() {
        alone(&[], || {
            assert!(!is_seen(c"cuGraphLaunch") && !is_seen(c"cudaGraphLaunch"));
        });
    }
}
