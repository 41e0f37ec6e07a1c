//! A module of the program looks for its tool: the tool that was there before comes to its own
//! functions, and ours before them.
//!
//! The next function is a module's own matter, but in practice all modules get the same ones from
//! a tool. Modules with the same next functions share a [`Chain`], and each chain has its own copy
//! of the wrappers, which therefore know what comes next.

use core::ffi::{CStr, c_int, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use core::time::Duration;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::abi::{Function, GetExportTable, Initialize, InitializeExtension, KINDS, Place, Table};
use super::wrappers::{self, WRAPPED};
use super::{kept, ranges};
use libloading::os::unix::{Library, RTLD_LAZY};
use tllmprof_platform::injection;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve;
use tllmprof_sync::Lock;

/// How many different sets of next functions there may be.
pub const CHAINS: usize = 8;

/// The functions of a tool that come after ours; null for none.
pub struct Chain {
    next: [AtomicPtr<c_void>; WRAPPED.len()],
}

impl Chain {
    const fn none() -> Self {
        Self {
            next: [const { AtomicPtr::new(core::ptr::null_mut()) }; WRAPPED.len()],
        }
    }

    /// What comes after the wrapper of this row.
    #[inline]
    pub fn next(&self, row: usize) -> Function {
        self.next[row].load(Ordering::Relaxed)
    }

    fn is(&self, next: &[Function; WRAPPED.len()]) -> bool {
        (0..next.len()).all(|row| self.next(row) == next[row])
    }
}

lifecycle::global! {
    stage: Doors;

    /// The chains; those in use come first, and stay as they are.
    #[fork(keep = "code leads through the chains")]
    pub static ALL: [Chain; CHAINS] = [const { Chain::none() }; CHAINS];
    #[fork(keep = "as the chains")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    #[fork(free)]
    static MAKING: Lock<()> = Lock::new(());
}

/// The chain that has these next functions.
pub(super) fn chain_for(next: &[Function; WRAPPED.len()]) -> Option<usize> {
    // Held for a moment, and by nobody who waits.
    let _making = MAKING.lock_for(Duration::from_secs(1))?;
    let used = USED.load(Ordering::Relaxed);
    if let Some(known) = ALL[..used].iter().position(|chain| chain.is(next)) {
        return Some(known);
    }
    let chain = ALL.get(used)?;
    for (place, next) in chain.next.iter().zip(next) {
        place.store(*next, Ordering::Relaxed);
    }
    USED.store(used + 1, Ordering::Release);
    Some(used)
}

/// A module's places for its tool's functions, and what it has there itself.
struct Places<'a> {
    wrapped: [Option<Place<'a>>; WRAPPED.len()],
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
    fn tools(&self) -> [Function; WRAPPED.len()] {
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

    fn wrap(&self, wrappers: &[Function; WRAPPED.len()]) {
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
}

impl<F: Copy> Tool<F> {
    /// The tool's function `name`, from its library loaded as NVTX would load it.
    ///
    /// # Safety
    /// `F` is the type of the function of this name.
    unsafe fn find(name: &CStr) -> Self {
        let Some(tool) = injection::tool() else {
            return Self::None;
        };
        let path = OsStr::from_bytes(tool.to_bytes());
        // SAFETY: the tool's constructors run where NVTX would have them run.
        let Ok(library) = (unsafe { Library::open(Some(path), RTLD_LAZY) }) else {
            return Self::None;
        };
        // SAFETY: `F` is the type of the function of this name; `Option` lets it be null.
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
    let find = || unsafe { Tool::<Initialize>::find(c"InitializeInjectionNvtx2") };
    if let Tool::Has(initialize, library) = contained(Tool::None, find) {
        // SAFETY: the tool's function, and the module's own argument.
        has_tool = unsafe { initialize(export) };
        if has_tool == 0 {
            contained((), || {
                if let Some(places) = &places {
                    places.restore();
                }
            });
            // As NVTX does where the tool does not want the module.
            drop(ManuallyDrop::into_inner(library));
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
    // SAFETY: that is the type of the function of this name.
    let find = || unsafe { Tool::<InitializeExtension>::find(c"InitializeInjectionNvtxExtension") };
    match contained(Tool::None, find) {
        // SAFETY: the tool's function, and the module's own argument.
        Tool::Has(initialize, _) => unsafe { initialize(module) },
        Tool::Lacks => 1,
        Tool::None => contained(false, wants_ranges).into(),
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_steps::step::counted::Counted;

    use super::super::abi::made::{Module, export};
    use super::super::abi::{CORE, CORE2};
    use super::*;
    use crate::made::{Temporary, alone, library};

    const RULE: [(&str, &str); 2] = [
        ("TLLMPROF_STEP", "nvtx:^step"),
        ("TLLMPROF_START_STOP", "1000"),
    ];

    fn own() -> Function {
        without_provenance_mut(0x1000)
    }

    /// [`export`], by code that lies in no module: the test's own would be taken for the library's.
    fn foreign_export() -> GetExportTable {
        let target = (export as *const () as u64).to_le_bytes();
        let jump: &[u8] = if cfg!(target_arch = "x86_64") {
            &[0xff, 0x25, 2, 0, 0, 0, 0x0f, 0x0b] // jmp [rip + 2]; ud2
        } else {
            &[0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6] // ldr x16, #8; br x16
        };
        let code = [jump, &target].concat();
        // SAFETY: a new mapping, which is written before it is executable and never given back; the
        // code goes on to a function of that type.
        unsafe {
            let (write, run) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::PROT_READ | libc::PROT_EXEC,
            );
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let place = libc::mmap(core::ptr::null_mut(), 4096, write, flags, -1, 0);
            assert_ne!(place, libc::MAP_FAILED);
            core::ptr::copy_nonoverlapping(code.as_ptr(), place.cast(), code.len());
            assert_eq!(libc::mprotect(place, 4096, run), 0);
            core::mem::transmute::<*mut c_void, GetExportTable>(place)
        }
    }

    fn initialize_by(export: GetExportTable) -> c_int {
        // SAFETY: as NVTX would, with the export of a module that stays.
        unsafe { initialize(export) }
    }

    #[test]
    fn modules_with_the_same_tool_share_a_chain_and_there_are_so_many() {
        alone(&[], || {
            let next = |tool: usize| {
                core::array::from_fn(|row| without_provenance_mut(0x1000 * tool + row))
            };
            for (tool, chain) in ALL.iter().enumerate() {
                assert_eq!(chain_for(&next(tool)), Some(tool));
                assert_eq!(chain.next(3), next(tool)[3]);
            }
            assert_eq!(chain_for(&next(CHAINS)), None);
            assert_eq!(chain_for(&next(2)), Some(2));
        });
    }

    #[test]
    fn a_tools_functions_are_those_that_it_has_put_there() {
        let module = Module::make(own());
        // SAFETY: the made module is never freed.
        let places = Places::of(KINDS.map(|kind| unsafe { Table::of(export, kind) }));
        assert!(
            places.tools().iter().all(|tool| tool.is_null()),
            "there is no tool"
        );
        let row = WRAPPED
            .iter()
            .position(|row| (row.kind, row.index) == (CORE2, 4))
            .unwrap();
        places.wrapped[row]
            .unwrap()
            .store(without_provenance_mut(0x2000), Ordering::Relaxed);
        for (other, tool) in places.tools().iter().enumerate() {
            assert_eq!(tool.addr(), if other == row { 0x2000 } else { 0 });
        }
        places.wrap(&wrappers::of(0));
        assert_eq!(module.now(CORE2, 4), wrappers::of(0)[row]);
        assert_eq!(module.now(CORE, 12), own(), "it is not wrapped");
        places.restore();
        assert!(
            (1..16)
                .all(|index| module.now(CORE, index) == own() && module.now(CORE2, index) == own())
        );
    }

    #[test]
    fn a_module_is_asked_for_once_at_a_time() {
        alone(&[], || {
            let asking: Vec<_> = (1..=ASKED.len())
                .map(|module| Asking::begin(module).unwrap())
                .collect();
            assert!(Asking::begin(3).is_none(), "it is being asked");
            assert!(Asking::begin(100).is_none(), "too many are");
            drop(asking);
            assert!(Asking::begin(3).is_some());
        });
    }

    #[test]
    fn the_ranges_of_a_module_are_counted() {
        alone(&RULE, || {
            let module = Module::make(own());
            assert_eq!(initialize_by(foreign_export()), 1);
            let at = |kind, index| {
                let row = WRAPPED
                    .iter()
                    .position(|row| (row.kind, row.index) == (kind, index));
                assert_eq!(module.now(kind, index), wrappers::of(0)[row.unwrap()]);
                module.now(kind, index)
            };
            // SAFETY: that is the type of `nvtxRangePushA`.
            let push = unsafe {
                core::mem::transmute::<
                    Function,
                    unsafe extern "C-unwind" fn(*const core::ffi::c_char) -> c_int,
                >(at(CORE, 9))
            };
            // SAFETY: that is the type of `nvtxRangePop`.
            let pop = unsafe {
                core::mem::transmute::<Function, unsafe extern "C-unwind" fn() -> c_int>(at(
                    CORE, 11,
                ))
            };
            for name in [c"step 1", c"a step", c"step 2", c"prefill", c"step 3"] {
                // SAFETY: a terminated string.
                let levels = unsafe { [push(name.as_ptr()), pop()] };
                assert_eq!(levels, [-2; 2]);
            }
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(Counted::Named).count(), 3);
            let unseen = ranges::Unseen.to_string();
            assert_eq!(
                unseen.split(", ").next(),
                Some("; no NVTX range matched"),
                "{unseen}"
            );
        });
    }

    #[test]
    fn a_module_of_a_process_that_counts_no_ranges_is_left_alone() {
        alone(
            &[
                ("TLLMPROF_STEP", "cuGraphLaunch"),
                ("TLLMPROF_START_STOP", "1000"),
            ],
            || {
                let module = Module::make(own());
                assert_eq!(initialize_by(foreign_export()), 0);
                assert_eq!(module.now(CORE, 9), own());
                // SAFETY: as NVTX would, with an address that is nobody's.
                let extension = unsafe { initialize_extension(without_provenance_mut(0x10)) };
                assert_eq!(extension, 0);
            },
        );
    }

    #[test]
    fn the_librarys_own_ranges_are_not_counted() {
        alone(&RULE, || {
            let module = Module::make(own());
            assert_eq!(initialize_by(export), 0, "there is no tool");
            assert_eq!(module.now(CORE, 9), own());
            // SAFETY: as NVTX would, with an address that is nobody's.
            let extension = unsafe { initialize_extension(without_provenance_mut(0x10)) };
            assert_eq!(extension, 1, "somebody listens");
        });
    }

    #[test]
    fn a_tool_without_the_functions_of_one_is_none() {
        let tool = [("NVTX_INJECTION64_PATH", "libm.so.6")];
        alone(&tool, || {
            // SAFETY: that is the type of the function of this name.
            let found = unsafe { Tool::<Initialize>::find(c"InitializeInjectionNvtx2") };
            assert!(matches!(found, Tool::Lacks));
            // SAFETY: that is the type of the function of this name.
            let found = unsafe { Tool::<extern "C" fn(f64) -> f64>::find(c"fabs") };
            assert!(matches!(found, Tool::Has(function, _) if function(-2.0) == 2.0));
            // SAFETY: as NVTX would, with an address that is nobody's.
            let extension = unsafe { initialize_extension(without_provenance_mut(0x10)) };
            assert_eq!(extension, 1, "it may know nothing of extensions");
        });
    }

    /// A tool that puts a function of its own, which returns 77, in the place of `nvtxRangePushA`, and
    /// then says whether it wants the module.
    fn tool(wants: bool) -> Temporary {
        let source = format!(
            "#include <stddef.h>
            typedef struct {{ size_t size; int (*table)(unsigned, void ***, unsigned *); }} Callbacks;
            static int push(const char *text) {{ return 77; }}
            int InitializeInjectionNvtx2(const void *(*export)(unsigned)) {{
                const Callbacks *callbacks = export(1);
                void **places;
                unsigned size;
                if (!callbacks->table(1, &places, &size) || size < 10) return 0;
                *(void **)places[9] = (void *)push;
                return {};
            }}
            int InitializeInjectionNvtxExtension(void *module) {{ return 55; }}",
            u8::from(wants)
        );
        library(&format!("libtool{}.so", u8::from(wants)), &source)
    }

    #[test]
    fn a_tool_comes_behind_the_librarys_own_functions() {
        let path = tool(true);
        let variables = [RULE[0], RULE[1], ("NVTX_INJECTION64_PATH", path.as_str())];
        alone(&variables, || {
            let module = Module::make(own());
            assert_eq!(initialize_by(foreign_export()), 1);
            let row = WRAPPED
                .iter()
                .position(|row| (row.kind, row.index) == (CORE, 9))
                .unwrap();
            assert_eq!(module.now(CORE, 9), wrappers::of(0)[row]);
            assert!(!ALL[0].next(row).is_null() && ALL[0].next(row) != own());
            // SAFETY: that is the type of `nvtxRangePushA`.
            let push = unsafe {
                core::mem::transmute::<
                    Function,
                    unsafe extern "C-unwind" fn(*const core::ffi::c_char) -> c_int,
                >(module.now(CORE, 9))
            };
            // SAFETY: a terminated string.
            assert_eq!(unsafe { push(c"step".as_ptr()) }, 77);
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(Counted::Named).count(), 1);
            // SAFETY: as NVTX would, with an address that is nobody's.
            let extension = unsafe { initialize_extension(without_provenance_mut(0x10)) };
            assert_eq!(extension, 55, "the tool's answer");
        });
    }

    #[test]
    fn what_a_tool_leaves_that_does_not_want_the_module_is_taken_back() {
        let path = tool(false);
        let variables = [RULE[0], RULE[1], ("NVTX_INJECTION64_PATH", path.as_str())];
        alone(&variables, || {
            Module::make(own());
            assert_eq!(
                initialize_by(foreign_export()),
                1,
                "the ranges are counted all the same"
            );
            assert!((0..WRAPPED.len()).all(|row| ALL[0].next(row).is_null()));
        });
    }

    #[test]
    fn a_tool_that_cannot_be_loaded_is_none() {
        alone(&[("NVTX_INJECTION64_PATH", "/no/such/tool.so")], || {
            // SAFETY: that is the type of the function of this name.
            let found = unsafe { Tool::<Initialize>::find(c"InitializeInjectionNvtx2") };
            assert!(matches!(found, Tool::None));
        });
    }
}
