//! Determines the effect of an intercepted call: whether it begins an iteration, and which windows then open
//! or close.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::{Call, CallPurpose};
use tllmprof_config::condition::BatchFacts;
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::steady::Known;
use tllmprof_steps::step::comparison::Mismatch;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::learned::Begun;
use tllmprof_steps::window::Point;
use tllmprof_sync::Guard;

use super::demand::SEARCHES;
use super::state::{STATE, SessionState, WAITS_ENTER};
use super::wiring::sink;
use super::{ending, engines, learning, sample, slots, stream_capture, trigger, turn};

/// Called when a thread has entered a hooked CUDA call. Begins or ends an iteration, and opens or closes windows, if
/// the call requires that. After this function has returned, the thread calls the intercepted CUDA function itself.
pub fn entered(call: Call) {
    match call.kind() {
        CallPurpose::CaptureBegin => return stream_capture::begins(),
        CallPurpose::CaptureEnd
        | CallPurpose::DeviceWork(_)
        | CallPurpose::HostFunction
        | CallPurpose::Memory
        | CallPurpose::Compilation
        | CallPurpose::Order
        | CallPurpose::Destroys(_)
        | CallPurpose::Graph(_) => return,
        CallPurpose::Profiler => {
            log::once!(
                Info,
                "the program controls the profiler itself, too: {call} is passed through"
            );
            return;
        }
        _ => {}
    }
    enter(call.into());
}

/// Called when a thread has entered a native function that the rule for a step names. Returns the number of the
/// iteration that ends when the function returns, if there is one.
pub fn named_entered() -> Option<u64> {
    enter(Counted::Named)
}

/// Returns true if the open window closes after `iteration`.
pub fn closes_after(iteration: u64) -> bool {
    let guard = STATE.lock();
    guard
        .as_ref()
        .is_some_and(|state| state.schedule.closes_after(iteration))
}

/// Called at the beginning of `what`: a CUDA call, or a range or function that the rule names. Begins an iteration if
/// one is due. Returns the number of the iteration that ends together with `what`, if there is one.
pub(crate) fn enter(what: Counted) -> Option<u64> {
    enter_with(what, BatchFacts::default())
}

/// Does the same as [`enter`]. `facts` describes the batch (requests and tokens) of the iteration that may begin.
pub(crate) fn enter_with(what: Counted, facts: BatchFacts) -> Option<u64> {
    if what.waits() && !WAITS_ENTER.load(Ordering::Relaxed) || ending::has_finished() {
        return None;
    }
    let slot = slots::slot().filter(|_| !slots::is_capturing())?;
    let cell = slot.live(what);
    if cell.count() <= cell.limit() {
        return None; // the thread has not reached the call that could begin an iteration
    }
    let mut guard = STATE.lock();
    let state = guard.as_mut()?;
    if !what.is_by_name() && state.begin_to_use_cuda() {
        turn::run(guard);
        guard = STATE.lock();
    }
    let state = guard.as_mut()?;
    if let Some(result) = state.counter.compares_entered(what, &state.slots, slot) {
        end_comparison(guard, result);
        return None;
    }
    if guard.as_ref()?.counter.orders_entered(what) {
        guard = turn::wait_for(guard);
    }
    let state = guard.as_mut()?;
    slot.set_beginning(true);
    // The step function of a server (see `Engine::is_awaited`) may replace a learnt pattern that has counted
    // iterations. The step function of a library such as transformers may not, because a program may call it only
    // occasionally. Nothing is replaced while a window is open, because all iterations of a window are counted by the
    // same rule. Nor is anything replaced if windows are planned by iteration numbers, because these numbers refer to
    // one rule.
    let (schedule, windows) = (&state.schedule, &state.settings.windows);
    let may_replace = || {
        !schedule.is_open()
            && !windows.is_numbered()
            && engines::counted(what).is_some_and(|found| found.engine.is_awaited())
    };
    let entered = state.counter.entered(what, &state.slots, slot, may_replace);
    match entered.opens {
        Some(begun) => begin(guard, begun, facts),
        // While a thread switches windows, threads get no credit (a number of calls that they may count by
        // themselves). So each counted call is examined.
        None if state.turn.is_taken() => drop(guard),
        None => {
            state.run_on();
            look_for_span(guard);
        }
    }
    if let Some((first, engine)) = entered.replaced.zip(engines::counted(what)) {
        uncounted(&mut || learning::log_replaced(engine, first));
    }
    entered.ends
}

/// Called when the calling thread is about to enter the intercepted function itself. From then on, a thread that opens
/// or closes windows no longer waits for this call.
#[inline]
pub fn goes_on() {
    if let Some(slot) = slots::slot() {
        slot.set_beginning(false);
    }
}

/// Called when an engine's steps have been compared with the pattern that recurs in the CUDA calls. Releases the lock
/// and, if `result` is a mismatch, logs it.
fn end_comparison(mut guard: Guard<'static, Option<SessionState>>, result: Option<Mismatch>) {
    let Some(mismatch) = result else { return };
    let engine = guard.as_mut().and_then(|state| state.engine());
    drop(guard);
    if let Some(engine) = engine {
        uncounted(&mut || learning::log_mismatch(engine, &mismatch));
    }
}

/// Begins the iteration `begun`. A window opens with it only if `begun.understood` is true: with the rule `auto`, the
/// learner may not be certain yet that this is an iteration.
fn begin(mut guard: Guard<'static, Option<SessionState>>, begun: Begun, facts: BatchFacts) {
    let Some(state) = guard.as_mut() else { return };
    let due = state.due_at(begun.iteration);
    if let Some(condition) = state.condition_of(due) {
        // The message about the condition in the settings contains `Filter::held`. So iterations that the condition of
        // a requested window checked are not counted in it.
        let mut held = state.filter.held;
        let counts = match due {
            None => held.count(condition, facts),
            Some(_) => condition.holds(facts) == Some(true),
        };
        state.filter.held = held;
        state.filter.excluded = (!counts).then_some(begun.iteration);
        if counts || !state.splits(begun.iteration) {
            state.schedule.counts(begun.iteration, counts);
        }
    } else if state.filter.excluded.take().is_some() {
        // The latest iteration was excluded by the condition of a requested window. That window is over, and no other
        // condition applies, so this iteration counts.
        state.schedule.counts(begun.iteration, true);
    }
    if state.span.is_on() {
        let rule = state.counter.learnt_rule().map(|rule| rule.place());
        match rule {
            _ if begun.understood => sink().span_is_replaced(begun.iteration, rule),
            Some(rule) => sink().step_is_seen(begun.iteration, rule),
            None => {}
        }
    }
    if begun.understood {
        state.span.ends();
    }
    let follows_each = state.schedule.follows_each();
    SEARCHES.store(follows_each, Ordering::Relaxed);
    let is_of_interest = follows_each || state.automatic.watch.is_some();
    let spent = is_of_interest.then(|| sink().take_spent());
    if let Some(spent) = spent.filter(|_| begun.understood && follows_each) {
        if stream_capture::is_any_under_way() {
            state.schedule.interrupt();
        }
        let known = Known {
            counts: facts.requests != Some(0) && facts.tokens != Some(0),
            idle: Duration::from_nanos(spent.idle),
            gpu_wait: Duration::from_nanos(spent.wait),
        };
        state
            .schedule
            .begins(begun.iteration, Instant::now(), known);
    }
    trigger::look(state, begun, facts, spent.unwrap_or_default());
    sample::look(state, begun);
    state
        .schedule
        .hold(!begun.understood || state.awaits_rank());
    if begun.understood || state.schedule.is_open() {
        return turn::reach(guard, Point::In(begun.iteration));
    }
    let waiting = state.schedule.waiting_at(begun.iteration);
    state.run_on();
    look_for_span(guard);
    if let Some(window) = waiting {
        learning::log_waiting(window);
    }
}

/// Begins a stretch of time if one is due. As long as no step is known, the library records such stretches in place of
/// iterations. Called at a CUDA call that begins no iteration, or one of which the learner is not certain.
fn look_for_span(mut guard: Guard<'static, Option<SessionState>>) {
    let Some(state) = guard.as_mut().filter(|state| state.wants_span()) else {
        return;
    };
    if let Some(number) = state.span.begins(Instant::now()) {
        sink().span_begins();
        turn::reach(guard, Point::In(number));
        sink().span_has_begun();
    }
}

/// Called when a hooked CUDA call has returned. Begins an iteration if the return of this call begins one. `stream` is
/// the call's first argument.
pub fn returned(call: Call, stream: usize, succeeded: bool) {
    match call.kind() {
        CallPurpose::CaptureBegin => return stream_capture::began(stream, succeeded),
        CallPurpose::CaptureEnd => {
            if let Some(guard) = stream_capture::ended(stream) {
                turn::reach(guard, Point::Start);
            }
            return;
        }
        _ => {}
    }
    if ending::has_finished() {
        return;
    }
    let Some(slot) = slots::slot().filter(|_| !slots::is_capturing()) else {
        return;
    };
    let mut guard = STATE.lock();
    let compared = guard
        .as_mut()
        .and_then(|state| state.counter.compares_returned(call, &state.slots, slot));
    if let Some(result) = compared {
        return end_comparison(guard, result);
    }
    let orders = |state: &SessionState| state.counter.orders_returned(call, slot);
    if guard.as_ref().is_some_and(orders) {
        guard = turn::wait_for(guard);
    }
    let Some(state) = guard.as_mut() else { return };
    match state.counter.returned(call, &state.slots, slot) {
        Some(begun) => begin(guard, begun, BatchFacts::default()),
        None if state.turn.is_taken() => {}
        None => {
            state.run_on();
            look_for_span(guard);
        }
    }
}
