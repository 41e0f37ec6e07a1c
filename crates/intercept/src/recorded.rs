//! Calls that are recorded: those to the driver while a window is open, or to a runtime whose driver
//! functions do not come from us.

use tllmprof_calls::{Call, Destroyed, Kind, Library, Stream};

use super::frame::Frame;
use super::thunk::{Role, Thunk};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::gpu;
use tllmprof_recorder::gpu::Doomed;
use tllmprof_recorder::gpu::Target;
use tllmprof_recorder::gpu::Wait;
use tllmprof_session as session;

/// Whether calls are recorded now.
pub fn are() -> bool {
    recorder::is_recording()
}

/// The real function of a call that the handler `record` timed has returned `result`, and the program
/// is to get it.
#[cfg(target_arch = "x86_64")]
pub extern "C" fn returned(frame: &Frame, result: usize) -> usize {
    keep(frame, frame.thunk, result);
    result
}

/// A call that the handler `record` is about to time goes on to its real function. Returns what it is
/// to put into the lowest bit of the call's beginning.
#[cfg(target_arch = "x86_64")]
pub extern "C" fn entered(frame: &Frame) -> u64 {
    (gpu::is_timing() && enters(frame, frame.thunk)).into()
}

/// A call goes on to its real function, by the slow way.
pub fn goes_on(frame: &Frame, thunk: &Thunk) {
    let is_last = gpu::is_timing() && enters(frame, thunk);
    frame
        .since
        .set(recorder::ticks() & !LAST | u64::from(is_last));
}

/// Set in the beginning of a call, which a tick more or less does not matter to, whose work is expected
/// to be the last of its stream for now.
const LAST: u64 = 1;

/// Tells of a call that the GPU's time depends on; whether its work is expected to be the last.
fn enters(frame: &Frame, thunk: &Thunk) -> bool {
    let (Role::Driver(call) | Role::Runtime(call)) = thunk.role() else {
        return false;
    };
    if session::is_any_capturing() {
        return false;
    }
    if call.kind().enqueues() {
        return !is_small_copy(call, frame)
            && target(call, frame, thunk).is_some_and(gpu::before_work);
    }
    if let Kind::Wait(wait) = call.kind() {
        gpu::before_wait(match target(call, frame, thunk) {
            Some(target) => Wait::Stream(target),
            None if wait == tllmprof_calls::Wait::Event => Wait::Event,
            None => Wait::All,
        });
    }
    false
}

/// What a call destroys is not to be used any more. Whether calls are recorded or not.
pub fn destroys(what: Destroyed, frame: &Frame, thunk: &Thunk) {
    let first = frame.args[0];
    let doomed = match (what, thunk.role()) {
        (Destroyed::Stream, _) => Doomed::Stream(first),
        (Destroyed::Context, _) => Doomed::Context(first),
        // The runtime's takes no argument.
        (Destroyed::Primary, Role::Driver(_)) => Doomed::Primary(u8::try_from(first as u32).ok()),
        (Destroyed::Primary, _) => Doomed::Primary(None),
    };
    gpu::before_destroy(doomed, session::is_any_capturing());
}

/// It has returned. Whether it was recorded or not.
pub fn keep(frame: &Frame, thunk: &Thunk, result: usize) {
    let begun = frame.since.get();
    if begun == 0 || !are() {
        return;
    }
    let (Role::Driver(call) | Role::Runtime(call)) = thunk.role() else {
        return;
    };
    // The functions return an enumeration, in the lower half of the register.
    let failed = result & 0xffff_ffff != 0;
    let target = target(call, frame, thunk);
    let what = What::Call {
        row: call as u8,
        capturing: session::is_capturing(),
        stream: match target {
            Some(target) if !failed => target.handle as u64,
            _ => 0,
        },
    };
    recorder::call(begun & !LAST, failed, what);
    if (failed || begun & LAST != 0)
        && call.kind().enqueues()
        && !is_small_copy(call, frame)
        && gpu::is_timing()
        && !session::is_any_capturing()
        && let Some(target) = target
    {
        if failed {
            gpu::refused(target);
        } else {
            gpu::after_last(target);
        }
    }
}

/// Whether a call copies so little that the events around it would take longer. Programs make many such
/// copies to the device, and some wait after each.
fn is_small_copy(call: Call, frame: &Frame) -> bool {
    const SMALL: usize = 64 << 10;
    let small_by = call.info().small_by;
    small_by.is_some_and(|word| frame.word(word.into()) < SMALL)
}

/// The stream that a call is for; `None` where it names none.
fn target(call: Call, frame: &Frame, thunk: &Thunk) -> Option<Target> {
    let library = match thunk.role() {
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
            // SAFETY: the real function reads the configuration, too, before the call or after.
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
        per_thread: thunk.is_per_thread(),
    })
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_calls::CALLS;

    use super::*;
    use crate::frame::made;

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
                let made = made::Call::new(thunk, &words, 0);
                let found = |thunk| target(call, &made.frame, thunk);
                assert_eq!(
                    found(thunk).map(|found| found.handle),
                    expected,
                    "{call} {library:?}"
                );
                assert!(found(thunk).is_none_or(|found| !found.per_thread));
                thunk.set_per_thread();
                assert!(
                    found(thunk).is_none_or(|found| found.per_thread),
                    "{call} {library:?}"
                );
            }
        }
    }

    #[test]
    fn a_launch_without_a_configuration_names_no_stream() {
        let launch = thunk(Role::Driver(Call::LaunchKernelEx));
        let made = made::Call::new(launch, &[0, 101], 0);
        assert!(target(Call::LaunchKernelEx, &made.frame, launch).is_none());
    }

    #[test]
    fn copies_below_64_kib_are_small() {
        for row in CALLS {
            let thunk = thunk(Role::Driver(row.call));
            let mut words = WORDS;
            let mut is_small = |size: usize| {
                words[row.small_by.map_or(0, usize::from)] = size;
                is_small_copy(row.call, &made::Call::new(thunk, &words, 0).frame)
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
    fn without_a_window_nothing_is_kept() {
        let thunk = thunk(Role::Driver(Call::GraphLaunch));
        let made = made::Call::new(thunk, &WORDS, 0);
        assert!(!are());
        goes_on(&made.frame, thunk);
        assert_eq!(
            made.frame.since.get() & LAST,
            0,
            "no work of the GPU is timed"
        );
        assert_ne!(made.frame.since.get(), 0);
        keep(&made.frame, thunk, 0);
        destroys(Destroyed::Stream, &made.frame, thunk);
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(entered(&made.frame), 0);
            assert_eq!(returned(&made.frame, 700), 700);
        }
    }
}
