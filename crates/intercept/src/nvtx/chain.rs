//! A module of the program looks for its tool: the tool that was there before comes to its own
//! functions, and ours before them.
//!
//! The next function is a module's own matter, but in practice all modules get the same ones from
//! a tool. Modules with the same next functions share a [`Chain`], and each chain has its own copy
//! of the wrappers, which therefore know what comes next.

#[cfg(test)]
mod tests;

use core::ffi::{CStr, c_int, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::abi::{
    Function, GetExportTable, Initialize, InitializeExtension, KINDS, Place, Table, part_of,
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

/// A module's places for its tool's functions, and what it has there itself.
struct Places<'a> {
    wrapped: [Option<Place<'a>>; ROWS],
    /// All of them: a tool that fails may have left something anywhere.
    found: Vec<(Place<'a>, Function)>,
}

impl<'a> Places<'a> {
    fn of(tables: [Option<Table<'a>>; KINDS.len()]) -> Self {
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

    /// The tool's functions: what is not there any more has been replaced by them.
    fn tools(&self) -> [Function; ROWS] {
        self.wrapped.map(|place| match place {
            // What the module has there itself would come back here.
            Some(place) if !self.is_as_found(place) => place.load(Ordering::Relaxed),
            _ => core::ptr::null_mut(),
        })
    }

    fn is_as_found(&self, place: Place<'_>) -> bool {
        let now = place.load(Ordering::Relaxed);
        self.found
            .iter()
            .any(|(known, found)| core::ptr::eq(*known, place) && *found == now)
    }

    /// As if no tool had been there.
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

/// What the tool that was there before has to say to a module.
enum Tool<F> {
    /// There is none, or its library cannot be loaded.
    None,
    /// It has no such function.
    Lacks,
    /// The function, and its library, which stays open unless it is closed: what the tool throws may
    /// pass here.
    Has(F, ManuallyDrop<Library>),
    /// It is part of the program.
    Linked(F),
}

impl<F: Copy> Tool<F> {
    /// The tool's function `name`, from its library loaded as NVTX would load it; where no library is named, the
    /// one that is linked into the module that `part` is of.
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
        // SAFETY: the tool's constructors run where NVTX would have them run.
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

    /// Modules whose tool is being asked, by what they gave it; 0 for none. Two copies of this library
    /// may each take the other for the tool: what comes back here has been to all that there are.
    #[fork(reset)]
    static ASKED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
}

/// The asking of a tool for one module.
struct Asking(&'static AtomicUsize);

impl Asking {
    /// None where that is under way, or where too many are.
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

/// A module of the program looks for its tool; whether it got one.
///
/// # Safety
/// Called by NVTX, as `nvtxInit.h` does.
pub unsafe fn initialize(export: GetExportTable) -> c_int {
    let Some(_asking) = Asking::begin(export as *const () as usize) else {
        return 0;
    };
    // SAFETY: what NVTX gave its tool to initialise the module with, which waits until this returns.
    let tables = || KINDS.map(|kind| unsafe { Table::of(export, kind) });
    let places = contained(None, || {
        (!is_ours(export) && wants_ranges()).then(|| Places::of(tables()))
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
            // As NVTX does where the tool does not want the module.
            drop(library.map(ManuallyDrop::into_inner));
        }
    }
    contained(has_tool, || wrapped(places, has_tool))
}

/// Has the module's ranges go through us, if they are wanted; whether it has a tool by that.
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
    places.wrap(&wrappers::of(chain));
    ranges::met();
    1
}

/// Whether the module is this library: its ranges go to the tool alone.
fn is_ours(export: GetExportTable) -> bool {
    resolve::is_ours(export as *const () as usize)
}

/// Whether ranges of the program are counted, or recorded.
fn wants_ranges() -> bool {
    let wants = || ranges::rule().is_some() | kept::are_asked_for();
    let wants = injection::is_preloaded() && tllmprof_session::activity::is_active() && wants();
    if wants {
        lifecycle::register();
    }
    wants
}

/// A module of the program looks for its tool for an extension of NVTX, such as payloads: all of
/// it is the tool's. Whether it got one.
///
/// A program may ask whether anybody listens at all, `nvtxDomainIsEnabled`, before it opens ranges,
/// as NVIDIA's Python package does. Where a tool does not answer, the success of this function is
/// the answer: yes where we count or record, and where the tool does not know of extensions.
///
/// # Safety
/// Called by NVTX, as `nvtxExtInit.h` does.
pub unsafe fn initialize_extension(module: *mut c_void) -> c_int {
    let Some(_asking) = Asking::begin(module.addr()) else {
        return 0;
    };
    // SAFETY: that is the type of the function of this name; the module is as NVTX lays it out.
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
