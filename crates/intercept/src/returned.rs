//! Code that runs after the hooked function of an intercepted call has returned: it records the call, and notifies the
//! session (the part of the library that opens and closes windows) if an iteration may end with the call.

use tllmprof_calls::{CallPurpose, NcclCall};

use super::followed::{is_followed, is_nested};
use super::frame::{CallFrame, TimingRole};
use super::thunk::Role;
use super::{collectives, communicators, proc_address, scoped, watched};
use tllmprof_capture::marks;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::{self, Inside};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::gpu::{self, StreamArgument};
use tllmprof_recorder::watch::{self, Cause};
use tllmprof_scopes as scopes;
use tllmprof_session as session;

/// Called by the handler `slow` (assembly code) after the hooked function itself has returned `result`.
pub(crate) extern "C" fn after(frame: &CallFrame, result: usize) {
    contained((), || came_back(frame, result));
}

fn came_back(frame: &CallFrame, result: usize) {
    #[cfg(test)]
    crate::made::panic_if_asked();
    let _errno = SavedErrno::new();
    let _inside = Inside::enter();
    let thunk = frame.thunk;
    // The result of the call is an enumeration, in the lower half of the register; 0 means success.
    let succeeded = result & 0xffff_ffff == 0;
    records(frame, result);
    match thunk.role() {
        Role::ProcAddress if succeeded => proc_address::handed_out(frame),
        Role::Nccl(NcclCall::Split) => communicators::split(frame, succeeded),
        Role::Nccl(NcclCall::AsyncError) if succeeded => communicators::is_asked_about(frame),
        // A query that failed gives no information. A query is not a collective, so its frame holds no number of an
        // open call.
        Role::ProcAddress | Role::Nccl(NcclCall::AsyncError) => {}
        Role::Nccl(_) => collectives::returns(frame),
        Role::Cupti(call) => tllmprof_capture::cupti_was_called(call, succeeded),
        Role::Driver(call) => {
            if watched::are() {
                marks::pop();
            }
            if is_followed(call) && !is_nested(frame) {
                session::returned(call, frame.args[0], succeeded);
            }
        }
        Role::Runtime(call) | Role::Front(call) => {
            if watched::are() {
                marks::pop();
            }
            thread::leave_outer();
            if is_followed(call) {
                session::returned(call, frame.args[0], succeeded);
            }
        }
    }
}

/// Called by the handler `record` (assembly code) after the hooked function itself has returned `result` at time
/// `until`, in ticks. Returns the value that the program gets. The code is short and makes only a tail call, so that it
/// needs few cache lines and saves no register.
// SAFETY: the attribute only names a section, which keeps together the code that runs on each recorded call.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn recorded(frame: &CallFrame, result: usize, until: u64) -> usize {
    // No panic: this only compares and stores numbers. `recorded_with_care` catches the panics of the other code.
    match is_recorded_at_once(frame, result, until) {
        true => result,
        false => recorded_with_care(frame, result, until),
    }
}

#[cold]
#[inline(never)]
#[cfg(target_arch = "x86_64")]
extern "C" fn recorded_with_care(frame: &CallFrame, result: usize, until: u64) -> usize {
    contained((), || record(frame, result, until));
    result
}

/// Records a call that has just returned, if the call must be recorded.
fn records(frame: &CallFrame, result: usize) {
    let until = match frame.since.get() {
        0 => 0,
        _ => recorder::ticks(),
    };
    if until == 0 || !is_recorded_at_once(frame, result, until) {
        record(frame, result, until);
    }
}

/// Writes a call into the record and returns true, if the call has succeeded and no other part of the library needs to
/// know that it has ended. This is so for most calls. Otherwise does nothing and returns false.
#[inline(always)]
fn is_recorded_at_once(frame: &CallFrame, result: usize, until: u64) -> bool {
    // The result of the call is an enumeration, in the lower half of the register; 0 means success.
    if result as u32 != 0 || !frame.work.get().is_recorded_alone() || session::is_any_capturing() {
        return false;
    }
    let what = What::Call {
        row: frame.thunk.row(),
        capturing: false,
        stream: frame.stream() as u64,
    };
    recorder::call_at_once(frame.since.get(), until, what)
}

/// Writes a call into the record, if it must be recorded. Also notifies the parts of the library that need to know
/// when the call ends: those for scopes, watched durations, waits and GPU times.
#[cold]
fn record(frame: &CallFrame, result: usize, until: u64) {
    let since = frame.since.get();
    // The result of the call is an enumeration, in the lower half of the register; 0 means success.
    let failed = result as u32 != 0;
    if scopes::are_on() {
        scoped::returns(frame, !failed);
    }
    let (Role::Driver(call) | Role::Runtime(call) | Role::Front(call)) = frame.thunk.role() else {
        return;
    };
    if since == 0 {
        return;
    }
    if call.kind().waits() {
        watch::add(Cause::Wait, until.saturating_sub(since));
    }
    if !recorder::is_keeping() {
        return;
    }
    let stream = match failed {
        true => 0,
        false => frame.stream() as u64,
    };
    let what = What::Call {
        row: call as u8,
        capturing: session::is_capturing(),
        stream,
    };
    recorder::call(since, until, failed, what);
    if matches!(call.kind(), CallPurpose::Wait(_)) {
        recorder::wait_ends();
    }
    let work = frame.work.get();
    if work.is_over() || failed && work == TimingRole::COUNTED {
        work_is_over(frame, failed, since, until);
    }
}

/// Reports the end of a call to the measurement of GPU times. The call is a wait after which the stream's earlier work
/// has ended, a call that is expected to enqueue the stream's last work in this iteration, or a call that enqueues work
/// but has failed.
#[cold]
fn work_is_over(frame: &CallFrame, failed: bool, since: u64, until: u64) {
    if !gpu::is_timing() || session::is_any_capturing() {
        return;
    }
    let target = StreamArgument {
        handle: frame.stream(),
        per_thread: frame.thunk.is_per_thread(),
    };
    match frame.work.get() {
        // A failed wait does not show whether the GPU's work has ended, so nothing is reported here. The next
        // successful wait reports that the work has ended.
        TimingRole::WAITED_FOR if failed => {}
        TimingRole::WAITED_FOR => gpu::after_wait(target, since, until),
        _ if failed => gpu::refused(target),
        _ => gpu::after_last(target),
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_calls::Call;
    use tllmprof_platform::function;
    use tllmprof_recorder::ring::{self, Collective, Operation};

    use super::*;
    use crate::frame::made;
    use crate::made::{alone, record_of, recorded as record_by};
    use crate::thunk::Thunk;

    const WORDS: [usize; 9] = [100, 101, 102, 103, 104, 105, 106, 107, 108];

    #[test]
    fn without_a_window_nothing_is_kept() {
        let thunk = Thunk::made(core::ptr::null_mut(), Role::Driver(Call::GraphLaunch));
        let made = made::Call::new(thunk, &WORDS, 0);
        made.frame.since.set(5);
        assert!(!recorder::is_recording());
        record(&made.frame, 0, 9);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(recorded(&made.frame, 700, 9), 700);
    }

    #[test]
    fn a_query_of_a_communicator_that_failed_ends_no_collective() {
        let path = record_of("query");
        alone(&[("TLLMPROF_RING", path.as_str())], || {
            let settings = session::activity::settings().unwrap();
            recorder::start(settings);
            recorder::ring::begin(settings);
            let operation = Operation {
                collective: Collective::AllReduce,
                count: 300,
                data_type: 9,
                peer: None,
            };
            let member = || recorder::member(communicators::holds(0x10));
            let open = ring::call_begins(operation, 0x10, 0x70, false, member).unwrap();
            // The frame of the query happens to contain the number of the open call.
            let thunk = Thunk::made(core::ptr::null_mut(), Role::Nccl(NcclCall::AsyncError));
            let query = made::Call::new(thunk, &WORDS, 0);
            query.frame.other_stream.set(open.number());
            after(&query.frame, 3);
            let path = std::env::var_os("TLLMPROF_RING").unwrap();
            let ring = tllmprof_record::Ring::read(&std::fs::read(path).unwrap()).unwrap();
            assert!(ring.collectives.iter().any(|one| one.end_ns.is_none()));
        });
    }

    /// Simulates a launch function of the driver. Returns its first argument.
    extern "C" fn launch(graph: usize, _: usize) -> usize {
        graph
    }

    #[test]
    fn a_recorded_call_has_the_stream_that_was_read_when_it_was_entered() {
        let path = record_of("streams");
        let variables = [
            ("TLLMPROF_START_STOP", "0-9"),
            ("TLLMPROF_TRACE", path.as_str()),
        ];
        alone(&variables, || {
            type Launch = extern "C" fn(usize, usize) -> usize;
            let contents = record_by(|| {
                let real = launch as Launch as *mut _;
                let thunk = Thunk::for_function(real, Role::Driver(Call::GraphLaunch)).unwrap();
                // SAFETY: the stub leads to `launch`, which has this type.
                let stub: Option<Launch> = unsafe { function::at(thunk.stub()) };
                let stub = stub.unwrap();
                // A thread's first call takes the slow path. The handler `record` handles its later calls.
                for (result, stream) in [(0, 0xa0), (0, 0xb0), (700, 0xc0), (0, 0)] {
                    assert_eq!(stub(result, stream), result);
                }
            });
            let calls = contents
                .events
                .iter()
                .filter_map(|(_, event)| match event.what {
                    What::Call { row, stream, .. } => Some((row, stream, event.failed)),
                    _ => None,
                });
            let row = Call::GraphLaunch as u8;
            let expected = [
                (row, 0xa0, false),
                (row, 0xb0, false),
                (row, 0, true),
                (row, 0, false),
            ];
            assert_eq!(calls.collect::<Vec<_>>(), expected);
        });
    }
}
