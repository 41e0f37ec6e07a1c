//! The slowest process in each iteration, as columns of the page's data.

use tllmprof_report::Skew;

use crate::columns::Columns;

/// Returns the columns: the number of iterations, their numbers, and for each iteration the index
/// of the slowest process. The index is the number of processes if no process was the slowest.
pub(crate) fn columns(skew: &Skew) -> Columns {
    let mut columns = Columns::default();
    columns.number(skew.iterations.len() as u64);
    columns.differences(skew.iterations.iter().map(|step| step.n));
    columns.column(skew.iterations.iter().map(|step| match step.ahead {
        0 => skew.slowest.len() as u64,
        _ => step.slowest as u64,
    }));
    columns
}
