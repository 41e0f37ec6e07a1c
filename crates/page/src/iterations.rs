//! The iterations of a process, as columns of the page's data.

use tllmprof_record::{Batch, Phase};
use tllmprof_report::{Iteration, Process};

use crate::buckets::base;
use crate::columns::Columns;
use crate::timeline::Timeline;

/// Returns the columns: the number of windows, the number of iterations in each window, and one column for each
/// property of the iterations. For a value that may be missing, the column contains the value plus 1, or 0 if the value
/// is missing. The columns of the batch are an exception: their values are written unchanged, and are 0 if the batch is
/// not known.
pub(crate) fn columns(process: &Process, timeline: Option<&Timeline>) -> Columns {
    let base = base(process);
    let all = || process.windows.iter().flat_map(|window| &window.iterations);
    let mut columns = Columns::default();
    columns.number(process.windows.len() as u64);
    let counts = process.windows.iter().map(|window| window.iterations.len());
    columns.column(counts.map(|count| count as u64));
    columns.differences(all().map(|iteration| iteration.n));
    columns.differences(all().map(|iteration| iteration.start - base));
    columns.column(all().map(|iteration| iteration.duration));
    columns.column(all().map(|iteration| iteration.gpu.map_or(0, |gpu| gpu.saturating_add(1))));
    columns.column(all().map(|iteration| iteration.idle));
    columns.column(all().map(|iteration| u64::from(iteration.thread)));
    columns.column(all().map(|iteration| u64::from(iteration.cut)));
    columns.column(all().map(|iteration| u64::from(iteration.qualifies())));
    columns.column(all().map(|iteration| u64::from(iteration.launches)));
    columns.column(all().map(|iteration| u64::from(iteration.calls)));
    columns.column(all().map(|iteration| iteration.wait));
    columns.column(all().map(|iteration| iteration.gil_wait));
    columns.column(all().map(|iteration| iteration.gc));
    columns.column(all().map(|iteration| iteration.launching.ns));
    columns.column(all().map(Iteration::delayed_in_code));
    columns.column(all().map(Iteration::blocked));
    let code = process.stacks.code_of(all());
    for language in [0, 1] {
        columns.column(code.iter().map(|samples| samples[language]));
    }
    columns.column(all().map(|iteration| u64::from(iteration.kernels)));
    // If the driver did not report when kernels ran, all busy times are 0 and must not be shown.
    let has_times = process.kernels.has_times();
    let busy = all().map(|iteration| iteration.gpu_busy.filter(|_| has_times));
    columns.column(busy.map(|busy| busy.map_or(0, |busy| busy.saturating_add(1))));
    let batches = || all().map(|iteration| iteration.batch);
    columns.column(batches().map(|batch| batch.map_or(0, |batch| number(batch.phase()))));
    let mut of_batch = |of: fn(Batch) -> u32| {
        columns.column(batches().map(|batch| batch.map_or(0, |batch| of(batch).into())));
    };
    of_batch(|batch| batch.requests.into());
    of_batch(|batch| batch.tokens);
    of_batch(|batch| batch.prefill_tokens);
    columns.column(all().map(|iteration| {
        timeline.map_or(0, |timeline| u64::from(timeline.shows(iteration.start)))
    }));
    columns
}

/// Returns the number that stands for a phase in the page's data; 0 stands for an unknown phase.
const fn number(phase: Phase) -> u64 {
    match phase {
        Phase::Prefill => 1,
        Phase::Decode => 2,
        Phase::Mixed => 3,
        Phase::Idle => 4,
        Phase::Draft => 5,
    }
}
