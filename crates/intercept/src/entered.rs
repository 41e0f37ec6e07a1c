//! A call on its way to the real function: by the slow path, which counts it and decides whether it has to
//! come back, and by the handler `record`, which has it recorded alone.
//!
//! A recorded call's stream is read here, once: GPU times get it now, and [`super::returned`] finds it in the
//! frame.

use core::ffi::c_int;

use tllmprof_calls::{Call, Destroyed, Kind, Library, Stream};

use super::followed::{is_followed, is_nested};
use super::frame::{Frame, Work};
use super::thunk::{Role, Thunk};
use super::{fed, watched};
use tllmprof_platform::driver;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::{self, Inside, Outer};
use tllmprof_recorder as recorder;
use tllmprof_recorder::gpu::{self, Doomed, Target, Wait};
use tllmprof_session as session;

/// `cudaMemcpyDeviceToHost`.
const DEVICE_TO_HOST: u32 = 2;

/// The handler `slow` has been entered; returns whether to call the real function and come back (1), or to
/// jump to it (0). `frame` is what the assembler saved of the call.
pub extern "C" fn before(frame: &Frame) -> c_int {
    contained(false, || comes_back(frame)).into()
}

fn comes_back(frame: &Frame) -> bool {
    #[cfg(test)]
    crate::made::panic_if_asked();
    let _errno = Kept::new();
    let inside = Inside::enter();
    let thunk = frame.thunk;
    frame.since.set(0);
    let follow = match thunk.role() {
        Role::ProcAddress => true,
        // From a signal handler or an allocator that our own code met, maybe with a lock in hand.
        _ if inside.is_none() => false,
        Role::Driver(call) if watched::are() => {
            if !is_nested(frame) {
                uncounted_driver(call, frame);
            }
            watched::push_driver(call);
            true
        }
        Role::Driver(_) if recorder::is_wanted() && is_nested(frame) => is_the_programs(),
        Role::Driver(call) => driver(call, &frame.args) || recorder::is_recording(),
        Role::Runtime(call) => runtime(call, thunk, frame),
    };
    if let Role::Driver(call) | Role::Runtime(call) = thunk.role()
        && let Kind::Destroys(what) = call.kind()
        && inside.is_some()
    {
        destroys(what, frame);
    }
    if follow && recorder::is_recording() && is_recorded(thunk) {
        read(frame);
        frame.since.set(recorder::ticks());
    }
    if inside.is_some() {
        session::goes_on();
    }
    follow
}

/// Whether the call that another is nested in is the program's, and not our own.
fn is_the_programs() -> bool {
    thread::outer().return_address != 0
}

/// Whether a call by this thunk is the one to be recorded, and not one that it leads to.
fn is_recorded(thunk: &Thunk) -> bool {
    match thunk.role() {
        Role::Driver(_) => true,
        Role::Runtime(call) => !fed::is_fed(thunk.real().addr(), call),
        Role::ProcAddress => false,
    }
}

fn driver(call: Call, args: &[usize]) -> bool {
    // The assembler counted the call if the thread has cells.
    if thread::cells().is_null() {
        session::new_thread(true);
        session::count(call.into());
        session::note(call, args, false);
    }
    session::entered(call);
    is_followed(call)
}

/// A function of the driver that is given a range, which the assembler did not count.
fn uncounted_driver(call: Call, frame: &Frame) {
    if thread::cells().is_null() {
        session::new_thread(true);
    }
    session::count(call.into());
    session::note(call, &frame.args, false);
    session::entered(call);
}

/// A runtime function leads to the driver. Where the driver's functions come from us, they are
/// counted there, and the runtime's cost nothing; else here, and what they call meanwhile is part
/// of this call. Close to an edge of a window they are counted here in any case: a profiler that
/// is switched between two calls of the program sees each of them whole.
fn runtime(call: Call, thunk: &Thunk, frame: &Frame) -> bool {
    if is_nested(frame) {
        return false;
    }
    if !driver::is_loaded() {
        // This call will load it, and make a context; the driver's function is the one to count.
        return false;
    }
    let counted_below = || fed::is_fed(thunk.real().addr(), call);
    if !tllmprof_session::activity::is_active() || (!session::attends(call) && counted_below()) {
        thunk.make_transparent();
        return false;
    }
    if thread::cells().is_null() {
        session::new_thread(true);
    }
    if !is_the_call(call, frame) {
        return false; // whatever it leads to counts by itself
    }
    session::count(call.into());
    if session::learns() && !counted_below() {
        // Where the driver's function is ours, it notes its kernel, and this one nothing.
        session::note(call, &frame.args, true);
    }
    session::entered(call);
    if watched::are() {
        watched::push_runtime(call);
    }
    // The mark is where the return address of this call lies, and stays so until the call returns.
    thread::set_outer(Outer {
        place: (&raw const frame.return_address).addr(),
        return_address: frame.return_address,
    });
    true
}

/// Whether the runtime's call, by its arguments, is the one of the table's row.
fn is_the_call(call: Call, frame: &Frame) -> bool {
    // An enumeration: the upper half of its register may hold anything.
    !call.info().device_to_host_only || frame.args[3] as u32 == DEVICE_TO_HOST
}
/// Whether the call is nested in the outermost one; takes the mark away if that has been left.
#[cfg(target_arch = "aarch64")] // on x86-64 the assembler finds out itself
pub extern "C" fn is_within_outer(frame: &Frame) -> bool {
    contained(true, || {
        let is_within = is_nested(frame);
        if !is_within {
            thread::leave_outer();
        }
        is_within
    })
}

/// The handler `record` is about to take the time of a call and to call the real function.
#[cfg(target_arch = "x86_64")]
pub extern "C" fn recorded(frame: &Frame) {
    let is_read = contained(false, || {
        read(frame);
        true
    });
    if !is_read {
        frame.stream.set(0);
        frame.work.set(Work::NONE);
    }
}

/// Reads from the arguments of a call that is recorded which stream it is for, and gives that to GPU times.
#[inline]
fn read(frame: &Frame) {
    let (Role::Driver(call) | Role::Runtime(call)) = frame.thunk.role() else {
        return;
    };
    let target = target(call, frame);
    let work = if gpu::is_timing() && !session::is_any_capturing() {
        times(call, frame, target)
    } else {
        Work::NONE
    };
    frame.stream.set(target.map_or(0, |target| target.handle));
    frame.work.set(work);
}

/// Gives GPU times a call that they depend on.
fn times(call: Call, frame: &Frame, target: Option<Target>) -> Work {
    if call.kind().enqueues() {
        return match target.filter(|_| !is_small_copy(call, frame)) {
            None => Work::NONE,
            Some(target) if gpu::before_work(target) => Work::LAST,
            Some(_) => Work::COUNTED,
        };
    }
    if let Kind::Wait(wait) = call.kind() {
        gpu::before_wait(match target {
            Some(target) => Wait::Stream(target),
            None if wait == tllmprof_calls::Wait::Event => Wait::Event,
            None => Wait::All,
        });
    }
    Work::NONE
}

/// What a call destroys must not be used any more. Whether calls are recorded or not.
fn destroys(what: Destroyed, frame: &Frame) {
    let first = frame.args[0];
    let doomed = match (what, frame.thunk.role()) {
        (Destroyed::Stream, _) => Doomed::Stream(first),
        (Destroyed::Context, _) => Doomed::Context(first),
        // The runtime's takes no argument.
        (Destroyed::Primary, Role::Driver(_)) => Doomed::Primary(u8::try_from(first as u32).ok()),
        (Destroyed::Primary, _) => Doomed::Primary(None),
    };
    gpu::before_destroy(doomed, session::is_any_capturing());
}

/// Whether a call copies so little that the events around it would take longer. Programs make many such
/// copies to the device, and some wait after each.
fn is_small_copy(call: Call, frame: &Frame) -> bool {
    const SMALL: usize = 64 << 10;
    let small_by = call.info().small_by;
    small_by.is_some_and(|word| frame.word(word.into()) < SMALL)
}

/// The stream that a call is for; `None` where it names none.
fn target(call: Call, frame: &Frame) -> Option<Target> {
    let library = match frame.thunk.role() {
        Role::Driver(_) => Library::Driver,
        _ => Library::Runtime,
    };
    let handle = match call.stream(library) {
        Stream::None => return None,
        Stream::Word(index) => frame.word(index.into()),
        Stream::Configured(behind) => {
            let configuration = core::ptr::with_exposed_provenance::<u8>(frame.args[0]);
            if configuration.is_null() {
                return None; // the driver refuses it
            }
            // SAFETY: a pointer that is not null is the program's to a launch configuration, which the
            // real function is about to read as well; it has a stream at this offset (`Stream::Configured`).
            unsafe {
                configuration
                    .add(behind.into())
                    .cast::<usize>()
                    .read_unaligned()
            }
        }
    };
    Some(Target {
        handle,
        per_thread: frame.thunk.is_per_thread(),
    })
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_calls::CALLS;

    use super::*;
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

    /// How often the calling thread's calls were counted.
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

    /// Has the process load a driver without functions.
    fn load_driver() {
        open(&library("libcuda.so.1", ""));
    }

    /// A call, and one that it leads to, whose frame lies below its own.
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

            let copy = |direction| {
                before(&made(Role::Runtime(Call::MemcpyDtoH), &[1, 2, 3, direction]).frame)
            };
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
            // SAFETY: a thunk begins with its handler.
            let handler = unsafe { core::ptr::from_ref(thunk).cast::<usize>().read() };
            assert_eq!(handler, us);
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

    /// Arguments of which each says its place.
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
        assert_eq!(made.frame.stream.get(), 101);
        assert!(made.frame.work.get() == Work::NONE);
        destroys(Destroyed::Stream, &made.frame);
    }
}
