//! The `dlsym` door: functions that a program looks up by name.

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
    /// The next `dlsym` in line.
    #[fork(keep = "the child's modules are its parent's")]
    pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// The `dlsym` of a library in front of this one, which modules bind to in place of ours; null where there is none.
    #[fork(keep = "the child's modules are its parent's")]
    pub static FRONT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// The next `dlvsym` in line.
    #[fork(keep = "the child's modules are its parent's")]
    pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}

/// Finds both, as early as somebody asks: libraries' constructors may run before ours.
pub extern "C" fn find_real() {
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

/// What a symbol is to us.
pub fn role_of(name: &CStr) -> Option<Role> {
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

/// Whether `name` is one that we stand in for.
///
/// RTLD_NEXT means what comes after the caller, and is asked by a jump that leaves the caller's
/// address in place. Where nothing but us has the name it would find our own export: that question
/// is for [`lookup`], after which nothing comes.
///
/// # Safety
/// `name` is a terminated string.
pub unsafe extern "C" fn wanted(handle: *mut c_void, name: *const c_char) -> bool {
    // SAFETY: the program passed it to `dlsym`, which reads a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    contained(false, || {
        (role_of(name).is_some() || gate::is_wanted() && is_called_in_context(name))
            && (handle != libc::RTLD_NEXT || resolve::resolve(0, name, None, Scope::All).is_none())
    })
}

/// Whether our `dlsym` is the next of this name for the code at `caller`, which asks by `dlvsym` and RTLD_NEXT.
///
/// A library that defines `dlsym` asks in this way for the one that it goes on to, and names a version. Ours has none, so
/// the loader would pass it by, and all that the program looks up would be found behind us. In a process that asks for
/// nothing the loader's answer stays.
///
/// # Safety
/// `name` is a terminated string.
pub unsafe extern "C" fn are_next(name: *const c_char, caller: usize) -> bool {
    // SAFETY: the program passed it to `dlvsym`, which reads a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    contained(false, || {
        name == c"dlsym"
            && tllmprof_session::activity::is_asked()
            && !resolve::is_late()
            && resolve::comes_before_us(caller)
    })
}

/// The next `dlsym` in line; none in a process without one, as with an old glibc and no libdl.
fn real_dlsym() -> Option<Dlsym> {
    if REAL_DLSYM.load(Ordering::Acquire).is_null() {
        find_real();
    }
    // SAFETY: the place is null or has the real dlsym.
    unsafe { function::at(REAL_DLSYM.load(Ordering::Acquire)) }
}

/// The next `dlvsym` in line.
fn real_dlvsym() -> Option<Dlvsym> {
    if REAL_DLVSYM.load(Ordering::Acquire).is_null() {
        find_real();
    }
    // SAFETY: the place is null or has the real dlvsym.
    unsafe { function::at(REAL_DLVSYM.load(Ordering::Acquire)) }
}

/// What the next in line finds by a handle, which does not depend on who asks.
///
/// # Safety
/// As `dlsym`, or as `dlvsym` where there is a `version`.
pub unsafe fn real(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> *mut c_void {
    // SAFETY: these are `dlsym` and `dlvsym` themselves, with arguments that are right for them.
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

/// `dlsym` for a wanted name, asked from `caller`.
///
/// # Safety
/// As `dlsym`.
pub unsafe extern "C" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    let Some(dlsym) = real_dlsym() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the real function's caller has passed a terminated string.
    let text = unsafe { CStr::from_ptr(name) };
    // Loaded late, this library may be outside the scope that the caller means by RTLD_DEFAULT, and ask in its own.
    let of_caller = if handle == libc::RTLD_DEFAULT && resolve::is_late() {
        contained(None, || resolve::resolve(caller, text, None, Scope::Caller))
    } else {
        None
    };
    // SAFETY: the arguments are the real function's caller's own.
    let found = of_caller.unwrap_or_else(|| unsafe { dlsym(handle, name) });
    contained(found, || stand_in(found, text, None, caller))
}

/// `dlsym` for a wanted name, asked from `caller`, which means that of the library in front of this one.
///
/// # Safety
/// As `dlsym`.
pub unsafe extern "C" fn lookup_by_front(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the place is null or has a `dlsym`.
    let Some(dlsym) = (unsafe { function::at::<Dlsym>(FRONT_DLSYM.load(Ordering::Acquire)) })
    else {
        return core::ptr::null_mut();
    };
    // SAFETY: the caller has passed a terminated string, and arguments that are right for the function.
    let (found, name) = unsafe { (dlsym(handle, name), CStr::from_ptr(name)) };
    contained(found, || stand_in(found, name, None, caller))
}

/// `dlvsym` for a wanted name, asked from `caller`.
///
/// # Safety
/// As `dlvsym`.
pub unsafe extern "C" fn lookup_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    let Some(dlvsym) = real_dlvsym() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the real function's caller has passed terminated strings, or no version.
    let (text, wanted) = unsafe {
        let wanted = (!version.is_null()).then(|| CStr::from_ptr(version));
        (CStr::from_ptr(name), wanted)
    };
    // The caller's scope, not ours, is meant by RTLD_DEFAULT; our exports have no versions.
    let found = if handle == libc::RTLD_DEFAULT {
        contained(None, || {
            resolve::resolve(caller, text, wanted, Scope::Caller)
        })
    } else {
        None
    };
    // SAFETY: the arguments are the real function's caller's own.
    let found = found.unwrap_or_else(|| unsafe { dlvsym(handle, name, version) });
    contained(found, || stand_in(found, text, wanted, caller))
}

/// What the program gets in place of what the look-up found.
///
/// Nothing found stays nothing found, and `dlerror` keeps its message.
fn stand_in(found: *mut c_void, name: &CStr, version: Option<&CStr>, caller: usize) -> *mut c_void {
    #[cfg(test)]
    crate::made::panic_if_asked();
    // What follows calls functions of the host's, and one of them may be in the middle of this look-up.
    let Some(_looking_up) = LookingUp::enter() else {
        return found;
    };
    tllmprof_platform::lifecycle::register();
    // A library in front of this one that asks for the next `dlsym` gets ours, and gives out what it has found.
    if found.is_null() || resolve::is_ours(caller) || stubs::is_stub(found.addr()) {
        return found;
    }
    let is_gated = gate::is_wanted();
    if is_gated && tllmprof_session::activity::is_active() {
        // What was loaded until now: before its functions are called.
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
        // The global scope was searched, and our own export comes first in it. It must not seem
        // as if CUDA were there when it is not.
        match resolve::resolve(caller, name, version, Scope::Caller) {
            Some(behind) => real = behind,
            None if resolve::resolve(caller, name, version, Scope::All).is_some() => return found,
            None => {
                // SAFETY: RTLD_NEXT from here looks behind this library, where nothing is: the
                // result is null, and dlerror names what the program asked for.
                return real_dlsym().map_or(core::ptr::null_mut(), |dlsym| unsafe {
                    dlsym(libc::RTLD_NEXT, name.as_ptr())
                });
            }
        }
    }
    if matches!(role, Role::Cupti(_)) && !is_gated {
        return real; // no kernels are taken in this process
    }
    // A mere question in a process without CUDA is no use of CUDA; an answer may be.
    tllmprof_session::activity::touched();
    if !tllmprof_session::activity::is_active() || is_gated && gate::is_profiler(caller) {
        return real;
    }
    if let Role::Driver(call) = role {
        fed::feed(caller, call);
    }
    Thunk::of(real, role).map_or(real, |thunk| thunk.named(name).stub())
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
            // SAFETY: a terminated string.
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
            // SAFETY: a terminated string.
            unsafe { are_next(name.as_ptr(), caller) }
        };
        // The C library comes after the test.
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            assert!(!ask(c"dlsym", stranger()) && !ask(c"dlsym", 0x10));
            let us = are_next as *const () as usize;
            assert!(!ask(c"dlsym", us), "we ask ourselves");
        });
    }

    #[test]
    fn a_program_gets_a_thunk_for_what_counts() {
        alone(&[("TLLMPROF_START_STOP", "5")], || {
            // A function of another module.
            let real = core::ptr::with_exposed_provenance_mut::<c_void>(stranger());
            let launch = Role::Driver(Call::GraphLaunch);
            let given = stand_in(real, c"cuGraphLaunch", None, stranger());
            let thunk = Thunk::of(real, launch).unwrap();
            assert_eq!((given, thunk.is_per_thread()), (thunk.stub(), false));
            assert!(fed::is_fed(stranger(), Call::GraphLaunch));

            let given = stand_in(real, c"cudaGraphLaunch_ptsz", None, stranger());
            let thunk = Thunk::of(real, Role::Runtime(Call::GraphLaunch)).unwrap();
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
            // SAFETY: a handle that dlsym knows, and a terminated string.
            unsafe { lookup(libc::RTLD_DEFAULT, name.as_ptr(), caller) }.addr()
        };
        assert_eq!(ask(c"getppid", stranger()), stranger());
        panic_next();
        assert_eq!(ask(c"getppid", stranger()), stranger());
        assert_eq!(ask(c"cuGraphLaunch", stranger()), 0);
        // SAFETY: a handle that dlsym knows.
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
            // SAFETY: a handle that dlvsym knows, and terminated strings.
            let found = unsafe {
                lookup_version(libc::RTLD_DEFAULT, c"getppid".as_ptr(), version, stranger())
            };
            found.addr()
        };
        assert_eq!(ask(Some(version)), stranger());
        assert_eq!(ask(Some(c"NONE_1")), 0);
    }
}
