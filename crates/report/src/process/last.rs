//! Corrects the last iteration of a record if the end of the process cut it off. Records of older versions of the
//! library do not mark such an iteration, so it is marked here. If the record has no steps, one span of time stands for
//! the iterations, and that span is shortened.

use tllmprof_config::WindowList;
use tllmprof_record::{Clock, Ended, Header};

use crate::events::raw::RawIteration;
use crate::events::window::{Window, WindowEdge, pairs};

/// Maximum time in nanoseconds between the closing of the last window and the end of the record, for the conclusion
/// that the end of the process closed the window.
const ONE_EVENT: u64 = 10_000_000;

/// A shortened span keeps its processor time and page faults if its length is at least this many times that of the
/// removed part. Both were counted up to the end of the process, so they are wrong if much was removed.
const MUCH_REMOVED: u64 = 16;

/// Shortens a span of time that stands for iterations, so that it ends with the last CUDA call, if the process ended
/// normally. The work of a process after its last call, such as the exit of an interpreter, is not part of any step. A
/// wait for the GPU is a call, too, so the span includes it. `last_call` is the end of the last call in ticks.
///
/// Does nothing if the last call does not end inside the span. If it ends earlier, the span has no call. If it ends
/// later, the process did not end with the span.
pub(crate) fn end_span_at_call(iterations: &mut [RawIteration], last_call: u64, header: &Header) {
    let Some(span) = iterations.last_mut() else {
        return;
    };
    let (start, end) = (span.span().start, span.span().end);
    if header.ended != Some(Ended::InOrder) || last_call <= start || last_call >= end {
        return;
    }
    span.duration = last_call - start;
    if end - last_call > span.duration / MUCH_REMOVED {
        span.used = None;
    }
}

/// Marks the last iteration as cut off if the end of the process closed its window. Older versions of the library
/// recorded such an iteration as complete, although it may contain seconds of shutdown.
///
/// The end of the process is assumed to have closed the window if the window should have contained more iterations,
/// and the record ends with the window. The iteration is marked only if it is the longest of the record. A shorter
/// iteration may really be complete.
pub(crate) fn mark_cut(
    iterations: &mut [RawIteration],
    edges: &[WindowEdge],
    asked: &str,
    header: &Header,
    clock: &Clock,
) {
    let Some(last) = closed_by_end(edges, asked, header, clock) else {
        return;
    };
    let Some((iteration, others)) = iterations.split_last_mut() else {
        return;
    };
    let longest = others.iter().map(|other| other.duration).max();
    if iteration.n == last.last && longest < Some(iteration.duration) {
        iteration.cut = true;
    }
}

/// Returns the last window, if the end of the process closed it before it had all its iterations; otherwise `None`.
fn closed_by_end(
    edges: &[WindowEdge],
    asked: &str,
    header: &Header,
    clock: &Clock,
) -> Option<Window> {
    if !matches!(header.ended, Some(Ended::InOrder | Ended::AtOnce)) {
        return None;
    }
    let asked = WindowList::parse(asked).ok()?;
    let closed = clock.ns(edges.last()?.ticks);
    let latest = header.anchors.iter().map(|anchor| anchor.ticks).max()?;
    let ends_with_it = clock.ns(latest) <= closed.saturating_add(ONE_EVENT);
    let last = pairs(edges.to_vec()).pop()?;
    let wants_more = !asked.is_steady() && asked.contains(last.last.saturating_add(1));
    (last.closed && wants_more && ends_with_it).then_some(last)
}

#[cfg(test)]
mod tests {
    use tllmprof_record::ClockKind;

    use super::*;
    use crate::events::iteration::Used;

    const SPAN: RawIteration = RawIteration {
        start: 1000,
        duration: 6000,
        n: 3,
        thread: 1,
        cut: false,
        idle: 0,
        idle_calls: 0,
        excluded: false,
        used: None,
    };

    /// Corrects [`SPAN`] as for a process that ended in the way `ended` and whose last call ended at `last_call`. Returns
    /// the end of the corrected span, and true if its processor time is still known.
    fn shortened(last_call: u64, ended: Ended) -> (u64, bool) {
        let mut header = Header::new(1, ClockKind::Monotonic, Vec::new());
        header.ended = Some(ended);
        let used = Some(Used::default());
        let mut iterations = [RawIteration { used, ..SPAN }];
        end_span_at_call(&mut iterations, last_call, &header);
        let [span] = iterations;
        (span.span().end, span.used.is_some())
    }

    #[test]
    fn a_span_ends_with_the_last_call() {
        assert_eq!(shortened(4500, Ended::InOrder), (4500, false));
        assert_eq!(shortened(6900, Ended::InOrder), (6900, true));
    }

    #[test]
    fn a_span_stays_if_its_process_did_not_end_it() {
        // The process made no call in the span, or made one after it.
        assert_eq!(shortened(0, Ended::InOrder), (7000, true));
        assert_eq!(shortened(900, Ended::InOrder), (7000, true));
        assert_eq!(shortened(7100, Ended::InOrder), (7000, true));
        assert_eq!(shortened(4500, Ended::AtOnce), (7000, true));
        assert_eq!(shortened(4500, Ended::Not), (7000, true));
    }
}
