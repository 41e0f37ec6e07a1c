use core::ptr::without_provenance_mut;

use tllmprof_calls::CALLS;

use super::*;
use crate::fed;
use crate::frame::made::Call as Made;
use crate::made::{alone, library, open, panic_next};
use crate::returned::after;

const RULE: [(&str, &str); 2] = [
    ("TLLMPROF_STEP", "cuGraphLaunch"),
    ("TLLMPROF_START_STOP", "1000"),
];

fn made(role: Role, words: &[usize]) -> Made {
    let thunk = Thunk::made(without_provenance_mut(0x1000), role);
    Made::new(thunk, words, 0x4000)
}

/// Returns how often the calling thread has counted the call `call`.
fn count(call: Call) -> u64 {
    session::slot().map_or(0, |slot| slot.live(call).count())
}

#[test]
fn a_threads_first_call_is_counted_here_and_later_ones_by_the_assembler() {
    alone(&RULE, || {
        let launch = made(Role::Driver(Call::GraphLaunch), &[1, 2]);
        assert!(thread::cells().is_null());
        assert_eq!(before(&launch.frame), 0, "its end does not matter");
        assert!(!thread::cells().is_null());
        assert_eq!(count(Call::GraphLaunch), 1);
        assert_eq!(before(&launch.frame), 0);
        assert_eq!(count(Call::GraphLaunch), 1);
        assert!(Inside::enter().is_some(), "our own code has been left");
    });
}

#[test]
fn a_call_that_panics_here_goes_on_to_its_function() {
    alone(&RULE, || {
        let wait = made(Role::Driver(Call::StreamSynchronize), &[0x77]);
        panic_next();
        assert_eq!(before(&wait.frame), 0);
        assert_eq!(before(&wait.frame), 1, "the next one is seen");
        panic_next();
        after(&wait.frame, 0);
        assert!(Inside::enter().is_some(), "our own code has been left");
    });
}

#[test]
fn waits_and_captures_are_seen_when_they_return() {
    alone(&RULE, || {
        for row in CALLS {
            let call = made(Role::Driver(row.call), &[0x77]);
            let is_seen = row.kind.waits() || row.kind.captures();
            assert_eq!(before(&call.frame), is_seen.into(), "{}", row.call);
            if is_seen {
                after(&call.frame, 901);
            }
        }
        assert!(!session::is_any_capturing(), "none has succeeded");
    });
}

#[test]
fn a_capture_lasts_from_its_begin_to_its_end() {
    alone(&RULE, || {
        let begins = made(Role::Driver(Call::StreamBeginCapture), &[0x77]);
        let ends = made(Role::Driver(Call::StreamEndCapture), &[0x77]);
        let capturing = || session::is_any_capturing();
        assert_eq!(before(&begins.frame), 1);
        after(&begins.frame, 901);
        assert!(!capturing(), "it failed");
        assert_eq!(before(&begins.frame), 1);
        after(&begins.frame, 0xffff_ffff_0000_0000);
        assert!(capturing(), "an enumeration has 32 bits");
        assert_eq!(before(&ends.frame), 1);
        after(&ends.frame, 0);
        assert!(!capturing());
    });
}

#[test]
fn what_our_own_code_calls_goes_on_as_it_is() {
    alone(&RULE, || {
        let inside = Inside::enter().unwrap();
        for role in [
            Role::Driver(Call::StreamSynchronize),
            Role::Runtime(Call::GraphLaunch),
        ] {
            let call = made(role, &[]);
            call.frame.since.set(5);
            assert_eq!(
                (before(&call.frame), call.frame.since.get()),
                (0, 0),
                "{role:?}"
            );
        }
        let lookup = made(Role::ProcAddress, &[]);
        assert_eq!(before(&lookup.frame), 1, "the result matters");
        drop(inside);
        assert!(session::slot().is_none(), "nothing is counted");
    });
}

#[test]
fn a_runtime_without_a_driver_is_passed_through() {
    alone(&RULE, || {
        for row in CALLS {
            let call = made(Role::Runtime(row.call), &[]);
            assert_eq!(before(&call.frame), 0, "{}", row.call);
            after(&call.frame, 0);
        }
        assert!(session::slot().is_none());
    });
}

/// Loads a stand-in for the driver, a library without functions, into the test's process.
fn load_driver() {
    open(&library("libcuda.so.1", ""));
}

/// The frames of two nested calls: the outer call leads to the inner one. The inner frame has the lower address, as
/// on a real stack.
#[repr(C)]
struct Nested {
    inner: Made,
    outer: Made,
}

#[test]
fn a_runtime_counts_with_all_that_it_leads_to() {
    alone(&RULE, || {
        load_driver();
        let launch = Role::Runtime(Call::GraphLaunch);
        let calls = Nested {
            inner: made(Role::Runtime(Call::LaunchKernel), &[]),
            outer: made(launch, &[]),
        };
        assert_eq!(before(&calls.outer.frame), 1, "its end matters");
        assert_eq!(count(Call::GraphLaunch), 1);
        assert!(is_nested(&calls.inner.frame));
        assert_eq!(before(&calls.inner.frame), 0);
        assert_eq!(count(Call::LaunchKernel), 0, "part of the other");
        after(&calls.outer.frame, 0);
        assert!(!is_nested(&calls.inner.frame));

        let copy =
            |direction| before(&made(Role::Runtime(Call::MemcpyDtoH), &[1, 2, 3, direction]).frame);
        assert_eq!((copy(1), count(Call::MemcpyDtoH)), (0, 0), "to the device");
    });
}

#[test]
fn a_runtime_whose_driver_counts_is_transparent() {
    alone(&RULE, || {
        load_driver();
        let us = before as *const () as usize;
        let real = core::ptr::with_exposed_provenance_mut(us);
        let thunk = Thunk::made(real, Role::Runtime(Call::GraphLaunch));
        let call = Made::new(thunk, &[], 0x4000);
        assert_eq!(before(&call.frame), 1);
        after(&call.frame, 0);
        fed::feed(us, Call::GraphLaunch);
        assert!(
            !session::attends(Call::GraphLaunch),
            "the window is far away"
        );
        assert_eq!((before(&call.frame), count(Call::GraphLaunch)), (0, 1));
        // SAFETY: a thunk's first field is the address of its handler.
        let handler = unsafe { core::ptr::from_ref(thunk).cast::<usize>().read() };
        assert_eq!(handler, us);
    });
}

#[test]
fn what_stands_in_for_the_driver_is_transparent_where_the_drivers_counts() {
    alone(&RULE, || {
        load_driver();
        let us = before as *const () as usize;
        let real = core::ptr::with_exposed_provenance_mut(us);
        let thunk = Thunk::made(real, Role::Front(Call::MemcpyDtoH));
        // The third argument of the driver's function is a size. Only the runtime's function has a direction of the
        // copy, so no direction must be checked here.
        let call = Made::new(thunk, &[1, 2, 3, 4], 0x4000);
        assert_eq!((before(&call.frame), count(Call::MemcpyDtoH)), (1, 1));
        assert_ne!(thread::outer().place, 0, "what it calls is part of it");
        after(&call.frame, 0);
        assert_eq!(thread::outer().place, 0, "it is over");
        fed::feed(us, Call::MemcpyDtoH);
        assert_eq!((before(&call.frame), count(Call::MemcpyDtoH)), (0, 1));
    });
}

#[test]
fn a_copy_counts_by_its_direction_where_its_name_leaves_that_open() {
    for row in CALLS {
        let copy = |direction: usize| {
            let call = made(Role::Runtime(row.call), &[1, 2, 3, direction]);
            is_the_call(row.call, &call.frame)
        };
        assert!(copy(2) && copy(0xdead_0000_0002), "{}", row.call);
        for other in [0, 1, 3, 4] {
            assert_eq!(copy(other), !row.device_to_host_only, "{}", row.call);
        }
    }
}

#[test]
fn a_call_is_recorded_once_of_those_that_lead_to_it() {
    alone(&RULE, || {
        let us = before as *const () as usize;
        let real = core::ptr::with_exposed_provenance_mut(us);
        let of = |role| is_recorded(Thunk::made(real, role));
        let launch = Call::GraphLaunch;
        assert!(of(Role::Driver(launch)) && !of(Role::ProcAddress));
        assert!(
            of(Role::Runtime(launch)),
            "what it calls does not come from here"
        );
        fed::feed(us, launch);
        assert!(!of(Role::Runtime(launch)) && of(Role::Runtime(Call::LaunchKernel)));
        assert!(!of(Role::Front(launch)) && of(Role::Front(Call::LaunchKernel)));
    });
}

#[test]
fn a_call_within_another_is_the_programs_or_our_own() {
    let outer = |return_address| {
        thread::set_outer(Outer {
            place: 0x1000,
            return_address,
        });
        let is = is_the_programs();
        thread::leave_outer();
        is
    };
    assert!(outer(0x4000) && !outer(0));
}

/// Arguments with different values, so that a value shows which argument was read.
const WORDS: [usize; 14] = [
    100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113,
];

fn thunk(role: Role) -> &'static Thunk {
    Thunk::made(without_provenance_mut(0x1000), role)
}

#[test]
fn the_stream_of_each_call_is_the_word_that_its_row_names() {
    let configuration = [7_usize, 7, 7, 7, 0x77, 7, 7, 7];
    let mut words = WORDS;
    for row in CALLS {
        let call = row.call;
        for (library, role) in [
            (Library::Driver, Role::Driver(call)),
            (Library::Runtime, Role::Runtime(call)),
        ] {
            let thunk = thunk(role);
            let expected = match call.stream(library) {
                Stream::None => None,
                Stream::Word(index) => Some(100 + usize::from(index)),
                Stream::Configured(behind) => {
                    assert_eq!(behind, 32, "{call}: what lies there is known here");
                    Some(0x77)
                }
            };
            words[0] = match call.stream(library) {
                Stream::Configured(_) => configuration.as_ptr().expose_provenance(),
                _ => 100,
            };
            let made = Made::new(thunk, &words, 0);
            let found = || target(call, &made.frame);
            assert_eq!(
                found().map(|found| found.handle),
                expected,
                "{call} {library:?}"
            );
            assert!(found().is_none_or(|found| !found.per_thread));
            thunk.set_per_thread();
            assert!(
                found().is_none_or(|found| found.per_thread),
                "{call} {library:?}"
            );
        }
    }
}

#[test]
fn a_launch_without_a_configuration_names_no_stream() {
    let launch = thunk(Role::Driver(Call::LaunchKernelEx));
    let made = Made::new(launch, &[0, 101], 0);
    assert!(target(Call::LaunchKernelEx, &made.frame).is_none());
}

#[test]
fn copies_below_64_kib_are_small() {
    for row in CALLS {
        let thunk = thunk(Role::Driver(row.call));
        let mut words = WORDS;
        let mut is_small = |size: usize| {
            words[row.small_by.map_or(0, usize::from)] = size;
            is_small_copy(row.call, &Made::new(thunk, &words, 0).frame)
        };
        assert_eq!(
            is_small((64 << 10) - 1),
            row.small_by.is_some(),
            "{}",
            row.call
        );
        assert!(!is_small(64 << 10), "{}", row.call);
    }
    assert!(CALLS.iter().any(|row| row.small_by.is_some()));
}

#[test]
fn without_a_window_no_work_of_the_gpu_is_timed() {
    let made = Made::new(thunk(Role::Driver(Call::GraphLaunch)), &WORDS, 0);
    #[cfg(target_arch = "x86_64")]
    recorded(&made.frame);
    #[cfg(target_arch = "aarch64")]
    read(&made.frame);
    assert_eq!(made.frame.stream(), 101);
    assert!(made.frame.work.get() == TimingRole::NONE);
    destroys(Destroyed::Stream, &made.frame);
}
