//! Decode iterations, for findings on their CUDA graphs.

use tllmprof_record::{Batch, Phase};

use crate::events::iteration::Iteration;

/// An iteration whose batch has only decode tokens.
#[derive(Clone, Copy)]
pub(super) struct Decode<'a> {
    pub iteration: &'a Iteration,
    pub batch: Batch,
}

impl<'a> Decode<'a> {
    pub(super) fn new(iteration: &'a Iteration) -> Option<Self> {
        let batch = iteration.batch?;
        (batch.phase() == Phase::Decode && batch.requests > 0).then_some(Self { iteration, batch })
    }

    pub(super) const fn is_by_graph(&self) -> bool {
        self.iteration.launching.graphs > 0
    }

    /// Returns true if the iteration launched work, but no graph. Iterations in which a graph is captured or code is
    /// compiled are left out, because other findings are about them.
    pub(super) const fn is_eager(&self) -> bool {
        !self.is_by_graph() && self.iteration.launches > 0 && !self.prepares()
    }

    /// Returns true if a graph is captured or code is compiled in the iteration.
    pub(super) const fn prepares(&self) -> bool {
        let prepared = self.iteration.preparation;
        prepared.captures > 0 || prepared.compilations > 0
    }

    /// Returns the number of tokens of each request as a reduced fraction. Batches with different numbers run different
    /// graphs: with speculative decoding, a request has several tokens.
    pub(super) const fn tokens_each(&self) -> (u32, u32) {
        let (requests, tokens) = (self.batch.requests as u32, self.batch.tokens);
        let (mut divisor, mut rest) = (tokens, requests);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        (tokens / divisor, requests / divisor)
    }
}

/// Returns the time of an iteration in nanoseconds, without the time that other findings are about: waits for requests,
/// for the GIL and for a processor, garbage collections, and sleeps.
pub(super) fn worked(iteration: &Iteration) -> u64 {
    let others = [
        iteration.gc,
        iteration.gil_wait,
        iteration.delayed_in_code(),
        iteration.blocked(),
    ];
    others
        .into_iter()
        .fold(iteration.busy(), u64::saturating_sub)
}
