//! Detection of a last iteration that was cut off by the end of the process. The detection is needed
//! for records that do not mark such an iteration.

use tllmprof_config::WindowList;
use tllmprof_record::{Clock, Ended, Header};

use crate::events::raw::RawIteration;
use crate::events::window::{Window, WindowEdge, pairs};

/// Maximum time in nanoseconds between the closing of the last window and the end of the record, for the conclusion
/// that the end of the process closed the window.
const ONE_EVENT: u64 = 10_000_000;

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
