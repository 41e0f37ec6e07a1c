//! The purposes for which this process needs the driver's calls, and the handlers that serve these purposes.

use tllmprof_calls::{Call, CallPurpose, Direction, Wait};
use tllmprof_recorder as recorder;
use tllmprof_scopes as scopes;
use tllmprof_session as session;

use crate::handlers::{Handler, Noting, handlers};
use crate::watched;

/// The purposes for which this process needs the driver's calls.
#[derive(Clone, Copy)]
pub(super) struct CallUses {
    /// True if NVTX ranges are emitted for the driver's calls.
    ranges: bool,
    /// True if the driver's calls are recorded.
    recorded: bool,
    /// True if calls that wait must be timed outside windows (recorded intervals), too.
    timed: bool,
    /// True if the learner, which finds iterations when no rule is set, must be notified of the
    /// calls.
    learnt: bool,
    /// True if the library must see calls that copy, instantiate or destroy graphs.
    graphs: bool,
    /// True if the library must note the nodes that launches and copies add to a graph during a stream capture.
    nodes: bool,
}

impl CallUses {
    /// Returns the purposes for which the driver's calls are needed now.
    pub(crate) fn now() -> Self {
        Self {
            ranges: watched::are(),
            recorded: recorder::is_keeping(),
            timed: recorder::watch::is_watching(),
            learnt: session::learns(),
            graphs: scopes::are_on(),
            nodes: scopes::are_noting(),
        }
    }

    /// Returns the purposes that may occur during the life of the process.
    pub(crate) fn ever() -> Self {
        Self {
            recorded: recorder::is_wanted(),
            nodes: scopes::are_on(),
            ..Self::now()
        }
    }

    /// Returns the handler for the thunks (descriptions) of the driver's functions for `call`.
    pub(crate) fn handler(self, call: Call) -> Handler {
        if call.kind().queries() {
            return handlers().query;
        }
        if self.ranges {
            return handlers().slow;
        }
        let noting = self.learnt.then(|| noting(call)).flatten();
        let [plain, recording] = noting.unwrap_or([handlers().count, handlers().record]);
        if self.is_timed(call) {
            recording
        } else {
            plain
        }
    }

    /// Returns true if the library must see `call` return.
    fn is_timed(self, call: Call) -> bool {
        let kind = call.kind();
        self.recorded
            || self.timed && kind.waits()
            || self.graphs && matches!(kind, CallPurpose::Graph(_))
            || self.nodes && kind.makes_node()
    }

    /// Returns true if `call` only needs to be counted.
    pub(crate) fn is_counted_only(self, call: Call) -> bool {
        let is_examined = self.ranges || self.is_timed(call) || call.kind().queries();
        !(is_examined || self.learnt && noting(call).is_some())
    }
}

/// Returns the two handlers that write `call` into the thread's trail (its recent calls, for the learner): one that
/// otherwise only counts the call, and one that also sees it return, to record it. Returns `None` if the learner does
/// not need the call.
fn noting(call: Call) -> Option<Noting> {
    Some(match call.kind() {
        CallPurpose::KernelLaunch { handle: 0 } => handlers().first_argument,
        CallPurpose::KernelLaunch { .. } => handlers().second_argument,
        CallPurpose::GraphLaunch => handlers().graph,
        CallPurpose::AsyncCopy(Direction::ToHost) => handlers().copy_to_host,
        CallPurpose::AsyncCopy(Direction::ToDevice) => handlers().copy_to_device,
        CallPurpose::Wait(Wait::Stream) => handlers().stream_wait,
        CallPurpose::Wait(Wait::Event) => handlers().event_wait,
        CallPurpose::Wait(Wait::Context) => handlers().context_wait,
        CallPurpose::Wait(Wait::CopyToHost) => handlers().blocking_copy,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tllmprof_calls::CALLS;

    use super::*;

    const NONE: CallUses = CallUses {
        ranges: false,
        recorded: false,
        timed: false,
        learnt: false,
        graphs: false,
        nodes: false,
    };

    #[test]
    fn a_query_always_has_its_own_handler() {
        for row in CALLS.iter().filter(|row| row.kind.queries()) {
            let ranges = CallUses {
                ranges: true,
                ..NONE
            };
            for uses in [NONE, ranges] {
                let handler = uses.handler(row.call) as usize;
                assert_eq!(handler, handlers().query as usize, "{}", row.call);
                assert!(!uses.is_counted_only(row.call), "{}", row.call);
            }
        }
    }

    #[test]
    fn a_handler_does_what_is_wanted_and_no_more() {
        for row in CALLS.iter().filter(|row| !row.kind.queries()) {
            let of = |wanted: CallUses| wanted.handler(row.call) as usize;
            let both = |wanted: CallUses| {
                let recorded = true;
                [of(wanted), of(CallUses { recorded, ..wanted })]
            };
            let learnt = CallUses {
                learnt: true,
                ..NONE
            };
            let plain = [handlers().count, handlers().record].map(|handler| handler as usize);
            assert_eq!(both(NONE), plain, "{}", row.call);
            // The learner (which finds iterations) needs every call that a step rule can name, except copies within
            // devices.
            let is_noted =
                row.kind.counts() && row.kind != CallPurpose::AsyncCopy(Direction::Other);
            assert_eq!(noting(row.call).is_some(), is_noted, "{}", row.call);
            let noted = noting(row.call).map(|both| both.map(|handler| handler as usize));
            assert_eq!(both(learnt), noted.unwrap_or(plain), "{}", row.call);
            let ranges = CallUses {
                ranges: true,
                ..learnt
            };
            assert_eq!(both(ranges), [handlers().slow as usize; 2], "{}", row.call);

            // If only the durations of waits are watched, calls that wait need the handler `record`, and other calls do
            // not.
            let timed = CallUses {
                timed: true,
                ..NONE
            };
            let waits = usize::from(row.kind.waits());
            assert_eq!(both(timed), [plain[waits], plain[1]], "{}", row.call);
            assert_eq!(timed.is_counted_only(row.call), waits == 0, "{}", row.call);

            // If GPU work is attributed to scopes, the library must see calls that change graphs return. During a
            // stream capture, it must see launches return, too.
            let graphs = CallUses {
                graphs: true,
                ..NONE
            };
            let nodes = CallUses {
                nodes: true,
                ..graphs
            };
            let is_graph = usize::from(matches!(row.kind, CallPurpose::Graph(_)));
            let is_node = usize::from(row.kind.makes_node());
            assert_eq!(of(graphs), plain[is_graph], "{}", row.call);
            assert_eq!(of(nodes), plain[is_graph + is_node], "{}", row.call);

            let counts = |wanted: CallUses| wanted.is_counted_only(row.call);
            assert!(counts(NONE), "{}", row.call);
            assert_eq!(counts(learnt), !is_noted, "{}", row.call);
            assert!(
                !counts(CallUses {
                    recorded: true,
                    ..NONE
                }) && !counts(ranges),
                "{}",
                row.call
            );
        }
    }

    #[test]
    fn kinds_that_differ_have_handlers_of_their_own() {
        let mut known: Vec<(CallPurpose, [usize; 2])> = Vec::new();
        for row in CALLS {
            let Some(both) = noting(row.call) else {
                continue;
            };
            let both = both.map(|handler| handler as usize);
            assert_ne!(both[0], both[1], "{}: one records", row.call);
            match known.iter().find(|(kind, _)| *kind == row.kind) {
                Some((_, same)) => assert_eq!(both, *same, "{}", row.call),
                None => {
                    assert!(
                        known.iter().all(|(_, other)| *other != both),
                        "{}",
                        row.call
                    );
                    known.push((row.kind, both));
                }
            }
        }
        assert!(known.len() >= 8, "{known:?}");
    }
}
