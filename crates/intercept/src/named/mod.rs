//! Functions that the rule names (`sym:`).
//!
//! ```text
//! modules ──▶ functions ──▶ patching                calls ──▶ session
//!                             └─ refused ──▶ slots, dlsym
//! ```
//!
//! **One means for each function**, so that no call counts twice. A patched entry comes first: it
//! sees every call, those from within the function's own library and those through pointers, too,
//! where GOT slots would see the calls of some modules and not of others, and the count would
//! depend on how the program was linked. Where an entry is refused ([`Refusal`] says why), GOT slots
//! and the `dlsym` door see the calls that pass them, and that is said.
//!
//! **When.** Modules that the process starts with are looked at in our constructor, before `main`.
//! One that comes later is seen at the next look-up (`dlsym`, `dlvsym`, `cuGetProcAddress`), the
//! next `dlclose`, or the first call of one of CUDA's functions by a module; that is before its
//! first call, unless nothing is looked up in between. When a module goes, all that was known of it
//! is forgotten.
//!
//! Left alone are this library, the loader and the C library with its parts: our own doors run on
//! them. A process in which nothing matches pays nothing after the look at its files.

mod calls;
mod ends;
mod functions;
pub mod pool;
#[cfg_attr(target_arch = "aarch64", path = "processor_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "processor_x86_64.rs")]
pub mod processor;
mod report;
mod slots;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_trampoline.rs")]
mod trampoline;

use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use regex::bytes::Regex;
use tllmprof_config::Step;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_symbols::{LIMIT, Pattern};

use super::dlsym;
use core::sync::atomic::AtomicI32;
use tllmprof_platform::elf::Found;
use tllmprof_platform::elf::Module;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::ids;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve;
use tllmprof_platform::thread::{Inside, LookingUp};
use tllmprof_platform::{elf, got};
use tllmprof_session::engines;
use tllmprof_sync::Guard;
use tllmprof_sync::Lock;

pub use calls::{after, before};
#[cfg(all(test, target_arch = "x86_64"))]
pub use ends::await_end as await_end_of;
use functions::Function;
pub use report::{report, report_unmatched};
use slots::ByName;
use tllmprof_platform::entry::{self, Entry, Refusal};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules::{self, ARE_WATCHED, Loaded, has_watcher, notify_watcher};
use trampoline::Region;

/// How long a look-up waits for another thread that looks at modules.
const PATIENCE: Duration = Duration::from_millis(500);

lifecycle::global! {
    stage: Doors;

    #[fork(hold)]
    static FOLLOWED: Lock<Option<Followed>> = Lock::new(None);
    /// The thread that has the lock, 0 for none: an allocator of the host's may look something up.
    #[fork(by = in_child)]
    static LOOKING: AtomicI32 = AtomicI32::new(0);
    /// An engine that is known is looked for among the modules.
    #[fork(keep = "the settings are the same")]
    static SEEKS_ENGINE: AtomicBool = AtomicBool::new(false);
    /// The program itself has not run yet: this is our constructor.
    #[fork(keep = "the child is as far")]
    static BEFORE_MAIN: AtomicBool = AtomicBool::new(false);
    /// How many modules had come and gone when we last looked.
    #[fork(keep = "the child's modules are its parent's")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
}

/// What is followed by the rule.
struct Followed {
    pattern: Pattern,
    library: Option<Regex>,
    loaded: Vec<Loaded>,
    functions: Vec<Named>,
    by_name: Vec<ByName>,
    regions: Vec<Region>,
    /// Functions that have matched so far, in modules that are gone, too.
    matched: usize,
    /// More functions match than can be followed.
    too_many: bool,
    /// Modules whose functions were looked at.
    searched: usize,
}

/// A function that the rule names, in the process.
struct Named {
    address: usize,
    /// The module that it lies in.
    module: usize,
    name: String,
    file: String,
    means: Means,
}

/// By which means calls of a function are seen.
enum Means {
    Entry {
        at: usize,
        jump: [u8; entry::JUMP],
        trampoline: Range<usize>,
        looks_back: bool,
    },
    /// By GOT slots and `dlsym`, and why not by its entry.
    Name(Refusal),
    /// By none.
    None(Refusal),
}

/// Looks at what the process starts with. For the constructor.
pub fn start() {
    let Some(settings) = tllmprof_session::activity::settings() else {
        return;
    };
    if !tllmprof_session::activity::has_work(settings) {
        return;
    }
    match &settings.step {
        step @ Step::Symbol { .. } => follow(step),
        Step::Auto => SEEKS_ENGINE.store(true, Ordering::Release),
        _ => return,
    }
    ARE_WATCHED.store(true, Ordering::Release);
    BEFORE_MAIN.store(
        tllmprof_platform::injection::is_preloaded(),
        Ordering::Relaxed,
    );
    calls::remember_loader();
    look_at(elf::changes());
    BEFORE_MAIN.store(false, Ordering::Relaxed);
}

/// Follows the functions of a rule `sym:`.
fn follow(step: &Step) {
    let Step::Symbol { name, library, .. } = step else {
        return;
    };
    if let Some(mut followed) = FOLLOWED.lock_for(PATIENCE) {
        *followed = Some(Followed {
            pattern: Pattern::new(name),
            library: library.clone(),
            loaded: Vec::new(),
            functions: Vec::new(),
            by_name: Vec::new(),
            regions: Vec::new(),
            matched: 0,
            too_many: false,
            searched: 0,
        });
    }
}

/// Follows the step of an engine that is known, once it is there.
fn seek_engine() {
    if SEEKS_ENGINE.load(Ordering::Acquire)
        && let Some(found) = engines::find()
        && SEEKS_ENGINE.swap(false, Ordering::AcqRel)
    {
        follow(&found.step);
    }
}

/// Looks at modules that have come and gone, if any have.
pub fn look() {
    if !ARE_WATCHED.load(Ordering::Acquire) {
        return;
    }
    let changes = elf::changes();
    notify_watcher(changes);
    if changes == SEEN.load(Ordering::Acquire) {
        return;
    }
    if SEEKS_ENGINE.load(Ordering::Acquire) && !engines::is_native_there() {
        // Nearly always so, and cheaper to find out than how much stack there is.
        SEEN.store(changes, Ordering::Release);
    } else if modules::has_stack() {
        look_at(changes);
    }
}

fn look_at(changes: u64) {
    seek_engine();
    let is_complete = with(Followed::look).unwrap_or_else(follows_nothing_yet);
    if is_complete {
        SEEN.store(changes, Ordering::Release);
    }
}

/// Whether there is nothing to look at modules for, but maybe an engine.
fn follows_nothing_yet() -> bool {
    SEEKS_ENGINE.load(Ordering::Relaxed) || has_watcher()
}

/// Runs `act` under the lock, if that can be had.
fn with<R>(act: impl FnOnce(&mut Followed) -> R) -> Option<R> {
    // A function that is named may be one that this uses, and its call finds locks of ours held.
    let _inside = Inside::enter();
    let us = ids::thread();
    if LOOKING.load(Ordering::Relaxed) == us {
        return None;
    }
    let mut guard: Guard<'_, Option<Followed>> = FOLLOWED.lock_for(PATIENCE)?;
    LOOKING.store(us, Ordering::Relaxed);
    let result = guard.as_mut().map(act);
    LOOKING.store(0, Ordering::Relaxed);
    result
}

/// Whether the end of a call may be awaited that came `from` there (see [`before`]): the function's
/// code is known, and does not look at where it returns to.
fn may_await_end(from: usize) -> bool {
    let may = with(|followed| {
        followed
            .functions
            .iter()
            .any(|function| match &function.means {
                Means::Entry {
                    trampoline,
                    looks_back,
                    ..
                } => trampoline.contains(&from) && !looks_back,
                #[cfg(target_arch = "aarch64")]
                Means::Name(Refusal::Processor { looks_back }) => {
                    function.address == from && !looks_back
                }
                _ => false,
            })
    });
    may == Some(true)
}

/// After the fork, in the child. What another thread was in the middle of, nobody will finish: then
/// no further modules are looked at.
fn in_child(_: &OnlyThread) {
    if LOOKING.swap(0, Ordering::Relaxed) != 0 {
        ARE_WATCHED.store(false, Ordering::Relaxed);
    }
}

/// A program looks `name` up: what it gets instead of the function, null for what it would get
/// without us. For the doors, which leave the caller's address in place if it is null.
///
/// # Safety
/// As `dlsym`, or as `dlvsym` where there is a `version`.
pub unsafe extern "C" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    // First of all: the next line calls a function of the host's.
    let Some(_looking_up) = LookingUp::enter() else {
        return core::ptr::null_mut();
    };
    contained(core::ptr::null_mut(), || {
        let _errno = Kept::new();
        look();
        // SAFETY: the program passed both to `dlsym` or `dlvsym`, which read them as terminated strings.
        let (name, version) = unsafe {
            let version = (!version.is_null()).then(|| CStr::from_ptr(version));
            (CStr::from_ptr(name), version)
        };
        stand_in(handle, name, version, caller)
    })
}

/// What a look-up of `name` gets instead of the function; null for the function.
fn stand_in(
    handle: *mut c_void,
    name: &CStr,
    version: Option<&CStr>,
    caller: usize,
) -> *mut c_void {
    let is_named = with(|followed| {
        followed
            .by_name
            .iter()
            .any(|function| function.is_called(name))
    });
    // RTLD_NEXT means what comes after the caller, and is the loader's to answer. CUDA's functions
    // have their own stubs.
    if is_named != Some(true) || handle == libc::RTLD_NEXT || dlsym::role_of(name).is_some() {
        return core::ptr::null_mut();
    }
    let found = if handle == libc::RTLD_DEFAULT {
        from_scope(caller, name, version)
    } else {
        // SAFETY: the program's own arguments; an answer by handle does not depend on who asks.
        unsafe { dlsym::real(handle, name, version) }.expose_provenance()
    };
    let stub = with(|followed| {
        let is_it = followed.by_name.iter().any(|function| {
            function.is_called(name) && (function.found.is_ifunc || function.found.address == found)
        });
        is_it.then(|| pool::stub(found)).flatten()
    });
    let stub = stub
        .flatten()
        .filter(|_| found != 0 && !resolve::is_ours(caller));
    stub.map_or(
        core::ptr::null_mut(),
        core::ptr::with_exposed_provenance_mut,
    )
}

/// What the code at `caller` gets by RTLD_DEFAULT; 0 where that is unknown.
fn from_scope(caller: usize, name: &CStr, version: Option<&CStr>) -> usize {
    let mut found = 0;
    elf::with_modules(|modules| {
        let module = modules.iter().find(|module| module.contains(caller));
        let binding = module.and_then(|module| got::binding(module, name, version, modules));
        found = binding
            .filter(|found| !found.is_ifunc)
            .map_or(0, |found| found.address);
    });
    found
}

/// What was found in a file, to be followed in the process.
#[cfg_attr(test, derive(Clone))]
struct Candidate {
    module: usize,
    path: std::path::PathBuf,
    function: Function,
}

impl Followed {
    /// Looks at what has changed; false if something is to be looked at again.
    fn look(&mut self) -> bool {
        let Ok(maps) = Maps::read() else { return true };
        let (present, is_complete) = modules::present(&maps);
        self.forget(&present);
        let mut candidates = Vec::new();
        for loaded in present {
            if self.loaded.iter().any(|known| known.is(&loaded)) {
                continue;
            }
            if !self.too_many && self.is_wanted(&loaded) {
                self.search(&loaded, &mut candidates);
            }
            self.loaded.push(loaded);
        }
        if self.functions.len() + candidates.len() > LIMIT {
            self.too_many = true;
        }
        if self.too_many {
            candidates.clear();
        }
        if candidates.is_empty() && self.by_name.is_empty() {
            return is_complete;
        }
        if self.matched == 0 {
            processor::start();
        }
        tllmprof_platform::lifecycle::register();
        elf::with_modules(|modules| {
            // The map from before may list modules that are gone.
            let Ok(maps) = Maps::read() else { return };
            let ready: Vec<Module> = modules
                .iter()
                .filter(|module| modules::is_relocated(module, &maps))
                .copied()
                .collect();
            self.patch(candidates, &ready, &maps);
            if !self.by_name.is_empty() {
                for module in ready
                    .iter()
                    .filter(|module| !modules::is_left_alone(module))
                {
                    slots::lead_to_stubs(module, &self.by_name, &ready, &maps);
                }
            }
        });
        is_complete
    }

    fn is_wanted(&self, loaded: &Loaded) -> bool {
        !loaded.is_left_alone
            && self.library.as_ref().is_none_or(|library| {
                use std::os::unix::ffi::OsStrExt;
                let path = loaded.path.as_os_str().as_bytes();
                library.is_match(path)
                    || loaded
                        .soname
                        .as_ref()
                        .is_some_and(|name| library.is_match(name))
            })
    }

    fn search(&mut self, loaded: &Loaded, candidates: &mut Vec<Candidate>) {
        self.searched += 1;
        let Ok((functions, more)) = functions::matching(&loaded.path, &self.pattern) else {
            return;
        };
        self.too_many |= more;
        candidates.extend(functions.into_iter().map(|function| Candidate {
            module: loaded.start,
            path: loaded.path.clone(),
            function,
        }));
    }

    /// Forgets what lay in modules that are gone.
    fn forget(&mut self, present: &[Loaded]) {
        let mut gone = Vec::new();
        self.loaded.retain(|known| {
            let stays = present.iter().any(|loaded| loaded.is(known))
                && self
                    .functions
                    .iter()
                    .all(|function| function.module != known.start || function.is_in_place());
            if !stays {
                gone.push(known.start..known.end);
            }
            stays
        });
        let is_gone = |address: usize| gone.iter().any(|range| range.contains(&address));
        self.functions.retain(|function| !is_gone(function.address));
        self.by_name
            .retain(|function| !is_gone(function.found.address));
        let (old, kept) = self
            .regions
            .drain(..)
            .partition(|region| is_gone(region.of));
        self.regions = kept;
        for region in old {
            // SAFETY: only the module that is gone led there.
            unsafe { Region::free(region) };
        }
    }

    /// Sees to it that calls of `candidates` are seen. `modules` stay loaded meanwhile.
    fn patch(&mut self, candidates: Vec<Candidate>, modules: &[Module], maps: &Maps) {
        self.matched += candidates.len();
        let alone = modules::is_alone();
        let mut regions: Vec<Region> = Vec::new();
        let mut prepared = Vec::new();
        let count = candidates.len();
        for candidate in candidates {
            let Some(module) = modules
                .iter()
                .find(|module| module.start == candidate.module)
            else {
                continue; // gone already
            };
            let quiet = alone || is_quiet(&candidate.function, module, modules);
            let result = prepare(&candidate, module, maps, quiet).and_then(|entry| {
                if !regions.iter().any(|region| region.of == module.start) {
                    let region = Region::near(module, count, maps).ok_or(Refusal::NoRoom)?;
                    regions.push(region);
                }
                let region = regions.iter_mut().find(|region| region.of == module.start);
                let trampoline = region.ok_or(Refusal::NoRoom)?.add(&entry)?;
                let jump = entry::jump(entry.at(), trampoline.start).ok_or(Refusal::NoRoom)?;
                Ok((entry, jump, trampoline))
            });
            prepared.push((candidate, module, result));
        }
        regions.retain_mut(|region| region.finish());
        for (candidate, module, result) in prepared {
            let address = module.base.wrapping_add(candidate.function.address);
            let patched = result.and_then(|(entry, jump, trampoline)| {
                if !regions.iter().any(|region| region.of == module.start) {
                    return Err(Refusal::NoRoom);
                }
                // SAFETY: the module stays loaded meanwhile, the trampoline is executable, and
                // `prepare` has refused what other threads forbid.
                unsafe { entry::write(&entry, jump, alone) }?;
                Ok(Means::Entry {
                    at: entry.at(),
                    jump,
                    trampoline,
                    looks_back: entry.looks_back(),
                })
            });
            let function = candidate.function;
            let means = match patched {
                Ok(means) => means,
                Err(refusal) if function.exported.is_empty() || refusal == Refusal::VariantCall => {
                    Means::None(refusal)
                }
                Err(refusal) => {
                    self.by_name.push(ByName {
                        found: Found {
                            address,
                            is_ifunc: function.is_ifunc,
                        },
                        names: function.exported,
                    });
                    Means::Name(refusal)
                }
            };
            let file = candidate.path.file_name().unwrap_or_default();
            let named = Named {
                address,
                module: module.start,
                name: function.name,
                file: file.to_string_lossy().into_owned(),
                means,
            };
            report::found(&named);
            self.functions.push(named);
        }
        self.regions.append(&mut regions);
    }
}

impl Named {
    /// Whether its entry still is as we left it: another instance of its module may have come to
    /// lie in the same place.
    fn is_in_place(&self) -> bool {
        let Means::Entry { at, jump, .. } = self.means else {
            return true;
        };
        // The module may be gone by now.
        let mut bytes = [0; entry::JUMP];
        modules::read_any(at, &mut bytes) && bytes == jump
    }
}

/// Whether no thread can be in the function, though there are several, as a profiler's that is
/// preloaded, too: it is the executable's, which has not begun to run, and nobody else knows it.
fn is_quiet(function: &Function, module: &Module, modules: &[Module]) -> bool {
    let is_called_by = |other: &Module| {
        let mut names = function.exported.iter();
        other.start != module.start && names.any(|name| other.asks_for(name))
    };
    BEFORE_MAIN.load(Ordering::Relaxed)
        && module.path().is_empty()
        && !module.runs_early()
        && !modules.iter().any(is_called_by)
}

/// What has to be known of a function before its entry is patched, and whether it can be.
/// `quiet`: no other thread can be in the function.
fn prepare(
    candidate: &Candidate,
    module: &Module,
    maps: &Maps,
    quiet: bool,
) -> Result<Entry, Refusal> {
    use std::os::unix::fs::FileExt;
    let function = &candidate.function;
    if function.is_entry_point {
        return Err(Refusal::EntryPoint);
    }
    if function.is_go {
        return Err(Refusal::Go);
    }
    if function.is_variant_call {
        return Err(Refusal::VariantCall);
    }
    if function.is_ifunc {
        return Err(Refusal::Ifunc);
    }
    if function.size == 0 {
        return Err(Refusal::UnknownSize);
    }
    let start = module.base.wrapping_add(function.address);
    let offset = module
        .file_offset(function.address, function.size)
        .ok_or(Refusal::Changed)?;
    let mapping = maps.at(start).ok_or(Refusal::Changed)?;
    if !mapping.is_executable || mapping.is_writable || start + function.size > mapping.end {
        return Err(Refusal::NotWritable);
    }
    let mut code = vec![0; function.size];
    let file = tllmprof_symbols::open(&candidate.path).map_err(|_| Refusal::Unreadable)?;
    file.read_exact_at(&mut code, offset)
        .map_err(|_| Refusal::Unreadable)?;
    let mut loaded = vec![0; function.size];
    if !module.read(start, &mut loaded) {
        return Err(Refusal::Unreadable);
    }
    if loaded != code {
        return Err(Refusal::Changed);
    }
    let entry = entry::examine(start, &code, |address, buffer| module.read(address, buffer))?;
    if !quiet && !entry::fits_one_store(&entry) {
        return Err(Refusal::Threads);
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use core::arch::global_asm;

    use tllmprof_session as session;
    use tllmprof_steps::step::counted::Counted;

    use super::*;
    use crate::made::{alone, stranger};

    // A function of one number whose first instruction has room for a jump, and one that is refused.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".pushsection .text.tllmprof_made_named,\"ax\",@progbits",
        ".p2align 4",
        ".hidden tllmprof_made_named",
        ".globl tllmprof_made_named",
        ".type tllmprof_made_named,@function",
        "tllmprof_made_named:",
        "lea rax, [rdi + 2 * rdi + 0x100]",
        "add rax, 1",
        "ret",
        ".size tllmprof_made_named, . - tllmprof_made_named",
        ".popsection",
    );
    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".pushsection .text.tllmprof_made_named,\"ax\",@progbits",
        ".p2align 4",
        ".hidden tllmprof_made_named",
        ".globl tllmprof_made_named",
        ".type tllmprof_made_named,@function",
        "tllmprof_made_named:",
        "add x0, x0, x0, lsl #1",
        "add x0, x0, #0x101",
        "ret",
        ".size tllmprof_made_named, . - tllmprof_made_named",
        ".popsection",
    );
    // SAFETY: defined above, a function of that type.
    unsafe extern "C" {
        safe fn tllmprof_made_named(number: usize) -> usize;
    }

    const RULE: [(&str, &str); 2] = [
        ("TLLMPROF_STEP", "sym:^tllmprof_made_named$"),
        ("TLLMPROF_START_STOP", "3"),
    ];

    fn us() -> (Module, Maps) {
        let us = elf::containing(prepare as *const () as usize).unwrap();
        (us, Maps::read().unwrap())
    }

    /// The made function, as its file describes it.
    fn candidate() -> Candidate {
        let (us, _) = us();
        let path = std::env::current_exe().unwrap();
        let pattern = Pattern::new(&Regex::new("^tllmprof_made_named$").unwrap());
        let (mut functions, _) = functions::matching(&path, &pattern).unwrap();
        assert_eq!(functions.len(), 1);
        let address = us.base.wrapping_add(functions[0].address);
        assert_eq!(address, tllmprof_made_named as *const () as usize);
        Candidate {
            module: us.start,
            path,
            function: functions.remove(0),
        }
    }

    fn count() -> u64 {
        session::slot().map_or(0, |slot| slot.live(Counted::Named).count())
    }

    #[test]
    fn what_cannot_be_patched_is_refused_with_its_reason() {
        let (us, maps) = us();
        let good = candidate();
        let check = |refusal, change: fn(&mut Candidate)| {
            let mut candidate = good.clone();
            change(&mut candidate);
            assert_eq!(prepare(&candidate, &us, &maps, true).err(), Some(refusal));
        };
        check(Refusal::EntryPoint, |bad| {
            bad.function.is_entry_point = true
        });
        check(Refusal::Go, |bad| bad.function.is_go = true);
        check(Refusal::VariantCall, |bad| {
            bad.function.is_variant_call = true
        });
        check(Refusal::Ifunc, |bad| bad.function.is_ifunc = true);
        check(Refusal::UnknownSize, |bad| bad.function.size = 0);
        check(Refusal::Changed, |bad| bad.function.size = 1 << 40);
        check(Refusal::Changed, |bad| bad.function.address = 1 << 40);
        check(Refusal::Unreadable, |bad| bad.path = "/no/such/file".into());
        check(Refusal::NotWritable, |bad| {
            let data = core::ptr::from_ref(&RULE).addr();
            bad.function.address = data.wrapping_sub(elf::containing(data).unwrap().base);
        });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn other_threads_forbid_an_entry_that_one_store_cannot_replace() {
        let (us, maps) = us();
        let mut candidate = candidate();
        assert!(prepare(&candidate, &us, &maps, false).is_ok());
        // From its second instruction on, which is shorter than a jump.
        candidate.function.address += 8;
        candidate.function.size -= 8;
        assert_eq!(
            prepare(&candidate, &us, &maps, false).err(),
            Some(Refusal::Threads)
        );
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_patched_function_counts_and_its_end_closes_the_window() {
        let said = alone(&RULE, || {
            follow(&tllmprof_session::activity::settings().unwrap().step);
            processor::start();
            // The process uses CUDA, or no window opens.
            session::new_thread(true);
            session::entered(tllmprof_calls::Call::MemAlloc);
            report();
            let (us, maps) = us();
            with(|followed| followed.patch(vec![candidate()], &[us], &maps));
            let (address, trampoline) = with(|followed| {
                let function = &followed.functions[0];
                let Means::Entry { trampoline, .. } = &function.means else {
                    panic!("it is not patched");
                };
                assert!(function.is_in_place());
                (function.address, trampoline.clone())
            })
            .unwrap();
            assert_eq!(address, tllmprof_made_named as *const () as usize);
            assert!(may_await_end(trampoline.start) && !may_await_end(address));
            let ends = &pool::AWAITED[0];
            for number in 0..8 {
                assert_eq!(tllmprof_made_named(number), 3 * number + 0x101);
                assert_eq!(count(), 1 + number as u64);
                // The window is iteration 3: its end alone is awaited.
                let iteration = ends.iteration.load(Ordering::Relaxed);
                let awaited = number >= 3 && !processor::has_shadow_stack();
                assert_eq!(iteration, if awaited { 3 } else { 0 }, "{number}");
                assert_eq!(ends.address.load(Ordering::Relaxed), 0);
            }
            with(|followed| {
                followed.loaded.push(Loaded {
                    start: us.start,
                    end: us.end,
                    path: candidate().path,
                    soname: None,
                    is_left_alone: false,
                });
                followed.forget(&[]);
            });
            assert!(!may_await_end(trampoline.start), "its module is gone");
        });
        if let Some(said) = said {
            assert!(!said.contains("cannot be followed"), "{said}");
        }
    }

    #[test]
    fn a_function_that_is_refused_is_followed_by_name_or_not_at_all() {
        alone(&RULE, || {
            follow(&tllmprof_session::activity::settings().unwrap().step);
            let (us, maps) = us();
            let good = candidate();
            let refused = |exported: &[&CStr], is_variant_call| {
                let mut refused = good.clone();
                refused.function.is_go = true;
                refused.function.is_variant_call = is_variant_call;
                refused.function.exported = exported.iter().map(|&name| name.to_owned()).collect();
                refused
            };
            let made = vec![
                refused(&[], false),
                refused(&[c"getppid"], false),
                {
                    let mut variant = refused(&[c"getppid"], true);
                    variant.function.is_go = false;
                    variant
                },
                Candidate {
                    module: 0x10,
                    ..good.clone()
                },
            ];
            with(|followed| {
                followed.patch(made, &[us], &maps);
                let means = followed
                    .functions
                    .iter()
                    .map(|function| match function.means {
                        Means::Entry { .. } => "entry",
                        Means::Name(Refusal::Go) => "name",
                        Means::None(Refusal::Go) => "none",
                        Means::None(Refusal::VariantCall) => "variant",
                        _ => "else",
                    });
                let means: Vec<_> = means.collect();
                assert_eq!(
                    means,
                    ["none", "name", "variant"],
                    "and none of a module that is gone"
                );
                assert_eq!((followed.matched, followed.by_name.len()), (4, 1));
                followed.by_name[0].found.address = stranger();
            });

            // What a program gets that looks it up.
            let ask = |handle, name: &CStr, version: Option<&CStr>, caller| {
                let version = version.map_or(core::ptr::null(), CStr::as_ptr);
                // SAFETY: handles that dlsym knows, and terminated strings.
                unsafe { lookup(handle, name.as_ptr(), version, caller) }.addr()
            };
            let version = if cfg!(target_arch = "x86_64") {
                c"GLIBC_2.2.5"
            } else {
                c"GLIBC_2.17"
            };
            let stub = ask(libc::RTLD_DEFAULT, c"getppid", None, stranger());
            assert!(pool::is_stub(stub));
            assert_eq!(
                ask(libc::RTLD_DEFAULT, c"getppid", Some(version), stranger()),
                stub
            );
            assert_eq!(
                ask(libc::RTLD_DEFAULT, c"getppid", Some(c"NONE_1"), stranger()),
                0
            );
            assert_eq!(ask(libc::RTLD_NEXT, c"getppid", None, stranger()), 0);
            assert_eq!(ask(libc::RTLD_DEFAULT, c"getpid", None, stranger()), 0);
            let us = prepare as *const () as usize;
            assert_eq!(
                ask(libc::RTLD_DEFAULT, c"getppid", None, us),
                0,
                "we ask ourselves"
            );
            // SAFETY: a library that is in the process already.
            let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) };
            assert_eq!(ask(libc, c"getppid", None, stranger()), stub, "by a handle");
        });
    }

    #[test]
    fn a_library_that_comes_is_looked_at_and_one_that_goes_is_forgotten() {
        let rule = [
            ("TLLMPROF_STEP", "sym:^(cbrt|erf|fmod|hypot)$@libm"),
            ("TLLMPROF_START_STOP", "1000"),
        ];
        alone(&rule, || {
            start();
            let matched = || with(|followed| (followed.matched, followed.functions.len())).unwrap();
            // SAFETY: a library of the system, whose constructors may run here.
            let libm =
                unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            assert!(!libm.is_null());
            // SAFETY: a handle, and a terminated name.
            let found = unsafe { libc::dlsym(libm, c"cbrt".as_ptr()) };
            let cbrt = |place| {
                // SAFETY: the function of this name, or its stub.
                let cbrt =
                    unsafe { tllmprof_platform::function::at::<extern "C" fn(f64) -> f64>(place) };
                cbrt.unwrap()(27.0)
            };
            let root = cbrt(found);
            assert!((root - 3.0).abs() < 1e-9);
            look();
            let (all, there) = matched();
            assert!(all >= 4 && there == all, "{all} {there}");
            look();
            assert_eq!(matched(), (all, there), "nothing has changed");

            // Whatever the means: a call by what a program gets counts once.
            // SAFETY: a handle, and a terminated name.
            let instead = unsafe { lookup(libm, c"cbrt".as_ptr(), core::ptr::null(), stranger()) };
            let before = count();
            assert_eq!(cbrt(if instead.is_null() { found } else { instead }), root);
            assert_eq!(count(), before + 1);

            with(|followed| followed.forget(&[])).unwrap();
            assert_eq!(matched(), (all, 0));
            with(|followed| assert!(followed.by_name.is_empty() && followed.loaded.is_empty()));
        });
    }

    #[test]
    fn a_rule_that_matches_too_much_follows_nothing() {
        let rule = [
            ("TLLMPROF_STEP", "sym:.@libm"),
            ("TLLMPROF_START_STOP", "1000"),
        ];
        alone(&rule, || {
            // SAFETY: a library of the system, whose constructors may run here.
            unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_LAZY) };
            start();
            with(|followed| assert!(followed.too_many && followed.functions.is_empty())).unwrap();
        });
    }

    #[test]
    fn a_rules_library_is_a_path_or_a_soname() {
        let loaded = |path: &str, soname: Option<&str>, is_left_alone| Loaded {
            start: 0,
            end: 1,
            path: path.into(),
            soname: soname.map(|name| name.as_bytes().to_owned()),
            is_left_alone,
        };
        let followed = |library: Option<&str>| Followed {
            pattern: Pattern::new(&Regex::new(".").unwrap()),
            library: library.map(|library| Regex::new(library).unwrap()),
            loaded: Vec::new(),
            functions: Vec::new(),
            by_name: Vec::new(),
            regions: Vec::new(),
            matched: 0,
            too_many: false,
            searched: 0,
        };
        let module = loaded("/usr/lib/libm-2.31.so", Some("libm.so.6"), false);
        for (library, is_wanted) in [
            (None, true),
            (Some("libm-2"), true),
            (Some("^libm.so"), true),
            (Some("libz"), false),
        ] {
            assert_eq!(
                followed(library).is_wanted(&module),
                is_wanted,
                "{library:?}"
            );
        }
        assert!(!followed(Some("libm")).is_wanted(&loaded("/bin/true", None, false)));
        assert!(!followed(None).is_wanted(&loaded("/lib/libc.so.6", None, true)));
    }

    #[test]
    fn a_process_without_a_rule_for_functions_looks_at_nothing() {
        alone(
            &[
                ("TLLMPROF_STEP", "cuGraphLaunch"),
                ("TLLMPROF_START_STOP", "5"),
            ],
            || {
                start();
                assert!(!ARE_WATCHED.load(Ordering::Relaxed));
                look();
                assert!(with(|_| ()).is_none() && !follows_nothing_yet());
            },
        );
    }

    #[test]
    fn an_engine_that_may_come_is_waited_for() {
        alone(
            &[("TLLMPROF_STEP", "auto"), ("TLLMPROF_START_STOP", "5")],
            || {
                start();
                assert!(ARE_WATCHED.load(Ordering::Relaxed) && follows_nothing_yet());
                look();
                assert!(with(|_| ()).is_none(), "there is none");
            },
        );
    }

    #[test]
    fn a_thread_that_looks_finds_nothing_in_what_that_looks_up() {
        alone(&RULE, || {
            follow(&tllmprof_session::activity::settings().unwrap().step);
            assert_eq!(with(|_| with(|_| ()).is_none()), Some(true));
            assert!(with(|_| ()).is_some(), "and everything afterwards");
        });
    }
}
