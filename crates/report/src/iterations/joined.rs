//! Combines the results that the passes over a record found about each iteration.

use tllmprof_record::{Batch, Clock};

use crate::events::iteration::{InKernels, InLaunches, Iteration};
use crate::events::qualify::Qualified;
use crate::events::raw::RawIteration;
use crate::events::tally::InIteration;

/// Returns the iterations, each with the results of all passes over the record. `inside` contains the results from
/// calls and Python events, and `kernels` the results from recorded kernels. `gpu` contains the iterations whose GPU
/// time CUDA events measured: the number of each, in ascending order, with that time in nanoseconds.
pub(crate) fn whole(
    raw: &[RawIteration],
    inside: &[InIteration],
    kernels: &[InKernels],
    gpu: &[(u64, u64)],
    batches: &[Option<Batch>],
    qualified: &Qualified,
    clock: &Clock,
) -> Vec<Iteration> {
    let is_measured = !gpu.is_empty();
    let kernels = kernels.iter().copied();
    let kernels = kernels.chain(std::iter::repeat(InKernels::default()));
    raw.iter()
        .zip(inside)
        .zip(kernels)
        .zip(batches)
        .enumerate()
        .map(|(place, (((raw, inside), kernels), batch))| {
            let ns = |ticks| clock.duration_ns(raw.start, ticks);
            let gpu_at = gpu.binary_search_by_key(&raw.n, |(n, _)| *n);
            Iteration {
                n: raw.n,
                start: clock.ns(raw.start),
                duration: ns(raw.duration),
                gpu: match gpu_at {
                    Ok(at) => Some(gpu[at].1),
                    Err(_) if is_measured => None,
                    Err(_) => kernels.busy,
                },
                thread: raw.thread,
                cut: raw.cut,
                launches: inside.launches,
                launching: InLaunches {
                    ns: ns(inside.launching),
                    graphs: inside.graphs,
                },
                calls: inside.calls,
                preparation: inside.preparation,
                launched_after: inside.launched_after,
                wait: ns(inside.wait.saturating_sub(raw.idle_calls)),
                idle: ns(raw.idle),
                gil_wait: ns(inside.gil_wait),
                gc: ns(inside.gc),
                kernels: kernels.kernels,
                gpu_busy: kernels.busy,
                batch: *batch,
                used: raw.used,
                unqualified: qualified.why(place),
            }
        })
        .collect()
}
