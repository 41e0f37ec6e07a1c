//! Triggers: windows that the library opens after an iteration for which a condition holds.

use std::time::Instant;

use tllmprof_config::IterationRange;
use tllmprof_config::condition::{BatchFacts, Condition};
use tllmprof_platform::log;
use tllmprof_steps::step::learned::Begun;
use tllmprof_steps::trigger::{Fired, Spent};
use tllmprof_steps::window::Taken;

use super::state::{Recording, SessionState};
use super::stream_capture;
use super::wiring::sink;

/// Called when the iteration `begun` begins. `facts` describes its batch, and `spent` is the time of the
/// previous iteration by cause. If the trigger's condition held for the previous iteration and a window can open now,
/// adds a window to the schedule whose first iteration is `begun`.
pub(crate) fn look(state: &mut SessionState, begun: Begun, facts: BatchFacts, spent: Spent) {
    let Some(watch) = &mut state.automatic.watch else {
        return;
    };
    if stream_capture::is_any_under_way() {
        return watch.interrupt();
    }
    let is_free = !state.schedule.is_open() && state.schedule.demanded().is_none();
    let may_open = begun.understood
        && is_free
        && !state.awaits_rank()
        && !state.is_other_rank()
        && !state.turn.is_taken();
    let Some(watch) = &mut state.automatic.watch else {
        return;
    };
    let now = Instant::now();
    let Some(fired) = watch.begins(facts, now, spent, may_open) else {
        return;
    };
    let first = begun.iteration;
    let window = IterationRange {
        first,
        last: Some(first.saturating_add(watch.steps() - 1)),
    };
    // If the trigger's window overlaps a planned window, the schedule refuses it. Then nothing is opened here: the
    // planned window captures at least some of these iterations.
    if state.schedule.demand(window).is_err() {
        return watch.skips();
    }
    watch.opens(now);
    state.counter.keep_counting();
    if state.recording == Recording::OnDemand {
        state.recording = Recording::ToBegin;
    }
    state.automatic.triggered = Some((window, fired));
}

impl SessionState {
    /// Returns true if `taken`, a window that has opened, was requested by a trigger.
    pub(crate) fn is_triggered(&self, taken: &Taken) -> bool {
        let triggered = self.automatic.triggered.as_ref();
        taken.on_demand && triggered.is_some_and(|(window, _)| *window == taken.asked)
    }
}

/// Informs the trigger that the current iteration has ended and the next one has not begun.
pub(crate) fn ends(state: &mut SessionState) {
    if let Some(watch) = &mut state.automatic.watch {
        watch.ends(Instant::now(), sink().take_spent());
    }
}

/// Logs why `window` opens. The message is a warning, because warnings are also written into the record.
pub(crate) fn log(window: IterationRange, fired: &Fired, condition: &Condition) {
    log::say!(
        Warn,
        "window {window} opens as {condition} held for iteration {}: {fired}",
        window.first.saturating_sub(1)
    );
}
