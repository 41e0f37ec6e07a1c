//! The replacement of `dlsym`. A program that looks up a CUDA function by name gets the address of this library's
//! replacement (a stub).

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_calls::{Call, CuptiCall, LOOK_UPS, Library, NcclCall, is_called_in_context};
use tllmprof_platform::lifecycle;

use super::thunk::{Role, Thunk};
use super::{fed, stubs};
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve::{self, Scope};
use tllmprof_platform::thread::LookingUp;
use tllmprof_platform::{function, gate};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

lifecycle::global! {
    /// Address of the `dlsym` that follows this library's in search order; null until it is found.
    #[fork(keep = "the child's modules are its parent's")]
    pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// Address of the `dlsym` of a library that comes before this library in load order. Modules bind to that `dlsym`
    /// and not to this library's. Null if there is no such library.
    #[fork(keep = "the child's modules are its parent's")]
    pub static FRONT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// Address of the `dlvsym` that follows this library's in search order; null until it is found.
    #[fork(keep = "the child's modules are its parent's")]
    pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}

/// Finds the real `dlsym` and `dlvsym`. Also called by the first look-up, because constructors of other libraries may
/// call `dlsym` before this library is initialised.
pub(crate) extern "C" fn find_real() {
    contained((), || {
        for (place, name) in [(&REAL_DLSYM, c"dlsym"), (&REAL_DLVSYM, c"dlvsym")] {
            let late = || {
                let is_late = resolve::is_late();
                is_late.then(|| resolve::of_c_library(name)).flatten()
            };
            if let Some(real) = resolve::next(name).or_else(late) {
                place.store(real, Ordering::Release);
            }
        }
    });
}

/// Returns the role in which this library intercepts the function `name`: as a driver function, a
/// runtime function, or another. Returns `None` if it does not intercept the function.
pub(crate) fn role_of(name: &CStr) -> Option<Role> {
    let name = name.to_str().ok()?;
    if LOOK_UPS.contains(&name) {
        return Some(Role::ProcAddress);
    }
    if let Some(call) = CuptiCall::by_name(name) {
        return Some(Role::Cupti(call));
    }
    if let Some(call) = NcclCall::by_name(name) {
        return Some(Role::Nccl(call));
    }
    Some(match Call::and_library(name)? {
        (call, Library::Driver) => Role::Driver(call),
        (call, Library::Runtime) => Role::Runtime(call),
    })
}

/// Returns true if this library must answer the look-up of `name`. Returns false if the look-up can be passed to the
/// real `dlsym`.
///
/// An RTLD_NEXT look-up searches the modules after the caller. It is passed on by a jump, so that the real `dlsym` sees
/// the caller's return address. But if only this library defines the name, the real `dlsym` would find this library's
/// export. In that case the function returns true, and [`lookup`] searches after this library and finds nothing.
pub(crate) unsafe extern "C" fn wanted(handle: *mut c_void, name: *const c_char) -> bool {
    // SAFETY: the program passed `name` to `dlsym`, which reads a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    contained(false, || {
        (role_of(name).is_some() || gate::is_wanted() && is_called_in_context(name))
            && (handle != libc::RTLD_NEXT || resolve::resolve(0, name, None, Scope::All).is_none())
    })
}

/// Returns true if a look-up of `name` with `dlvsym` and RTLD_NEXT, by the code at `caller`, must find this library's
/// `dlsym`. That is so if `name` is `dlsym` and the caller's module comes before this library in load order.
///
/// A library that defines `dlsym` itself uses such a look-up, with a version, to find the real `dlsym`. This library's
/// `dlsym` has no version. So the loader would skip it, and this library would not see the program's look-ups. Returns
/// false in a process without this library's environment variables, because the loader's answer must not be changed
/// there.
pub(crate) unsafe extern "C" fn are_next(name: *const c_char, caller: usize) -> bool {
    // SAFETY: the program passed `name` to `dlvsym`, which reads a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    contained(false, || {
        name == c"dlsym"
            && tllmprof_session::activity::is_asked()
            && !resolve::is_late()
            && resolve::comes_before_us(caller)
    })
}

/// Returns the next `dlsym` in search order, or `None` if the process has none (an old glibc without libdl).
fn real_dlsym() -> Option<Dlsym> {
    if REAL_DLSYM.load(Ordering::Acquire).is_null() {
        find_real();
    }
    // SAFETY: the pointer is null or the address of the real `dlsym`.
    unsafe { function::at(REAL_DLSYM.load(Ordering::Acquire)) }
}

/// Returns the next `dlvsym` in search order, or `None` if the process has none.
fn real_dlvsym() -> Option<Dlvsym> {
    if REAL_DLVSYM.load(Ordering::Acquire).is_null() {
        find_real();
    }
    // SAFETY: the pointer is null or the address of the real `dlvsym`.
    unsafe { function::at(REAL_DLVSYM.load(Ordering::Acquire)) }
}

/// Looks up `name` in `handle` with the real `dlsym`, or with the real `dlvsym` if `version` is given. Returns null if
/// the look-up finds nothing, or if the process does not have the real function. The real function takes this library
/// to be the caller, not the module of the program that made the look-up.
///
/// # Safety
/// The arguments must be valid for `dlsym`, or for `dlvsym` if `version` is given.
pub(crate) unsafe fn real(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> *mut c_void {
    // SAFETY: the functions are `dlsym` and `dlvsym`, and the caller passes arguments that are valid for them.
    let found = unsafe {
        match version {
            None => real_dlsym().map(|dlsym| dlsym(handle, name.as_ptr())),
            Some(version) => {
                real_dlvsym().map(|dlvsym| dlvsym(handle, name.as_ptr(), version.as_ptr()))
            }
        }
    };
    found.unwrap_or_default()
}

/// Looks up `name`, which this library intercepts, for the code at `caller`. Returns the address of this library's
/// replacement, or the result of the real `dlsym`.
///
/// # Safety
/// The arguments must be valid for `dlsym`.
pub(crate) unsafe extern "C" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    let Some(dlsym) = real_dlsym() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the program passed a terminated string to `dlsym`.
    let text = unsafe { CStr::from_ptr(name) };
    // RTLD_DEFAULT means the scope of the calling module. The real `dlsym` would take this library to be the caller,
    // and if this library was loaded late, the program's modules may not be in its scope. So search the caller's
    // scope.
    let of_caller = if handle == libc::RTLD_DEFAULT && resolve::is_late() {
        contained(None, || resolve::resolve(caller, text, None, Scope::Caller))
    } else {
        None
    };
    // SAFETY: the arguments are those that the program passed to `dlsym`.
    let found = of_caller.unwrap_or_else(|| unsafe { dlsym(handle, name) });
    contained(found, || stand_in(found, text, None, caller))
}

/// Looks up `name`, which this library intercepts, for the code at `caller`, as [`lookup`] does. The caller uses the
/// `dlsym` of another library that comes first in load order, so this function calls that library's `dlsym`.
///
/// # Safety
/// The arguments must be valid for `dlsym`.
pub(crate) unsafe extern "C" fn lookup_by_front(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the pointer is null or the address of a `dlsym`.
    let Some(dlsym) = (unsafe { function::at::<Dlsym>(FRONT_DLSYM.load(Ordering::Acquire)) })
    else {
        return core::ptr::null_mut();
    };
    // SAFETY: the caller passed a terminated string, and arguments that are valid for the function.
    let (found, name) = unsafe { (dlsym(handle, name), CStr::from_ptr(name)) };
    contained(found, || stand_in(found, name, None, caller))
}

/// Looks up `name`, which this library intercepts, and `version` for the code at `caller`, as [`lookup`] does for
/// names without a version.
///
/// # Safety
/// The arguments must be valid for `dlvsym`.
pub(crate) unsafe extern "C" fn lookup_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    let Some(dlvsym) = real_dlvsym() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the program passed a terminated name to `dlvsym`, and a version that is terminated or null.
    let (text, wanted) = unsafe {
        let wanted = (!version.is_null()).then(|| CStr::from_ptr(version));
        (CStr::from_ptr(name), wanted)
    };
    // RTLD_DEFAULT means the scope of the calling module. The real `dlvsym` would take this library to be the caller,
    // so search the caller's scope. The search does not find this library's exports, which have no versions.
    let found = if handle == libc::RTLD_DEFAULT {
        contained(None, || {
            resolve::resolve(caller, text, wanted, Scope::Caller)
        })
    } else {
        None
    };
    // SAFETY: the arguments are those that the program passed to `dlvsym`.
    let found = found.unwrap_or_else(|| unsafe { dlvsym(handle, name, version) });
    contained(found, || stand_in(found, text, wanted, caller))
}

/// Returns the address that the program gets for a look-up that found `found`. This is the address of this library's
/// stub (code that passes calls through this library), or of a gate (code that runs before a driver function), or
/// `found` itself if the function gets neither.
///
/// If the look-up found nothing, the result is null, and the message of `dlerror` does not change.
fn stand_in(found: *mut c_void, name: &CStr, version: Option<&CStr>, caller: usize) -> *mut c_void {
    #[cfg(test)]
    crate::made::panic_if_asked();
    // The following code calls functions of the C library, which may call `dlsym` again. If this look-up comes from
    // such a call, return the address that the real `dlsym` found.
    let Some(_looking_up) = LookingUp::enter() else {
        return found;
    };
    tllmprof_platform::lifecycle::register();
    // The address may already be that of a stub: another library that replaces `dlsym` may return the address that it
    // got from this library's `dlsym`. Do not replace a stub by another stub.
    if found.is_null() || resolve::is_ours(caller) || stubs::is_stub(found.addr()) {
        return found;
    }
    let is_gated = gate::is_wanted();
    if is_gated && tllmprof_session::activity::is_active() {
        // Install gates (code that runs before driver functions) in all modules that have been loaded so far. This must
        // happen before the program can call the function that it looks up.
        gate::lead_new_links();
    }
    let Some(role) = role_of(name) else {
        let passes =
            !is_gated || !tllmprof_session::activity::is_active() || gate::is_profiler(caller);
        return if passes {
            found
        } else {
            gate::stand_in(found, name)
        };
    };
    let mut real = found;
    if resolve::is_ours(found.addr()) {
        // The search was in the global scope, where this library's own export comes first. Find out whether another
        // module defines the name. If none does, the look-up must fail, or the program would conclude that CUDA is
        // present.
        match resolve::resolve(caller, name, version, Scope::Caller) {
            Some(behind) => real = behind,
            None if resolve::resolve(caller, name, version, Scope::All).is_some() => return found,
            None => {
                // SAFETY: RTLD_NEXT from this library searches after it, where no module defines the name. So the
                // result is null, and the message of `dlerror` contains the name that the program looked up.
                return real_dlsym().map_or(core::ptr::null_mut(), |dlsym| unsafe {
                    dlsym(libc::RTLD_NEXT, name.as_ptr())
                });
            }
        }
    }
    if matches!(role, Role::Cupti(_)) && !is_gated {
        return real; // kernels are not recorded in this process, so CUPTI is not intercepted
    }
    // Only a look-up that finds a function counts as use of CUDA. A failed look-up, in a process without CUDA, does
    // not.
    tllmprof_session::activity::touched();
    if !tllmprof_session::activity::is_active() || is_gated && gate::is_profiler(caller) {
        return real;
    }
    if let Role::Driver(call) = role {
        fed::feed(caller, call);
    }
    Thunk::for_function(real, role).map_or(real, |thunk| thunk.named(name).stub())
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use tllmprof_calls::{CALLS, CUPTI_CALLS, NCCL_CALLS};

    use super::*;
    use crate::made::{alone, panic_next, stranger};

    #[test]
    fn every_name_of_the_table_is_stood_in_for() {
        let role = |name: &str| role_of(&std::ffi::CString::new(name).unwrap());
        for row in CALLS {
            for name in row.driver {
                assert_eq!(role(name), Some(Role::Driver(row.call)), "{name}");
            }
            for name in row.runtime {
                assert_eq!(role(name), Some(Role::Runtime(row.call)), "{name}");
            }
        }
        for name in LOOK_UPS {
            assert_eq!(role(name), Some(Role::ProcAddress), "{name}");
        }
        for (call, names) in CUPTI_CALLS {
            for name in *names {
                assert_eq!(role(name), Some(Role::Cupti(*call)), "{name}");
            }
        }
        for (call, names) in NCCL_CALLS {
            for name in *names {
                assert_eq!(role(name), Some(Role::Nccl(*call)), "{name}");
            }
        }
        for name in ["", "cu", "cudaMallocManaged", "cuMemGetInfo_v2", "getppid"] {
            assert_eq!(role(name), None, "{name}");
        }
        assert_eq!(role_of(c"cuGraphLaunch\xff"), None, "no text");
    }

    #[test]
    fn a_name_is_wanted_wherever_it_is_looked_for_but_behind_the_caller() {
        let wanted = |handle, name: &CStr| {
            // SAFETY: the name is a terminated string.
            unsafe { wanted(handle, name.as_ptr()) }
        };
        assert!(wanted(libc::RTLD_DEFAULT, c"cuGraphLaunch"));
        assert!(wanted(null_mut(), c"cuGetProcAddress_v2"));
        assert!(
            wanted(libc::RTLD_NEXT, c"cuGraphLaunch"),
            "nobody has it: it is asked for behind us"
        );
        assert!(
            !wanted(libc::RTLD_DEFAULT, c"cuMemGetInfo_v2"),
            "there are no gates here"
        );
        assert!(!wanted(libc::RTLD_DEFAULT, c"getppid"));
    }

    #[test]
    fn who_comes_behind_us_finds_its_own_next_dlsym() {
        let ask = |name: &CStr, caller| {
            // SAFETY: the name is a terminated string.
            unsafe { are_next(name.as_ptr(), caller) }
        };
        // In this test, `stranger()` is an address in the C library, which comes after the test program in load
        // order. So the next `dlsym` for its code is not this library's.
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            assert!(!ask(c"dlsym", stranger()) && !ask(c"dlsym", 0x10));
            let us = are_next as *const () as usize;
            assert!(!ask(c"dlsym", us), "we ask ourselves");
        });
    }

    #[test]
    fn a_program_gets_a_thunk_for_what_counts() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            // Use the address of a C library function in place of the driver's function.
            let real = core::ptr::with_exposed_provenance_mut::<c_void>(stranger());
            let launch = Role::Driver(Call::GraphLaunch);
            let given = stand_in(real, c"cuGraphLaunch", None, stranger());
            let thunk = Thunk::for_function(real, launch).unwrap();
            assert_eq!((given, thunk.is_per_thread()), (thunk.stub(), false));
            assert!(fed::is_fed(stranger(), Call::GraphLaunch));

            let given = stand_in(real, c"cudaGraphLaunch_ptsz", None, stranger());
            let thunk = Thunk::for_function(real, Role::Runtime(Call::GraphLaunch)).unwrap();
            assert_eq!((given, thunk.is_per_thread()), (thunk.stub(), true));

            assert_eq!(stand_in(real, c"cuMemGetInfo_v2", None, stranger()), real);
            assert!(stand_in(null_mut(), c"cuGraphLaunch", None, stranger()).is_null());
            let us = stand_in as *const () as usize;
            assert_eq!(
                stand_in(real, c"cuGraphLaunch", None, us),
                real,
                "our own look-ups"
            );
        });
    }

    #[test]
    fn our_own_export_is_never_taken_for_cuda() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            let ours = stand_in as *mut c_void;
            assert!(stand_in(ours, c"cuGraphLaunch", None, stranger()).is_null());
        });
    }

    #[test]
    fn a_process_that_asks_for_nothing_gets_what_was_found() {
        alone(&[], || {
            let real = core::ptr::with_exposed_provenance_mut::<c_void>(stranger());
            assert_eq!(stand_in(real, c"cuGraphLaunch", None, stranger()), real);
        });
    }

    #[test]
    fn a_look_up_within_a_look_up_goes_straight_on() {
        let name = c"cuGraphLaunch";
        let found = stranger() as *mut c_void;
        let ask = || stand_in(found, name, None, stranger());
        alone(&[("TLLMPROF_START_STOP", "1000")], || {
            let looking_up = LookingUp::enter();
            assert_eq!(ask(), found, "a function of the host's asks");
            drop(looking_up);
            assert_ne!(ask(), found, "the program asks");
            assert!(LookingUp::enter().is_some(), "it is over");
        });
    }

    #[test]
    fn a_look_up_finds_what_the_next_in_line_finds() {
        let ask = |name: &CStr, caller| {
            // SAFETY: RTLD_DEFAULT is a valid handle, and the name is a terminated string.
            unsafe { lookup(libc::RTLD_DEFAULT, name.as_ptr(), caller) }.addr()
        };
        assert_eq!(ask(c"getppid", stranger()), stranger());
        panic_next();
        assert_eq!(ask(c"getppid", stranger()), stranger());
        assert_eq!(ask(c"cuGraphLaunch", stranger()), 0);
        // SAFETY: RTLD_DEFAULT is a valid handle.
        let by_handle = |name, version| unsafe { real(libc::RTLD_DEFAULT, name, version) }.addr();
        let version = if cfg!(target_arch = "x86_64") {
            c"GLIBC_2.2.5"
        } else {
            c"GLIBC_2.17"
        };
        assert_eq!(by_handle(c"getppid", None), stranger());
        assert_eq!(by_handle(c"getppid", Some(version)), stranger());
        assert_eq!(by_handle(c"getppid", Some(c"NONE_1")), 0);
        let ask = |version: Option<&CStr>| {
            let version = version.map_or(core::ptr::null(), CStr::as_ptr);
            // SAFETY: RTLD_DEFAULT is a valid handle, and the strings are terminated.
            let found = unsafe {
                lookup_version(libc::RTLD_DEFAULT, c"getppid".as_ptr(), version, stranger())
            };
            found.addr()
        };
        assert_eq!(ask(Some(version)), stranger());
        assert_eq!(ask(Some(c"NONE_1")), 0);
    }
}
