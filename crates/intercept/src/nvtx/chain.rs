//! Installs this library's NVTX functions when a module of the program looks for its tool (NVTX's word for a
//! profiler). If there is another tool, that tool is initialised first, and this library's functions (wrappers) call
//! the tool's functions next.
//!
//! Each module could have different next functions, but in practice a tool gives all modules the same ones. Modules
//! with the same next functions share a [`Chain`](super::chains::Chain), which is the list of these functions. Each
//! chain has its own copy of the wrappers, so that a wrapper knows its next function.

#[cfg(test)]
mod tests;

use core::ffi::{CStr, c_int, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::abi::{
    FunctionPointer, FunctionSlot, FunctionTable, GetExportTable, Initialize, InitializeExtension,
    KINDS, part_of,
};
use super::chains::{CHAINS, ROWS, chain_for};
use super::wrappers::{self, WRAPPED};
use super::{kept, linked, ranges};
use libloading::os::unix::{Library, RTLD_LAZY};
use tllmprof_platform::function;
use tllmprof_platform::injection;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve;

/// The function pointers that a module offers its NVTX tool, with their values before the tool
/// fills them.
struct Places<'a> {
    wrapped: [Option<FunctionSlot<'a>>; ROWS],
    /// All pointers of the module, with their values before the tool's initialisation. A tool that fails may have
    /// changed any of them.
    found: Vec<(FunctionSlot<'a>, FunctionPointer)>,
}

impl<'a> Places<'a> {
    fn new(tables: [Option<FunctionTable<'a>>; KINDS.len()]) -> Self {
        let place = |kind: u32, index| tables.get(kind as usize - 1)?.as_ref()?.place(index);
        Self {
            wrapped: core::array::from_fn(|row| place(WRAPPED[row].kind, WRAPPED[row].index)),
            found: tables
                .iter()
                .flatten()
                .flat_map(FunctionTable::places)
                .map(|place| (place, place.load(Ordering::Relaxed)))
                .collect(),
        }
    }

    /// Returns the tool's functions: the pointers that the tool has changed. All other elements are null.
    fn tools(&self) -> [FunctionPointer; ROWS] {
        self.wrapped.map(|place| match place {
            // Skip an unchanged pointer. It leads to the module's own function, which would call the wrapper again.
            Some(place) if !self.is_as_found(place) => place.load(Ordering::Relaxed),
            _ => core::ptr::null_mut(),
        })
    }

    fn is_as_found(&self, place: FunctionSlot<'_>) -> bool {
        let now = place.load(Ordering::Relaxed);
        self.found
            .iter()
            .any(|(known, found)| core::ptr::eq(*known, place) && *found == now)
    }

    /// Restores the values that the pointers had before the tool's initialisation.
    fn restore(&self) {
        self.found
            .iter()
            .for_each(|(place, found)| place.store(*found, Ordering::Relaxed));
    }

    fn wrap(&self, wrappers: &[FunctionPointer; ROWS]) {
        for (place, wrapper) in self.wrapped.iter().zip(wrappers) {
            if let Some(place) = place {
                place.store(*wrapper, Ordering::Relaxed);
            }
        }
    }
}

/// An initialisation function of the program's NVTX tool (another profiler).
enum Tool<F> {
    /// The program has no other NVTX tool, or the tool's library cannot be loaded.
    None,
    /// The tool has a library, but the library does not define the function.
    Lacks,
    /// The function and its library. `ManuallyDrop` keeps the library open unless the caller closes it. If an exception
    /// of the tool passes through the caller, the library's code must stay loaded.
    Has(F, ManuallyDrop<Library>),
    /// The function belongs to a tool that is linked into the program, so no library has to be kept
    /// open.
    Linked(F),
}

impl<F: Copy> Tool<F> {
    /// Returns the tool's function `name`. Loads the tool's library like NVTX does. If no library is configured, uses
    /// the tool that is linked into the module that contains the address `part`.
    unsafe fn find(name: &CStr, part: usize) -> Self {
        let Some(tool) = injection::tool() else {
            // SAFETY: `linked::function` returns a function of type `F`, or null.
            let linked = unsafe { function::at(linked::function(part, name, "_fnptr")) };
            return linked.map_or(Self::None, Self::Linked);
        };
        let path = OsStr::from_bytes(tool.to_bytes());
        // SAFETY: this runs the tool's constructors where NVTX would run them.
        let Ok(library) = (unsafe { Library::open(Some(path), RTLD_LAZY) }) else {
            return Self::None;
        };
        // SAFETY: `F` is the type of the function of this name; `Option` allows null.
        let found = unsafe { library.get::<Option<F>>(name.to_bytes_with_nul()) };
        match found.ok().and_then(|symbol| *symbol) {
            Some(function) => Self::Has(function, ManuallyDrop::new(library)),
            None => Self::Lacks,
        }
    }
}

lifecycle::global! {
    stage: Doors;

    /// Modules for which a tool is being initialised, each identified by the address that the module passed; 0 for a
    /// free entry. If two copies of this library are loaded, each may take the other for the tool, and they would call
    /// each other without end. So a request for a module that is in this list is not passed on.
    #[fork(reset)]
    static ASKED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
}

/// A request to a tool to initialise one module. The module's entry in [`ASKED`] is freed on drop.
struct Asking(&'static AtomicUsize);

impl Asking {
    /// Adds the module to [`ASKED`]. Returns `None` if a request for the module is already in
    /// progress, or if [`ASKED`] is full.
    fn begin(module: usize) -> Option<Self> {
        if ASKED
            .iter()
            .any(|asked| asked.load(Ordering::Relaxed) == module)
        {
            return None;
        }
        let take = |place: &&AtomicUsize| {
            let taken = place.compare_exchange(0, module, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        ASKED.iter().find(take).map(Self)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Called when a module of the program looks for its NVTX tool (a profiler). Lets another tool initialise the module,
/// and then installs this library's functions. Returns a number other than 0 if the module got a tool, else 0.
///
/// # Safety
/// Called only by NVTX, as in `nvtxInit.h`.
pub unsafe fn initialize(export: GetExportTable) -> c_int {
    let Some(_asking) = Asking::begin(export as *const () as usize) else {
        return 0;
    };
    // SAFETY: NVTX passed `export` to initialise the module, and waits until this function returns.
    let tables = || KINDS.map(|kind| unsafe { FunctionTable::offered_by(export, kind) });
    let places = contained(None, || {
        (!is_ours(export) && wants_ranges()).then(|| Places::new(tables()))
    });
    let mut has_tool = 0;
    // SAFETY: `Initialize` is the type of the function of this name.
    let find = || unsafe {
        Tool::<Initialize>::find(c"InitializeInjectionNvtx2", export as *const () as usize)
    };
    let (initialize, library) = match contained(Tool::None, find) {
        Tool::Has(initialize, library) => (Some(initialize), Some(library)),
        Tool::Linked(initialize) => (Some(initialize), None),
        Tool::None | Tool::Lacks => (None, None),
    };
    if let Some(initialize) = initialize {
        // SAFETY: this calls the tool's function with the argument that the module passed.
        has_tool = unsafe { initialize(export) };
        if has_tool == 0 {
            contained((), || {
                if let Some(places) = &places {
                    places.restore();
                }
            });
            // The tool does not accept the module, so its library is closed, as NVTX would do.
            drop(library.map(ManuallyDrop::into_inner));
        }
    }
    contained(has_tool, || wrapped(places, has_tool))
}

/// Replaces the module's NVTX functions by this library's wrappers. Does nothing if `places` is `None`: then the
/// module's ranges need not be counted or recorded. `has_tool` is the result of another tool's initialisation. Returns
/// a number other than 0 if the module now has a tool, else 0.
fn wrapped(places: Option<Places>, has_tool: c_int) -> c_int {
    let Some(places) = places else {
        return has_tool;
    };
    let Some(chain) = chain_for(&places.tools()) else {
        log::once!(
            Warn,
            "a module's NVTX ranges are not seen: {CHAINS} modules differ in their tools"
        );
        return has_tool;
    };
    places.wrap(&wrappers::for_chain(chain));
    ranges::met();
    1
}

/// Returns true if the module is this library. The library's own ranges are not counted: this library passes them only
/// to the other tool.
fn is_ours(export: GetExportTable) -> bool {
    resolve::is_ours(export as *const () as usize)
}

/// Returns true if the program's NVTX ranges must be counted or recorded. In that case also registers the library's
/// actions at a fork.
fn wants_ranges() -> bool {
    let wants = || ranges::rule().is_some() | kept::are_asked_for();
    let wants = injection::is_preloaded() && tllmprof_session::activity::is_active() && wants();
    if wants {
        lifecycle::register();
    }
    wants
}

/// Called when a module of the program looks for its tool (a profiler) for an extension of NVTX, such as payloads. This
/// library uses no extensions, so it only calls the other tool. Returns a number other than 0 if the module got a tool,
/// else 0.
///
/// The result is also the answer to a query. A program may call `nvtxDomainIsEnabled` before it opens ranges, to check
/// for a tool, as NVIDIA's Python package does. If there is another tool, its function for extensions determines the
/// result. The result is 1 if the tool has no such function. If there is no other tool, the result is 1 if ranges are
/// counted or recorded.
///
/// # Safety
/// Called only by NVTX, as in `nvtxExtInit.h`.
pub unsafe fn initialize_extension(module: *mut c_void) -> c_int {
    let Some(_asking) = Asking::begin(module.addr()) else {
        return 0;
    };
    // SAFETY: `InitializeExtension` is the type of the function of this name, and the module has NVTX's layout.
    let find = || unsafe {
        let part = part_of(module.cast());
        Tool::<InitializeExtension>::find(c"InitializeInjectionNvtxExtension", part)
    };
    match contained(Tool::None, find) {
        // SAFETY: this calls the tool's function with the argument that the module passed.
        Tool::Has(initialize, _) | Tool::Linked(initialize) => unsafe { initialize(module) },
        Tool::Lacks => 1,
        Tool::None => contained(false, wants_ranges).into(),
    }
}
