//! Kernel samples: windows that the library opens at intervals to record GPU kernels.

use std::time::{SystemTime, UNIX_EPOCH};

use tllmprof_config::IterationRange;
use tllmprof_platform::log;
use tllmprof_steps::sampling::Sampler;
use tllmprof_steps::step::learned::Begun;
use tllmprof_steps::window::{Edge, Taken};

use super::state::{Recording, SessionState};
use super::stream_capture;

/// Called when an iteration begins. If a kernel sample is due, adds a window to the schedule whose first iteration is
/// this one.
pub(crate) fn look(state: &mut SessionState, begun: Begun) {
    let Some(mut sampler) = state.automatic.sampler.take() else {
        return;
    };
    let first = begun.iteration;
    let steps = sampler.samples().steps;
    let window = IterationRange {
        first,
        last: Some(first.saturating_add(steps - 1)),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let opens = begun.understood
        && sampler.begins(now.unwrap_or_default(), || {
            state.may_sample(first) && state.schedule.demand(window).is_ok()
        });
    state.automatic.sampler = Some(sampler);
    if opens {
        state.counter.keep_counting();
        if state.recording == Recording::OnDemand {
            state.recording = Recording::ToBegin;
        }
        state.automatic.sample = Some(window);
    }
}

impl SessionState {
    /// Returns true if a kernel sample may begin with this iteration. It may not during a stream capture, while
    /// another thread switches windows, for an iteration that the condition on batches excludes, or on a rank that
    /// opens no windows. Whether the sample conflicts with another window is checked elsewhere, by the schedule.
    fn may_sample(&self, iteration: u64) -> bool {
        // Once a sample opens, stream captures no longer restart the counting. If a planned window is given by
        // iteration numbers, these count from the last restart. Then no sample may open as long as the counting may
        // still restart.
        let is_numbered = !self.counter.may_restart() || !self.schedule.has_numbered();
        is_numbered
            && !self.awaits_rank()
            && !self.is_other_rank()
            && !self.turn.is_taken()
            && self.filter.excluded != Some(iteration)
            && !stream_capture::is_any_under_way()
    }

    /// Returns true if `taken`, a window that has opened, is a sample of kernels.
    pub(crate) fn is_sample(&self, taken: &Taken) -> bool {
        taken.on_demand && self.automatic.sample == Some(taken.asked)
    }

    /// If a sample is open, makes it close before iteration `next`, so that a requested window can begin with that
    /// iteration. Returns true if a sample was open.
    pub(crate) fn end_sample(&mut self, next: u64) -> bool {
        let open = self.schedule.open();
        let is_sample = open.is_some_and(|open| self.is_sample(&open));
        if is_sample {
            self.schedule.stop_open(next.saturating_sub(1));
        }
        is_sample
    }

    /// Updates the state of the kernel sample after windows were opened or closed. Returns two flags: the first is
    /// true if a sample closed, the second if a sample opened.
    pub(crate) fn note_sample(&mut self, edge: &Edge) -> (bool, bool) {
        let opens = edge.open.is_some_and(|opened| self.is_sample(&opened));
        let closes = edge.close.is_some_and(|closed| self.is_sample(&closed));
        if closes {
            self.automatic.sample = None;
            // CUPTI took time to detach when the sample closed. This time lengthens the current iteration, so the
            // trigger ignores the iteration.
            if let Some(watch) = &mut self.automatic.watch {
                watch.interrupt();
            }
        }
        (closes, opens)
    }
}

/// Logs once that kernels are sampled.
pub(crate) fn log(sampler: &Sampler) {
    let samples = sampler.samples();
    log::once!(
        Info,
        "kernels are sampled: {} iterations each {:?}",
        samples.steps,
        samples.every
    );
}
