//! Functions for the measurement of GPU times (the durations of GPU work): whether the measurement is on, and which
//! work a call that waits for the GPU waits for.

use tllmprof_recorder::gpu::{self, StreamArgument, Wait};
use tllmprof_session as session;

/// Returns true if GPU times are being measured and no stream is being captured.
#[inline(always)]
pub(crate) fn is_timing() -> bool {
    gpu::is_timing() && !session::is_any_capturing()
}

/// Returns the work that a wait waits for, in the form that the measurement of GPU times uses.
pub(crate) fn waited_for(wait: tllmprof_calls::Wait, target: Option<StreamArgument>) -> Wait {
    match target {
        Some(target) => Wait::Stream(target),
        None if wait == tllmprof_calls::Wait::Event => Wait::Event,
        None => Wait::All,
    }
}
