//! Finds CUDA calls that bypass the library, and the reason. Used when no call was counted. For example, the loader
//! does not bind symbols to a preloaded library in the namespaces that `dlmopen` creates.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::PathBuf;

use tllmprof_platform::driver;
use tllmprof_platform::elf::{self, ElfModule};
use tllmprof_platform::libcuda;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve;
use tllmprof_platform::system;
use tllmprof_session::{self as session, activity};

use super::dlsym::{FRONT_DLSYM, role_of};

/// The reason why calls of CUDA functions do not reach the library.
enum Bypass {
    /// The CUDA library at this path was loaded into another linker namespace (`dlmopen`).
    Elsewhere(String),
    /// The calls of the first module are bound directly to the second module, a CUDA library, as with
    /// `RTLD_DEEPBIND`.
    Direct(String, String),
    /// The library at this path comes before this library in load order, intercepts the calls, and
    /// does not pass them to this library.
    InFront(String),
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(path) => write!(
                f,
                "CUDA calls to {path} bypass the library: dlmopen has loaded it into a namespace of its own, which LD_PRELOAD \
                 does not reach. Load it without dlmopen"
            ),
            Self::Direct(path, to) => write!(
                f,
                "CUDA calls of {path} bypass the library: they are bound to {to} directly, as RTLD_DEEPBIND does. Load it \
                 without RTLD_DEEPBIND"
            ),
            Self::InFront(path) => write!(
                f,
                "CUDA calls bypass the library: {path} comes before it in LD_PRELOAD and does not pass them on. Put \
                 libtllmprof.so first"
            ),
        }
    }
}

lifecycle::global! {
    stage: Doors;

    /// True once [`report_uncounted`] has checked, at the end of the process, whether calls bypass the library. It
    /// checks this only once.
    #[fork(reset)]
    #[exit = "set first: it is looked at once"]
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    /// True from [`await_look_up`] until the next symbol look-up, which registers the exit handler.
    #[fork(keep = "as the parent's")]
    static WAITS: AtomicBool = AtomicBool::new(false);
    /// True if symbol look-ups are intercepted only to register the exit handler, and need not be intercepted
    /// afterwards.
    #[fork(keep = "as the parent's")]
    static IS_ALONE: AtomicBool = AtomicBool::new(false);
}

/// Makes the next symbol look-up register an exit handler. The library's constructor cannot register it: a handler
/// that is registered so early runs after all destructors, when a driver in another namespace has already shut down.
pub fn await_look_up() {
    let is_watched = modules::ARE_WATCHED.swap(true, Ordering::AcqRel);
    IS_ALONE.store(!is_watched, Ordering::Relaxed);
    WAITS.store(true, Ordering::Release);
}

/// Registers the exit handler at the first look-up after [`await_look_up`]. Returns true if the library also needs to
/// know about look-ups for other purposes.
pub fn is_looked_up() -> bool {
    if !WAITS.swap(false, Ordering::AcqRel) {
        return true;
    }
    system::at_exit(ends);
    let is_alone = IS_ALONE.load(Ordering::Relaxed);
    if is_alone {
        modules::ARE_WATCHED.store(false, Ordering::Release);
    }
    !is_alone
}

extern "C" fn ends() {
    contained((), report_uncounted);
}

/// Warns once, at the end of the process, if no call was counted because CUDA calls bypass the library.
pub fn report_uncounted() {
    if !activity::is_asked() || session::has_begun() || HAS_ENDED.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(settings) = activity::settings() else {
        return;
    };
    if activity::has_work(settings) {
        log::set_level(settings.log);
        report();
    }
}

/// Logs the reason why calls of CUDA functions bypass the library, if some do. If there are several reasons, only the
/// first that is found is logged.
pub fn report() {
    if let Some(bypass) = find() {
        log::say!(Warn, "{bypass}");
    }
}

fn find() -> Option<Bypass> {
    // First collect the modules, and ask the driver afterwards: `each_elsewhere` holds the loader's lock while it
    // calls the closure, and the driver must not be called while that lock is held.
    let mut elsewhere = Vec::new();
    let is_driver = |name: &[u8]| name.starts_with(b"libcuda.so");
    elf::each_elsewhere(is_driver, |module| elsewhere.push(*module));
    if let Some(module) = elsewhere.iter().find(|driver| driver::is_in_use(driver)) {
        return Some(Bypass::Elsewhere(path_of(module)));
    }
    // A library that was loaded after the start comes last in load order. So callers are bound to other modules even if
    // nothing is wrong: their calls come by patched slots and patched entries of the driver, or not at all.
    if resolve::is_late() {
        return None;
    }
    let mut found = None;
    elf::with_modules(|modules| {
        let is_driver = |module: &&ElfModule| module.soname() == Some(libcuda::NAME);
        if let Some(driver) = modules.iter().find(is_driver) {
            let mut callers = modules.iter().filter(|module| !is_cudas(module));
            let bypass = callers.find_map(|module| bypass_of(module, modules));
            found = bypass.map(|bypass| (bypass, *driver));
        }
    });
    let (bypass, driver) = found?;
    driver::is_in_use(&driver).then_some(bypass)
}

/// Returns the way in which calls of `module` bypass the library, or `None` if no call bypasses it.
fn bypass_of(module: &ElfModule, modules: &[ElfModule]) -> Option<Bypass> {
    if modules::is_left_alone(module) {
        return None;
    }
    let front = FRONT_DLSYM.load(Ordering::Acquire).addr();
    let mut found = None;
    module.each_slot(
        |name| name == c"dlsym" || role_of(name).is_some(),
        |slot| {
            let value = slot.place.load(Ordering::Relaxed);
            let owner = modules.iter().position(|other| other.contains(value));
            let Some(owner) = owner.map(|owner| (owner, &modules[owner])) else {
                return;
            };
            // Skip a slot that points into its own module: the loader has not bound it yet, so no call has used it.
            // Also skip a slot that points to this library: calls through this slot do not bypass the library.
            if found.is_some() || owner.1.start == module.start || resolve::is_us(owner.1) {
                return;
            }
            let is_look_up = slot.name == c"dlsym";
            let is_before = resolve::comes_before_us(value);
            if !is_look_up && is_cudas(owner.1) {
                found = Some(Bypass::Direct(path_of(module), path_of(owner.1)));
            } else if is_before && !activity::is_touched() && (!is_look_up || value == front) {
                found = Some(Bypass::InFront(path_of(owner.1)));
            }
        },
    );
    found
}

/// Returns true if the module is the CUDA driver or a CUDA runtime.
fn is_cudas(module: &ElfModule) -> bool {
    let name = module
        .soname()
        .map_or(module.file_name(), |soname| soname.to_bytes());
    [&b"libcuda.so"[..], b"libcudart.so"]
        .iter()
        .any(|cudas| name.starts_with(cudas))
}

/// Returns the path of the module as a user knows it. For the program itself, which has no name in the loader's list,
/// the path comes from the memory mappings.
fn path_of(module: &ElfModule) -> String {
    let path = module.path().to_string_lossy().into_owned();
    let of_program = || {
        let file = Maps::read()
            .ok()?
            .file_at(module.start)
            .map(PathBuf::from)?;
        Some(file.display().to_string())
    };
    match path.is_empty() {
        true => of_program().unwrap_or_else(|| "the program".to_owned()),
        false => path,
    }
}
