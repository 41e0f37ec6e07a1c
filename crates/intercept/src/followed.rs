//! Conditions under which the library must see a call return.

use tllmprof_calls::{Call, CallPurpose, Direction};
use tllmprof_platform::thread;
use tllmprof_session as session;

use super::frame::CallFrame;

/// Returns true if the library must see a call of this kind return. This applies to waits, and to calls that begin or
/// end a stream capture. While the learner (which finds iterations) runs, it also applies to copies to the host.
pub(crate) fn is_followed(call: Call) -> bool {
    match call.kind() {
        CallPurpose::AsyncCopy(Direction::ToHost) => session::learns(),
        kind => kind.waits() || kind.captures(),
    }
}

/// Returns true if this call is made during another intercepted call of the same thread.
pub(crate) fn is_nested(frame: &CallFrame) -> bool {
    frame.is_within(thread::outer())
}

#[cfg(test)]
mod tests {
    use tllmprof_calls::CALLS;

    use super::*;
    use crate::made::alone;

    #[test]
    fn copies_to_the_host_are_followed_where_they_are_learnt_from() {
        alone(&[("TLLMPROF_STEP", "auto")], || {
            for row in CALLS {
                let kind = row.kind;
                let is_copy = kind == CallPurpose::AsyncCopy(Direction::ToHost);
                let expected = is_copy || kind.waits() || kind.captures();
                assert_eq!(is_followed(row.call), expected, "{}", row.call);
            }
        });
    }
}
