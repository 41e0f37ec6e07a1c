use std::os::unix::fs::FileExt;

use tllmprof_platform::entry::jumps::are_seen;

use super::*;
use crate::attached::{self, Entries, attach, detach};
use crate::made::{alone, library, open};

const DRIVER: &str = "int cuGraphLaunch(void* graph, void* stream) { return graph == 0 ? 42 : *(int*)stream; }\n\
    int cuGraphLaunch_ptsz(void* graph, void* stream) { return 44; }\n\
    int cuStreamSynchronize(void* stream) { return cuGraphLaunch(0, stream) + 1; }\n\
    __asm__(\".globl cuEventSynchronize, cuCtxSynchronize\\n\"\n\
        \".type cuEventSynchronize, @function\\n .type cuCtxSynchronize, @function\\n\"\n\
        \"cuEventSynchronize: jmp cuCtxSynchronize@PLT\\n .size cuEventSynchronize, . - cuEventSynchronize\\n\"\n\
        \"cuCtxSynchronize: mov $7, %eax\\n ret\\n .size cuCtxSynchronize, . - cuCtxSynchronize\\n\");\n";
const CALLER: &str = "int cuGraphLaunch(void*, void*);\n\
    int call(void) { return cuGraphLaunch(0, 0); }\n\
    int call_by(int (*function)(void*, void*)) { return function(0, 0); }\n";

type Launch = extern "C" fn() -> i32;
type CallBy = extern "C" fn(*mut c_void) -> i32;

fn count(call: Call) -> u64 {
    tllmprof_session::slot().map_or(0, |slot| slot.live(call).count())
}
/// Writes all jumps at once, like the `tllmprof` command does, including those for which threads must be stopped.
fn write_all() {
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    let count = JUMPS.count.load(Ordering::Relaxed) as usize;
    for row in &JUMPS.all[..count] {
        let after = row.after.load(Ordering::Relaxed).to_le_bytes();
        memory
            .write_all_at(&after, row.at.load(Ordering::Relaxed))
            .unwrap();
    }
    JUMPS.rounds.fetch_add(1, Ordering::Relaxed);
}

/// Returns the address of a function of an open library.
fn function(handle: *mut c_void, name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: `dlopen` returned the handle, and the name is a terminated string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

#[test]
fn calls_through_pointers_are_counted_once() {
    alone(&[("TLLMPROF_START_STOP", "1000")], || {
        let (driver, caller) = (
            library("libcuda.so.1", DRIVER),
            library("libcaller.so", CALLER),
        );
        let name = CString::new(driver.as_str()).unwrap();
        // SAFETY: this test built the library, and it has no constructors.
        let driver = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!driver.is_null());
        let [launch, per_thread, wait] = [
            c"cuGraphLaunch",
            c"cuGraphLaunch_ptsz",
            c"cuStreamSynchronize",
        ]
        .map(|name| function(driver, name));
        let caller = open(&caller);
        // SAFETY: the library defines these functions with these types.
        let (call, call_by) = unsafe {
            (
                core::mem::transmute::<*mut c_void, Launch>(function(caller, c"call")),
                core::mem::transmute::<*mut c_void, CallBy>(function(caller, c"call_by")),
            )
        };
        let launches = || count(Call::GraphLaunch);
        prepare();
        assert!(attach(Vec::new(), Entries { lead, release }));
        // The jumps are prepared. Those that do not fit into one store are not written yet. `original` already returns
        // the address of the moved instructions (copies of those that a jump replaces), not the function's own address.
        // A call through a GOT slot is counted once.
        assert_ne!(original(launch), launch);
        assert_eq!((call(), launches()), (42, 1));
        assert!(!are_seen(Call::GraphLaunch) || JUMPS.rounds.load(Ordering::Relaxed) > 0);
        write_all();
        assert!(are_seen(Call::GraphLaunch) && are_seen(Call::StreamSynchronize));
        assert!(
            !are_seen(Call::CtxSynchronize),
            "another function ends in it"
        );
        assert!(!are_seen(Call::MemFree), "the driver has none");
        assert_eq!(JUMPS.known.load(Ordering::Relaxed), 5);
        assert_eq!((call(), launches()), (42, 2), "by the slot, and once");
        assert_eq!((call_by(launch), launches()), (42, 3), "by a pointer");
        assert_eq!((call_by(per_thread), launches()), (44, 4));
        // A call that the driver makes itself is not counted: it is part of the program's call.
        assert_eq!((call_by(wait), launches()), (43, 4));
        assert_eq!(count(Call::StreamSynchronize), 1);
        // SAFETY: the original code takes the same arguments as the function.
        let ours = unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(usize, usize) -> i32>(original(
                launch,
            ))
        };
        assert_eq!((ours(0, 0), launches()), (42, 4), "the library's own");

        detach().unwrap();
        assert_eq!((call(), call_by(launch), launches()), (42, 42, 4));
        assert!(attached::attach_again());
        assert_eq!((call(), call_by(launch), launches()), (42, 42, 6));
    });
}

#[test]
fn a_process_without_the_driver_gets_no_jumps() {
    alone(&[("TLLMPROF_START_STOP", "1000")], || {
        prepare();
        assert!(PATCHED.lock().is_empty());
        assert_eq!(JUMPS.known.load(Ordering::Relaxed), 0);
    });
}

/// Maps every free page that a jump in the driver can reach (within 2 GiB), except for `but` pages.
fn fill_around(driver: &ElfModule, but: usize) {
    let maps = Maps::read().unwrap();
    let reach = i32::MAX as usize;
    let mut left = but;
    for gap in maps.free_near(driver.start, reach) {
        let spared = left.min(gap.len() / PAGE_SIZE);
        left -= spared;
        let (place, size) = (
            gap.start + spared * PAGE_SIZE,
            gap.len() - spared * PAGE_SIZE,
        );
        if size > 0 {
            // SAFETY: the mapping is new, at an address where nothing is mapped.
            let got = unsafe {
                libc::mmap(
                    core::ptr::with_exposed_provenance_mut(place),
                    size,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE
                        | libc::MAP_ANONYMOUS
                        | libc::MAP_NORESERVE
                        | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            assert_ne!(got, libc::MAP_FAILED);
        }
    }
}

/// Returns two numbers: the driver functions that the library knows, and those that get jumps if
/// only `pages` pages near the driver are free.
fn jumps_with_room_for(pages: usize) -> (u64, u64) {
    let path = library("libcuda.so.1", DRIVER);
    let path = CString::new(path.as_str()).unwrap();
    // SAFETY: this test built the library, and it has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!handle.is_null());
    fill_around(&driver().unwrap().unwrap(), pages);
    prepare();
    let load = |count: &core::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    (load(&JUMPS.known), load(&JUMPS.count))
}

#[test]
fn a_driver_without_a_free_page_near_it_gets_no_jumps_and_that_is_said() {
    let said = alone(&[("TLLMPROF_START_STOP", "1000")], || {
        assert_eq!(jumps_with_room_for(0), (5, 0));
        assert!(PATCHED.lock().is_empty());
    });
    if let Some(said) = said {
        let wanted =
            "none of the driver's functions gets a jump: no addresses are free within 2 GiB of it";
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn a_page_near_the_driver_is_enough() {
    alone(&[("TLLMPROF_START_STOP", "1000")], || {
        assert_eq!(jumps_with_room_for(1), (5, 3));
    });
}
