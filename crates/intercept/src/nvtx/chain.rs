//! Installs our functions when a module of the program looks for its tool. The tool that was there before is
//! initialised first, and our functions run before its own.
//!
//! Each module has its own next functions, but in practice all modules get the same ones from a tool. Modules with the
//! same next functions share a [`Chain`](super::chains::Chain). Each chain has its own copy of the wrappers, so that a
//! wrapper knows its next function.

#[cfg(test)]
mod tests;

use core::ffi::{CStr, c_int, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::abi::{
    Function, FunctionSlot, GetExportTable, Initialize, InitializeExtension, KINDS, Table, part_of,
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

/// A module's function pointers for its tool, and their values before the tool is asked.
struct Places<'a> {
    wrapped: [Option<FunctionSlot<'a>>; ROWS],
    /// All pointers: a tool that fails may have left a value in any of them.
    found: Vec<(FunctionSlot<'a>, Function)>,
}

impl<'a> Places<'a> {
    fn new(tables: [Option<Table<'a>>; KINDS.len()]) -> Self {
        let place = |kind: u32, index| tables.get(kind as usize - 1)?.as_ref()?.place(index);
        Self {
            wrapped: core::array::from_fn(|row| place(WRAPPED[row].kind, WRAPPED[row].index)),
            found: tables
                .iter()
                .flatten()
                .flat_map(Table::places)
                .map(|place| (place, place.load(Ordering::Relaxed)))
                .collect(),
        }
    }

    /// Returns the tool's functions: those that replaced the value found before.
    fn tools(&self) -> [Function; ROWS] {
        self.wrapped.map(|place| match place {
            // The module's own function would call our wrapper again.
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

    /// Restores the values that were there before the tool was asked.
    fn restore(&self) {
        self.found
            .iter()
            .for_each(|(place, found)| place.store(*found, Ordering::Relaxed));
    }

    fn wrap(&self, wrappers: &[Function; ROWS]) {
        for (place, wrapper) in self.wrapped.iter().zip(wrappers) {
            if let Some(place) = place {
                place.store(*wrapper, Ordering::Relaxed);
            }
        }
    }
}

/// A function of the tool that was there before.
enum Tool<F> {
    /// There is no tool, or its library cannot be loaded.
    None,
    /// The tool does not have the function.
    Lacks,
    /// The function and its library. The library stays open unless it is closed explicitly: exceptions of the tool may
    /// pass through here.
    Has(F, ManuallyDrop<Library>),
    /// The tool is part of the program.
    Linked(F),
}

impl<F: Copy> Tool<F> {
    /// Returns the tool's function `name`, from its library loaded as NVTX would load it. If no library is named, uses
    /// the tool that is linked into the module that contains `part`.
    ///
    /// # Safety
    /// `F` is the type of the function of this name.
    unsafe fn find(name: &CStr, part: usize) -> Self {
        let Some(tool) = injection::tool() else {
            // SAFETY: a function of type `F`, or null.
            let linked = unsafe { function::at(linked::function(part, name, "_fnptr")) };
            return linked.map_or(Self::None, Self::Linked);
        };
        let path = OsStr::from_bytes(tool.to_bytes());
        // SAFETY: the tool's constructors run where NVTX would run them.
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

    /// Modules whose tool is being asked, by the address that they passed; 0 for none. Two copies of this library may
    /// each take the other for the tool: a request for a module in this list has been passed to all tools.
    #[fork(reset)]
    static ASKED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
}

/// A request to a tool for one module.
struct Asking(&'static AtomicUsize);

impl Asking {
    /// Returns `None` if a request for the module is under way, or if too many are.
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

/// Handles a module of the program that looks for its tool. Returns 1 if the module got one.
///
/// # Safety
/// Called by NVTX, as `nvtxInit.h` does.
pub unsafe fn initialize(export: GetExportTable) -> c_int {
    let Some(_asking) = Asking::begin(export as *const () as usize) else {
        return 0;
    };
    // SAFETY: NVTX passed this to initialise the module, and waits until this function returns.
    let tables = || KINDS.map(|kind| unsafe { Table::offered_by(export, kind) });
    let places = contained(None, || {
        (!is_ours(export) && wants_ranges()).then(|| Places::new(tables()))
    });
    let mut has_tool = 0;
    // SAFETY: that is the type of the function of this name.
    let find = || unsafe {
        Tool::<Initialize>::find(c"InitializeInjectionNvtx2", export as *const () as usize)
    };
    let (initialize, library) = match contained(Tool::None, find) {
        Tool::Has(initialize, library) => (Some(initialize), Some(library)),
        Tool::Linked(initialize) => (Some(initialize), None),
        Tool::None | Tool::Lacks => (None, None),
    };
    if let Some(initialize) = initialize {
        // SAFETY: the tool's function, and the module's own argument.
        has_tool = unsafe { initialize(export) };
        if has_tool == 0 {
            contained((), || {
                if let Some(places) = &places {
                    places.restore();
                }
            });
            // NVTX does the same if the tool does not accept the module.
            drop(library.map(ManuallyDrop::into_inner));
        }
    }
    contained(has_tool, || wrapped(places, has_tool))
}

/// Routes the module's ranges through this library, if they are wanted. Returns 1 if the module now has a tool.
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

/// Returns true if the module is this library: its ranges go only to the tool.
fn is_ours(export: GetExportTable) -> bool {
    resolve::is_ours(export as *const () as usize)
}

/// Returns true if ranges of the program are counted, or recorded.
fn wants_ranges() -> bool {
    let wants = || ranges::rule().is_some() | kept::are_asked_for();
    let wants = injection::is_preloaded() && tllmprof_session::activity::is_active() && wants();
    if wants {
        lifecycle::register();
    }
    wants
}

/// Handles a module of the program that looks for its tool for an extension of NVTX, such as payloads. The tool gets
/// all of it. Returns 1 if the module got a tool.
///
/// A program may call `nvtxDomainIsEnabled` before it opens ranges, to check for a tool, as NVIDIA's Python package
/// does. If no tool answers that, the result of this function is the answer: yes if ranges are counted or recorded, and
/// if the tool does not know of extensions.
///
/// # Safety
/// Called by NVTX, as `nvtxExtInit.h` does.
pub unsafe fn initialize_extension(module: *mut c_void) -> c_int {
    let Some(_asking) = Asking::begin(module.addr()) else {
        return 0;
    };
    // SAFETY: that is the type of the function of this name; the module has NVTX's layout.
    let find = || unsafe {
        let part = part_of(module.cast());
        Tool::<InitializeExtension>::find(c"InitializeInjectionNvtxExtension", part)
    };
    match contained(Tool::None, find) {
        // SAFETY: the tool's function, and the module's own argument.
        Tool::Has(initialize, _) | Tool::Linked(initialize) => unsafe { initialize(module) },
        Tool::Lacks => 1,
        Tool::None => contained(false, wants_ranges).into(),
    }
}
