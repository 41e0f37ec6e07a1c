//! Lateness of each rank at the collectives of each iteration, as columns of numbers in the page's data.

use tllmprof_report::{Arrivals, Change};

use crate::columns::Columns;

/// Returns the columns, in this order:
///
/// - the number of iterations, and the number of processes;
/// - the numbers of the iterations;
/// - for each iteration, the index of the process for which the other processes waited, or the number of processes if
///   there was none;
/// - for each iteration, the main cause of that process's lateness as text; empty if there is no such process or
///   cause;
/// - for each iteration and process, the lateness relative to the median rank in microseconds plus 1, or 0 if the
///   lateness is not known.
pub(crate) fn columns(arrivals: &Arrivals) -> Columns {
    let (steps, ranks) = (&arrivals.steps, arrivals.ranks.len());
    let mut columns = Columns::default();
    columns.number(steps.len() as u64);
    columns.number(ranks as u64);
    columns.differences(steps.iter().map(|step| u64::from(step.n)));
    let last = steps
        .iter()
        .map(|step| step.last.map_or(ranks, |last| last.0));
    columns.column(last.map(|place| place as u64));
    for step in steps {
        let causes = step.causes();
        let first = causes.first().filter(|_| step.last.is_some());
        columns.text(&first.map_or_else(String::new, |cause| {
            let detail = cause.detail.as_ref();
            let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
            format!("{} {}{detail}", Change(cause.more), cause.cause)
        }));
    }
    for at in 0..steps.len() {
        let late = arrivals.late(at);
        columns.column(late.map(|late| late.map_or(0, |late| u64::from(late) + 1)));
    }
    columns
}
