//! Patches the driver's functions in a process that the library was attached to.
//!
//! The program and its runtimes already have pointers to these functions, so patching GOT slots cannot redirect their
//! calls. So a jump is written at each function's entry. This library writes the jump if it fits into one store.
//! Otherwise the `tllmprof` command, a separate process, writes it while all threads are stopped ([`JUMPS`]). The
//! jump leads to a switch: a few instructions that read an address from memory ([`TARGETS`]) and jump to it. For a
//! call from within the driver, the switch instead jumps to the moved instructions (copies of those that the jump
//! replaced), so that the call is not counted.
//!
//! ```text
//! entry ──jump──▶ switch ──▶ stub of the thunk ──▶ the moved instructions ──▶ the code after the jump
//!                   └─ detached, or called from within the driver ──▶ ┘
//! ```
//!
//! A jump is never removed, and the driver is never unloaded. While the library is detached, the switch leads
//! directly to the moved instructions. A thunk, or this library, calls the real function through the moved
//! instructions, which bypass the jump. So a call through a patched GOT slot reaches this library only once, whether
//! the function's jump has been written or not.

#[cfg(test)]
mod tests;

use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_NOW};
use tllmprof_calls::{CALLS, Call, LOOK_UPS, base};
use tllmprof_control::jumps::{MAX_JUMPS, NO_CALL, WRITTEN};
use tllmprof_platform::elf::{self, ElfModule};
use tllmprof_platform::entry::jumps::{JUMPS, code_at, leave_out, original};
use tllmprof_platform::entry::{self, JUMP, PatchRefusal, PatchableEntry};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::sorted::sorted;
use tllmprof_platform::{function, libcuda, lifecycle, log};
use tllmprof_sync::Lock;

use super::named::patch::examined;
use super::named::trampoline::Region;
use super::thunk::{Role, Thunk};

const PAGE_SIZE: usize = 4096;
/// Longest time that a thread waits for the lock of [`PATCHED`], which another thread holds while it prepares jumps or
/// changes [`TARGETS`].
const SWITCH_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

lifecycle::global! {
    stage: Doors;

    /// Target address of each switch (the code to which a patched entry jumps). The target is the stub of a thunk (this
    /// library's replacement) or, while the library is detached, the moved instructions (copies of those that the jump
    /// replaced).
    #[fork(keep = "the child's code is its parent's")]
    #[together(tables)]
    static TARGETS: [AtomicUsize; MAX_JUMPS] = [const { AtomicUsize::new(0) }; MAX_JUMPS];
    #[fork(hold)]
    static PATCHED: Lock<Vec<Patched>> = Lock::new(Vec::new());
}

/// A function whose calls reach this library once its jump is written.
struct Patched {
    /// The function's index in the table [`JUMPS`].
    index: usize,
    name: CString,
    role: Role,
}

/// A variant of a driver function, such as `cuGraphLaunch_ptsz`, to which a program may have a pointer.
struct Form {
    name: CString,
    code: Range<usize>,
    /// The call in the table of calls to which the function belongs; `None` for a function that looks up other
    /// functions.
    call: Option<Call>,
}

/// Prepares the jumps, if the process has loaded the driver. From then on [`original`] returns the functions' moved
/// instructions. Must run before the library looks up any driver function, so that the library's own calls bypass the
/// jumps.
pub fn prepare() {
    if JUMPS.known.load(Ordering::Relaxed) != 0 {
        return;
    }
    let Some(driver) = driver().transpose() else {
        return;
    };
    let Some(mut patched) = PATCHED.lock_for(SWITCH_LOCK_TIMEOUT) else {
        return;
    };
    match driver.and_then(|driver| prepared(&driver)) {
        Ok(ready) => *patched = ready,
        Err(why) => log::say!(Warn, "none of the driver's functions gets a jump: {why}"),
    }
}

/// Prepares a jump for each driver function and returns the functions that have one.
///
/// # Errors
/// Returns the reason why no function gets a jump.
fn prepared(driver: &ElfModule) -> Result<Vec<Patched>, String> {
    let forms = forms(driver);
    JUMPS.known.store(forms.len() as u64, Ordering::Relaxed);
    if forms.is_empty() {
        return Ok(Vec::new());
    }
    let maps = Maps::read().map_err(|error| error.to_string())?;
    let entries = entries(driver, &forms, &maps);
    let count = entries.iter().flatten().count();
    if let (0, Some(Err(refusal))) = (count, entries.first()) {
        let path = driver.path().to_string_lossy();
        return Err(format!(
            "{path}: {}: {refusal}",
            forms[0].name.to_string_lossy()
        ));
    }
    let mut region = Region::near(driver, count, &maps).map_err(|refusal| refusal.to_string())?;
    let mut ready = Vec::new();
    for (form, entry) in forms.into_iter().zip(entries) {
        let name = form.name.to_string_lossy().into_owned();
        let call = form.call;
        let added = entry.and_then(|entry| {
            let target = TARGETS.get(ready.len()).ok_or(PatchRefusal::NoRoom)?;
            let within = driver.start..driver.end;
            let (switch, original) = region.add_switch(&entry, &within, target)?;
            target.store(original, Ordering::Relaxed);
            let jump = entry::jump(entry.at, switch).ok_or(PatchRefusal::NoRoom)?;
            ready.push((form, entry, jump, original));
            Ok(())
        });
        if let Err(refusal) = added {
            log::say!(Debug, "{name} in libcuda.so.1 gets no jump: {refusal}");
            if let Some(call) = call {
                leave_out(call);
            }
        }
    }
    region.finish().map_err(|refusal| refusal.to_string())?;
    Ok(publish(ready))
}

/// Returns the driver if the process has loaded it, and prevents it from being unloaded.
///
/// # Errors
/// Returns an error if the loader has the driver, but the driver's module is not found or is still being loaded.
fn driver() -> Result<Option<ElfModule>, String> {
    let name = libcuda::NAME.to_str().unwrap_or_default();
    // SAFETY: the library is loaded already, or the call fails: no constructor runs.
    let kept = unsafe {
        Library::open(
            Some(name),
            RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
        )
    };
    let Ok(kept) = kept else {
        return Ok(None);
    };
    core::mem::forget(kept);
    let (mut driver, mut unbound) = (None, 0);
    elf::walk(|module| {
        if module.soname() == Some(libcuda::NAME) {
            match module.is_bound() {
                true => driver = Some(*module),
                false => unbound += 1,
            }
        }
        driver.is_some()
    });
    match driver {
        Some(driver) => Ok(Some(driver)),
        None if unbound > 0 => Err(format!("{name} is being loaded")),
        None => Err(format!(
            "{name} is loaded, and no module of that name was found"
        )),
    }
}

/// Returns the driver's functions for all calls in the table of calls, in all variants that a program can get.
fn forms(driver: &ElfModule) -> Vec<Form> {
    /// Suffixes that a header or the driver adds to the function name that programs use.
    const SUFFIXES: [&str; 9] = [
        "", "_ptsz", "_ptds", "_v2", "_v2_ptsz", "_v2_ptds", "_v3", "_v3_ptsz", "_v3_ptds",
    ];
    let mut forms: Vec<Form> = Vec::new();
    let mut add = |name: &str, call, is_wanted: &dyn Fn(usize) -> bool| {
        let name = CString::new(name).ok()?;
        let code = driver.code_of(&name)?;
        if is_wanted(code.start) && forms.iter().all(|form| form.code.start != code.start) {
            forms.push(Form { name, code, call });
        }
        Some(())
    };
    let asked = ProcAddresses::find(driver);
    for row in CALLS {
        for name in row.driver {
            add(name, Some(row.call), &|_| true);
        }
    }
    for row in CALLS {
        let mut bases = sorted(row.driver.iter().map(|name| base(name)).collect());
        bases.dedup();
        for base in bases {
            let handed_out = asked.all(base);
            for suffix in SUFFIXES {
                let is_wanted = |address| handed_out.contains(&address);
                add(&format!("{base}{suffix}"), Some(row.call), &is_wanted);
            }
        }
    }
    for name in LOOK_UPS {
        add(name, None, &|_| true);
    }
    for row in CALLS {
        let mut handed_out = row.driver.iter().flat_map(|name| asked.all(base(name)));
        if handed_out.any(|address| forms.iter().all(|form| form.code.start != address)) {
            log::say!(Debug, "{} has a form without a name", row.call);
            leave_out(row.call);
        }
    }
    forms
}

/// Type of both versions of `cuGetProcAddress`: the older one ignores the last argument.
type Ask = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

struct ProcAddresses(Option<Ask>);

impl ProcAddresses {
    fn find(driver: &ElfModule) -> Self {
        let names = [c"cuGetProcAddress_v2", c"cuGetProcAddress"];
        let found = names.iter().find_map(|name| driver.defines(name, None));
        // SAFETY: the address is that of the driver's function of this name, which has this type.
        Self(found.and_then(|found| unsafe { function::at(original(found)) }))
    }

    /// Returns all addresses that the driver returns for a function's name, for programs that were
    /// built with any version of CUDA.
    fn all(&self, name: &str) -> BTreeSet<usize> {
        /// The CUDA versions with which the headers look up the functions in the table of calls, and some later
        /// versions.
        const VERSIONS: [c_int; 17] = [
            2000, 3020, 4000, 5050, 6050, 7000, 8000, 9000, 10000, 10010, 11000, 11040, 11060,
            12000, 12030, 13000, 13010,
        ];
        /// Values of the flags argument: default, legacy default stream, per-thread default stream.
        const FLAGS: [u64; 3] = [0, 1, 2];
        let mut found = BTreeSet::new();
        let (Some(ask), Ok(name)) = (self.0, CString::new(name)) else {
            return found;
        };
        for version in VERSIONS {
            for flags in FLAGS {
                let (mut place, mut status) = (core::ptr::null_mut(), 0);
                // SAFETY: the name is terminated, and both results have a valid address.
                let error = unsafe {
                    ask(
                        name.as_ptr(),
                        &raw mut place,
                        version,
                        flags,
                        &raw mut status,
                    )
                };
                if error == 0 && !place.is_null() {
                    found.insert(place.addr());
                }
            }
        }
        found
    }
}

/// Returns, for each function, the data for patching its entry, or the reason why the function gets no jump.
fn entries(
    driver: &ElfModule,
    forms: &[Form],
    maps: &Maps,
) -> Vec<Result<PatchableEntry, PatchRefusal>> {
    let path = Path::new(std::ffi::OsStr::from_bytes(driver.path().to_bytes()));
    let of = |form: &Form| {
        let address = form.code.start.wrapping_sub(driver.base);
        let entry = examined(driver, address, form.code.len(), path, maps)?;
        // The jump must lie within one page: it is written by one system call, which could stop after the first of two
        // pages.
        match entry.at % PAGE_SIZE + WRITTEN <= PAGE_SIZE {
            true => Ok(entry),
            false => Err(PatchRefusal::CrossesPage),
        }
    };
    let mut entries: Vec<_> = forms.iter().map(of).collect();
    // If one function ends in a jump to another, the jumps at both entries would report the same call twice. So
    // neither function gets a jump at its entry.
    let mut twice = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        for target in entry.iter().flat_map(|entry| &entry.ends_in) {
            let other = forms.iter().position(|form| form.code.start == *target);
            if let Some(other) = other {
                twice.extend([index, other]);
            }
        }
    }
    for index in twice {
        entries[index] = Err(PatchRefusal::EndsIn);
    }
    entries
}

/// Publishes the jumps for the `tllmprof` command, and writes those that can be written while threads run. Returns the
/// functions that have a jump.
fn publish(ready: Vec<(Form, PatchableEntry, [u8; JUMP], usize)>) -> Vec<Patched> {
    let mut patched = Vec::new();
    for (row, (form, entry, jump, original)) in JUMPS.all.iter().zip(&ready) {
        // SAFETY: the address is in code of the driver, which stays loaded.
        let mut bytes = unsafe { code_at(entry.at) }.to_le_bytes();
        row.before
            .store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        bytes[..JUMP].copy_from_slice(jump);
        row.after
            .store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        row.function
            .store(form.code.start as u64, Ordering::Relaxed);
        row.original.store(*original as u64, Ordering::Relaxed);
        row.at.store(entry.at as u64, Ordering::Relaxed);
        row.length.store(entry.length as u64, Ordering::Relaxed);
        let call = form.call.map_or(NO_CALL, |call| call.index() as u64);
        row.call.store(call, Ordering::Relaxed);
        let name = form.name.clone();
        let role = form.call.map_or(Role::ProcAddress, Role::Driver);
        patched.push(Patched {
            index: patched.len(),
            name,
            role,
        });
    }
    JUMPS.count.store(patched.len() as u64, Ordering::Release);
    for (_, entry, jump, _) in ready {
        if entry::fits_one_store(&entry) {
            // SAFETY: the driver stays loaded, the switch is executable and leads to the moved instructions, and the
            // jump is written by one store.
            let written = unsafe { entry::write(&entry, jump, false) };
            if let Err(refusal) = written {
                log::say!(
                    Debug,
                    "a jump was not written at {:#x}: {refusal}",
                    entry.at
                );
            }
        }
    }
    patched
}

/// Sets the switches ([`TARGETS`]) so that calls of the patched functions go to their thunks (this library's
/// replacements).
pub fn lead() {
    let Some(all) = PATCHED.lock_for(SWITCH_LOCK_TIMEOUT) else {
        return;
    };
    for patched in all.iter() {
        let function = JUMPS.all[patched.index].function.load(Ordering::Relaxed);
        let function = core::ptr::with_exposed_provenance_mut::<c_void>(function as usize);
        if let Some(thunk) = Thunk::for_function(function, patched.role) {
            let stub = thunk.named(&patched.name).stub();
            TARGETS[patched.index].store(stub.expose_provenance(), Ordering::Release);
        }
    }
}

/// Sets the switches ([`TARGETS`]) so that calls of the patched functions go directly to the moved instructions (copies
/// of the instructions that the jumps replaced).
pub fn release() {
    let Some(all) = PATCHED.lock_for(SWITCH_LOCK_TIMEOUT) else {
        return;
    };
    for patched in all.iter() {
        let original = JUMPS.all[patched.index].original.load(Ordering::Relaxed);
        TARGETS[patched.index].store(original as usize, Ordering::Release);
    }
}
