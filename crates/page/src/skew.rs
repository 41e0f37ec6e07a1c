//! The slowest process in each iteration, as columns.

use tllmprof_report::Skew;

use crate::columns::Columns;

/// Returns the columns: the number of iterations, the numbers of the iterations, and the index of the slowest process
/// in each iteration, or the number of processes if none was the slowest.
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
