//! Which process was the slowest in each iteration, as columns; the number of processes where none was.

use tllmprof_report::Skew;

use crate::columns::Columns;

/// The number of iterations, their numbers, and the place of the slowest process of each.
pub fn columns(skew: &Skew) -> Columns {
    let mut columns = Columns::default();
    columns.number(skew.iterations.len() as u64);
    columns.differences(skew.iterations.iter().map(|step| step.n));
    columns.column(skew.iterations.iter().map(|step| match step.ahead {
        0 => skew.slowest.len() as u64,
        _ => step.slowest as u64,
    }));
    columns
}
