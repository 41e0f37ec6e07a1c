//! Code that runs before the real function of an intercepted call. The handler `slow` calls [`before`], which counts
//! the call if the assembly code has not counted it, and decides whether the library must see the call return. For the
//! handler `record`, this module only prepares the recording of the call.
//!
//! Most recorded calls need no examination before they run, because [`super::returned`] finds their arguments in the
//! frame. Some arguments, and the states of some streams, must be read before the call, for example for GPU times. This
//! module reads them only while a part of the library needs them ([`recorder::LOOKS`]).

#[cfg(test)]
mod tests;

use core::ffi::c_int;

use tllmprof_calls::{Call, CallPurpose, Destroyed, Library, Stream};

use super::followed::{is_followed, is_nested};
use super::frame::{CallFrame, TimingRole};
use super::gpu_times::{is_timing, waited_for};
use super::thunk::{Does, Role, Thunk};
use super::{collectives, communicators, polls, scoped, watched};
use tllmprof_platform::driver;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::{self, Inside, Outer};
use tllmprof_recorder as recorder;
use tllmprof_recorder::gpu::{self, Doomed, StreamArgument, Wait};
use tllmprof_scopes as scopes;
use tllmprof_session as session;

/// Value of `cudaMemcpyDeviceToHost`.
const DEVICE_TO_HOST: u32 = 2;

/// Entry point of the handler `slow`. Returns 1 if the handler must call the real function and then return to this
/// library, or 0 if it must jump to the real function. `frame` is the saved state of the call.
pub(crate) extern "C" fn before(frame: &CallFrame) -> c_int {
    contained(false, || comes_back(frame)).into()
}

fn comes_back(frame: &CallFrame) -> bool {
    #[cfg(test)]
    crate::made::panic_if_asked();
    let _errno = SavedErrno::new();
    let inside = Inside::enter();
    let thunk = frame.thunk;
    let role = thunk.role();
    frame.since.set(0);
    let follow = match role {
        Role::ProcAddress => true,
        // Do nothing: the call was made by this library's own code, or by a signal handler or an allocator of the
        // program that runs within that code. This library's code may hold a lock.
        _ if inside.is_none() => false,
        Role::Cupti(call) => {
            tllmprof_capture::cupti_is_called(call);
            true
        }
        Role::Nccl(call) => match collectives::CollectiveArguments::find(call) {
            Some(arguments) => collectives::enters(&arguments, frame),
            None => communicators::made(call, frame),
        },
        Role::Driver(call) if watched::are() => {
            if !is_nested(frame) {
                uncounted_driver(call, frame);
            }
            watched::push_driver(call);
            true
        }
        Role::Driver(_) if recorder::is_wanted() && is_nested(frame) => is_the_programs(),
        Role::Driver(call) => {
            driver(call, &frame.args) || recorder::is_keeping() || scoped::is_followed(call)
        }
        Role::Runtime(call) | Role::Front(call) if call.kind().queries() => {
            polls::choose_handler(thunk, call);
            false
        }
        Role::Runtime(call) | Role::Front(call) => leads_to_driver(call, thunk, frame),
    };
    if let Role::Driver(call) | Role::Runtime(call) | Role::Front(call) = role
        && let CallPurpose::Destroys(what) = call.kind()
        && inside.is_some()
    {
        destroys(what, frame);
    }
    if follow && scopes::are_on() {
        scoped::enters(frame);
    }
    if follow && (recorder::is_keeping() || is_watched(role)) && is_recorded(thunk) {
        read(frame);
        frame.since.set(recorder::ticks());
    }
    if inside.is_some() {
        session::goes_on();
    }
    follow
}

/// Returns true if the program made the outer call (the thread's outermost intercepted call), and not this library.
fn is_the_programs() -> bool {
    thread::outer().return_address != 0
}

/// Returns true if the duration of a call with this role (its library and kind of call) is also needed outside windows
/// (recorded intervals).
fn is_watched(role: Role) -> bool {
    let (Role::Driver(call) | Role::Runtime(call) | Role::Front(call)) = role else {
        return false;
    };
    recorder::watch::is_watching() && call.kind().waits()
}

/// Returns true if calls of the function that `thunk` describes are recorded. Driver functions are recorded. A CUDA
/// runtime's function is recorded only if the driver functions that it calls do not reach this library.
fn is_recorded(thunk: &Thunk) -> bool {
    match thunk.role() {
        Role::Driver(_) => true,
        Role::Runtime(call) | Role::Front(call) => !thunk.is_fed(call),
        Role::ProcAddress | Role::Cupti(_) | Role::Nccl(_) => false,
    }
}

fn driver(call: Call, args: &[usize]) -> bool {
    // If the thread has cells (call counters), the assembly code has counted the call already.
    if thread::cells().is_null() {
        session::new_thread(true);
        session::count(call.into());
        session::note(call, args, false);
    }
    session::entered(call);
    is_followed(call)
}

/// Counts a driver call while NVTX ranges are emitted for each call. All calls then take the slow path, so the
/// assembly code has not counted this call.
fn uncounted_driver(call: Call, frame: &CallFrame) {
    if thread::cells().is_null() {
        session::new_thread(true);
    }
    session::count(call.into());
    session::note(call, &frame.args, false);
    session::entered(call);
}

/// Decides whether to count a call of a function that calls the driver: a function of a CUDA runtime, or a front (a
/// function of another library with a driver function's name). If the driver calls of the function's library reach this
/// library, the driver calls are counted, and this call is passed through at no cost. Otherwise this call is counted,
/// and the driver calls that it makes are part of it. Returns true if the library must see the call return.
///
/// Close to the start or end of a window (a recorded interval), this call is always counted: a profiler that is
/// switched on or off between two calls of the program must see each of them as a whole.
fn leads_to_driver(call: Call, thunk: &Thunk, frame: &CallFrame) -> bool {
    if is_nested(frame) {
        return false;
    }
    if !driver::is_loaded() {
        // The driver is not loaded yet. This runtime call will load it and create a context, so
        // only the driver call that it makes is counted.
        return false;
    }
    let counted_below = || thunk.is_fed(call);
    let is_runtimes = matches!(thunk.role(), Role::Runtime(_));
    if !tllmprof_session::activity::is_active() || (!session::attends(call) && counted_below()) {
        thunk.make_transparent();
        return false;
    }
    if thread::cells().is_null() {
        session::new_thread(true);
    }
    if is_runtimes && !is_the_call(call, frame) {
        return false; // the driver calls that it makes are counted separately
    }
    session::count(call.into());
    if session::learns() && !counted_below() {
        // Note the call for the learner (which finds iterations). If the driver call that this call makes reaches this
        // library, do nothing here: the driver call is noted when it arrives.
        session::note(call, &frame.args, is_runtimes);
    }
    session::entered(call);
    if watched::are() {
        if is_runtimes {
            watched::push_runtime(call);
        } else {
            watched::push_driver(call);
        }
    }
    // The outer call is identified by the stack address that holds its return address. This address does not change
    // until the call returns.
    thread::set_outer(Outer {
        place: (&raw const frame.return_address).addr(),
        return_address: frame.return_address,
    });
    true
}

/// Returns true if the call does what its row in the table of calls describes. Some rows describe only copies from
/// the device to the host, but a runtime function such as `cudaMemcpy` may copy in any direction.
fn is_the_call(call: Call, frame: &CallFrame) -> bool {
    // The direction is a 32-bit enumeration. The upper half of its register is undefined, so only the lower half is
    // compared.
    !call.info().device_to_host_only || frame.args[3] as u32 == DEVICE_TO_HOST
}
/// Returns true if the call is nested in the thread's outermost intercepted call. If that call was left without a
/// return (by `longjmp` or an exception), clears the thread's outermost call and returns false.
#[cfg(target_arch = "aarch64")] // on x86-64 the assembly code checks this itself
pub(crate) extern "C" fn is_within_outer(frame: &CallFrame) -> bool {
    contained(true, || {
        let is_within = is_nested(frame);
        if !is_within {
            thread::leave_outer();
        }
        is_within
    })
}

/// Called before the real function of a call that the handler `record` records. Notes launches, graph nodes and
/// destroyed graphs for the scopes (to which GPU work is attributed), and stores the call's role in the measurement of
/// GPU times. The handler `record` calls this function only if one of these steps is needed, just before it reads the
/// time and calls the real function.
// SAFETY: the attribute only names a section, which keeps together the code that runs on each recorded call.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn recorded(frame: &CallFrame) {
    let is_read = contained(false, || {
        if scopes::are_on() {
            scoped::enters(frame);
        }
        read(frame);
        true
    });
    if !is_read {
        frame.other_stream.set(0);
        frame.work.set(TimingRole::NONE);
    }
}

/// Reports a recorded call to the measurement of GPU times. If the call is a wait for the GPU, also notes that a wait
/// begins ([`wait_begins`]).
#[inline(always)]
fn read(frame: &CallFrame) {
    let thunk = frame.thunk;
    let Some(does) = thunk.does() else {
        return read_other(frame);
    };
    let stream = thunk.stream_word();
    let target = StreamArgument {
        handle: stream.map_or(0, |word| frame.word(word)),
        per_thread: thunk.is_per_thread(),
    };
    if does.waits() {
        let is_over = is_timing() && waits(does, target);
        frame.work.set(TimingRole::of_wait(is_over, wait_begins()));
        return;
    }
    let is_small = || {
        let bytes = thunk.bytes_word();
        bytes.is_some_and(|word| is_small(word, frame))
    };
    let work = if is_timing() && stream.is_some() && !is_small() {
        enqueues(target)
    } else {
        TimingRole::NONE
    };
    frame.work.set(work);
}

/// Reports a wait to the measurement of GPU times. Returns true if the measurement must be notified when the wait
/// returns, because measured work has ended by then. The code uses no `match`, because the jump table would be one more
/// cache line that a call depends on.
#[inline(always)]
fn waits(does: Does, target: StreamArgument) -> bool {
    if does == Does::WaitsForStream {
        gpu::before_wait(Wait::Stream(target))
    } else {
        gpu::before_wait(if does == Does::WaitsForEvent {
            Wait::Event
        } else {
            Wait::All
        })
    }
}

/// Does the same as [`read`] for a call that is not [`Simple`](super::thunk::Simple). The thunk (which describes the
/// real function) does not contain the positions of such a call's stream and size, so they are looked up in the table
/// of calls.
#[inline(never)]
fn read_other(frame: &CallFrame) {
    let (Role::Driver(call) | Role::Runtime(call) | Role::Front(call)) = frame.thunk.role() else {
        return;
    };
    let target = target(call, frame);
    frame
        .other_stream
        .set(target.map_or(0, |target| target.handle));
    if call.kind() == CallPurpose::HostFunction
        && recorder::is_recording()
        && !session::is_any_capturing()
    {
        recorder::host_functions::note(frame.args[1]);
    }
    let is_timing = is_timing();
    frame.work.set(match call.kind() {
        kind if kind.enqueues() => {
            match target.filter(|_| is_timing && !is_small_copy(call, frame)) {
                Some(target) => enqueues(target),
                None => TimingRole::NONE,
            }
        }
        CallPurpose::Wait(wait) => {
            let is_over = is_timing && gpu::before_wait(waited_for(wait, target));
            TimingRole::of_wait(is_over, wait_begins())
        }
        _ => TimingRole::SEEN,
    });
}

/// Called before a call waits for the GPU. Notes in the recorder that a wait begins. Returns true if the library must
/// see the call return.
#[inline(always)]
fn wait_begins() -> bool {
    let is_asked = recorder::is_keeping() && recorder::wait_begins();
    is_asked || recorder::watch::is_watching()
}

/// Reports to the measurement of GPU times that a call enqueues work. Returns the call's role in this measurement.
#[inline(always)]
fn enqueues(target: StreamArgument) -> TimingRole {
    if gpu::before_work(target) {
        TimingRole::LAST
    } else {
        TimingRole::COUNTED
    }
}

/// Reports the stream or context that a call is about to destroy, so that the library stops using it. This is done
/// even while no calls are recorded.
fn destroys(what: Destroyed, frame: &CallFrame) {
    let first = frame.args[0];
    let doomed = match (what, frame.thunk.role()) {
        (Destroyed::Stream, _) => Doomed::Stream(first),
        (Destroyed::Context, _) => Doomed::Context(first),
        // The driver's function has the device as its argument. The runtime's function has none: it resets the current
        // device.
        (Destroyed::Primary, Role::Driver(_) | Role::Front(_)) => {
            Doomed::Primary(u8::try_from(first as u32).ok())
        }
        (Destroyed::Primary, _) => Doomed::Primary(None),
    };
    gpu::before_destroy(doomed, session::is_any_capturing());
}

/// Returns true if a call copies so few bytes that CUDA events before and after the copy would take longer than the
/// copy itself. Programs make many small copies to the device, so their GPU times are not measured.
fn is_small_copy(call: Call, frame: &CallFrame) -> bool {
    let small_by = call.info().small_by;
    small_by.is_some_and(|word| is_small(word.into(), frame))
}

/// Returns true if argument `word`, the number of bytes to copy, is small.
#[inline(always)]
fn is_small(word: usize, frame: &CallFrame) -> bool {
    const SMALL_COPY_BYTES: usize = 64 << 10;
    frame.word(word) < SMALL_COPY_BYTES
}

/// Returns the stream that a call names in its arguments, or `None` if it names none.
fn target(call: Call, frame: &CallFrame) -> Option<StreamArgument> {
    let library = match frame.thunk.role() {
        Role::Driver(_) | Role::Front(_) => Library::Driver,
        _ => Library::Runtime,
    };
    let handle = match call.stream(library) {
        Stream::None => return None,
        Stream::Word(index) => frame.word(index.into()),
        Stream::Configured(behind) => {
            let configuration = core::ptr::with_exposed_provenance::<u8>(frame.args[0]);
            if configuration.is_null() {
                return None; // the driver rejects a null configuration
            }
            // SAFETY: the pointer is not null. The program passed it for a launch configuration, which the real
            // function is about to read, too. The configuration has a stream at this offset (`Stream::Configured`).
            unsafe {
                configuration
                    .add(behind.into())
                    .cast::<usize>()
                    .read_unaligned()
            }
        }
    };
    Some(StreamArgument {
        handle,
        per_thread: frame.thunk.is_per_thread(),
    })
}
