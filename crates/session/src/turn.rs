//! The thread that has the [turn](tllmprof_steps::turn) switches. Other threads wait for it, for a bounded
//! time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::by::By;
use super::rank::Rank;
use super::recording::Beginning;
use super::state::count_calls;
use super::wiring::{Place, doors, interpreter, sink};
use super::{OWNER, STATE, State, learning, ranks, sample, slots, stream_capture, trigger};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::sampling::Sampler;
use tllmprof_steps::steady::Verdict;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::turn::{Action, CLOSING, Event, OPENING};
use tllmprof_steps::window::Point;
use tllmprof_sync::Guard;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

/// The interval at which a waiting thread that has the GIL checks if another thread needs the GIL.
const GIL_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The time a switching thread waits for threads whose calls have their numbers and have not continued. They
/// hold nothing of the library's, and only have to execute some instructions or to get the GIL.
const CONTINUE_TIMEOUT: Duration = Duration::from_millis(200);
/// The interval at which it checks.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

lifecycle::global! {
    stage: Session;

    /// Increases each time a turn ends; threads that wait for the end sleep on it.
    #[fork(keep = "only changes matter")]
    static TURNS: AtomicU32 = AtomicU32::new(0);
    /// The number of threads that wait for a turn to end.
    #[fork(reset)]
    static WAITERS: AtomicU32 = AtomicU32::new(0);
}

/// Moves the process to `point`.
///
/// If another thread has the turn, that thread will continue to `point`. This thread waits a while for that,
/// except where an iteration begins: for that it has waited already ([`wait_for`]).
pub fn reach(mut guard: Guard<'static, Option<State>>, point: Point) {
    let Some(state) = guard.as_mut() else { return };
    match (state.turn.on(Event::Reached(point)), point) {
        // Its thread has waited, and the call is about to continue.
        (Action::Wait(_), Point::In(_)) => {
            state.early = state.early.map(|early| early + 1);
            return;
        }
        (Action::Wait(Some(until)), _) => {
            wait_for_end(guard, until);
            return;
        }
        (Action::Wait(None), _) => return,
        _ => {}
    }
    if state.has_nothing_at(point) {
        state.turn.on(Event::Passed);
        state.record_iteration(point);
        return state.run_on();
    }
    if OWNER.load(Ordering::Relaxed) != ids::process() {
        return; // a copy of the process for which no fork handler ran
    }
    // Without this, a window that opens here, while the driver is loaded and not used yet, would have no
    // record.
    state.note_cuda();
    state.take_turn();
    guard = ask_rank(guard, point);
    let is_edge = |state: &State| state.schedule.has_edge_at(point);
    if guard.as_ref().is_some_and(is_edge) {
        guard = let_go_on(guard);
    }
    run(guard);
}

/// Looks up the rank if it is not known and matters at `point`, and logs which window waits for it. For the
/// thread that has the turn.
fn ask_rank(
    mut guard: Guard<'static, Option<State>>,
    point: Point,
) -> Guard<'static, Option<State>> {
    let is_asked = |state: &State| {
        state.rank == Rank::NotAsked
            || state.asks_rank_at(point)
            || state.rank.known().is_none() && state.schedule.has_edge_at(point)
    };
    if !guard.as_ref().is_some_and(is_asked) {
        return guard;
    }
    drop(guard);
    let mut rank = Rank::None;
    uncounted(&mut || rank = ranks::look());
    guard = STATE.lock();
    if let Some(state) = guard.as_mut() {
        state.know_rank(rank, point);
        if let (Rank::Unknown(why), Point::In(iteration)) = (rank, point)
            && let Some(ranks) = &state.settings.ranks
            && let Some(window) = state.schedule.waiting_at(iteration)
        {
            log::once!(
                Info,
                "TLLMPROF_RANKS={ranks}: window {window} waits until the rank of this process is known: {why} \
                 (TLLMPROF_RANK sets it)"
            );
        }
    }
    guard
}

/// Waits, for a bounded time, until no other thread has a call that has its number and has not continued. For
/// the thread that has the turn.
fn let_go_on(mut guard: Guard<'static, Option<State>>) -> Guard<'static, Option<State>> {
    let here = slots::slot();
    let begins =
        |slot: &&Slot| slot.is_beginning() && !here.is_some_and(|here| core::ptr::eq(*slot, here));
    let mut deadline = None;
    while guard
        .as_ref()
        .is_some_and(|state| state.slots.iter().copied().any(|slot| begins(&slot)))
    {
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + CONTINUE_TIMEOUT) {
            break;
        }
        drop(guard);
        // No turn ends before this one, and unlike `sleep` this is not a cancellation point.
        wait(&TURNS, TURNS.load(Ordering::SeqCst), POLL_INTERVAL);
        guard = STATE.lock();
    }
    guard
}

/// Switches until there is nothing left to switch, and gives the turn back.
pub fn run(mut guard: Guard<'_, Option<State>>) {
    let _uncancelled = Uncancelled::new();
    loop {
        let Some(state) = guard.as_mut() else { return };
        let target = match state.turn.on(Event::GoesOn) {
            Action::Begin => {
                let settings = state.settings;
                drop(guard);
                super::beginning::begin(settings);
                guard = STATE.lock();
                continue;
            }
            Action::Switch(target) => target,
            _ => {
                state.run_on();
                break;
            }
        };
        if state.schedule.has_edge_at(target) {
            state.ask_engine();
        }
        let edge = state.schedule.reach(target);
        state.turn.on(Event::Switches {
            closes: edge.close.is_some(),
            now: Instant::now(),
        });
        if edge.open.is_some() {
            state.counter.keep_counting();
        }
        let (step, rank) = (state.step(), state.rank);
        let excluded = state.excludes(target);
        let why_late = if state.awaited_rank {
            "the rank was not known"
        } else if state.condition().is_some() {
            match &state.settings.step {
                step if step.is_learnt() => {
                    "the step was still being learnt, or TLLMPROF_WHERE held for none"
                }
                _ => "TLLMPROF_WHERE held for none before",
            }
        } else {
            "the step was still being learnt"
        };
        let engine = edge.open.and_then(|_| state.engine());
        let learnt = edge.open.and_then(|_| state.counter.learnt_levels());
        let triggered = edge.open.and(state.triggered);
        let verdict = edge.open.and_then(|_| state.schedule.verdict());
        let record = Beginning::if_begins_at(target, state);
        let another = Beginning::anew(state);
        let mut begun = None;
        let is_sample = edge.open.is_some_and(|open| state.is_sample(&open));
        let sampler = state.sampler.filter(|_| is_sample);
        let kernels = match &sampler {
            Some(sampler) => Some(sampler.samples().steps),
            None => state.kernels(&edge),
        };
        let demand = edge.open.filter(|open| open.on_demand);
        let demand = demand.map(|_| state.schedule.demands_met() + 1);
        let settings = state.settings;
        let torch_trace = demand
            .filter(|_| triggered.is_none() && !is_sample)
            .and_then(|_| state.due()?.torch_trace.clone());
        let past = triggered.is_some() || state.due().is_some_and(|demand| demand.past);
        if edge.open.is_some() || edge.close.is_some() {
            count_calls(&state.slots);
        }
        drop(guard);
        // CUPTI must not be attached or detached while a stream is captured either.
        let drains = edge.close.is_some()
            || edge.kernels
            || edge.open.is_some() && kernels.is_some()
            || sink().has_edge_at(target);
        let capturing = stream_capture::about_to_drain(drains);
        uncounted(&mut || {
            if let Some(record) = &record {
                begun = Some(record.begin(settings));
            }
            if let Some(another) = &another {
                another.write_rule(settings);
            }
            if let Some((rule, inner)) = &learnt {
                learning::log_choice(&settings.step, rule, inner.as_ref());
            }
            if let Some(engine) = engine {
                learning::log_engine(engine);
            }
            if let (Some((window, fired)), Some(when)) = (triggered, &settings.when) {
                trigger::log(window, &fired, &when.condition);
            }
            if let Some(sampler) = &sampler {
                sample::log(sampler);
            }
            if let Some(why) = verdict.and_then(Verdict::shortcoming) {
                log::say!(Warn, "{why}; the window takes what comes now");
            }
            let by = By {
                step,
                rank,
                verdict,
            };
            sink().switch(
                &Place {
                    point: target,
                    by: format_args!("{by}"),
                    rank: rank.known().map(|ranked| ranked.rank),
                    why_late,
                    capturing,
                    excluded,
                    kernels,
                    sampled: sampler.as_ref().map(Sampler::samples),
                    past,
                    demand,
                    torch_trace: torch_trace.as_ref(),
                },
                edge,
            );
        });
        stream_capture::drained();
        let begins_flight = begun.is_some() && settings.latest.is_some();
        if edge.open.is_some() || edge.close.is_some() || begins_flight {
            doors().record_calls();
        }
        guard = STATE.lock();
        if let Some(state) = guard.as_mut() {
            state.turn.on(Event::Switched(target));
            state.note_demand(&edge, target.over());
            if let Some(recording) = begun {
                state.recording = recording;
            }
        }
    }
    let early = guard
        .as_mut()
        .and_then(|state| state.early.take_if(|early| *early > 0));
    drop(guard);
    TURNS.fetch_add(1, Ordering::SeqCst);
    if WAITERS.load(Ordering::SeqCst) != 0 {
        wake(&TURNS, i32::MAX);
    }
    if let Some(early) = early {
        log::say!(
            Warn,
            "{early} iteration{} began while a window was being switched, whose edges are not exact: \
             other threads wait {OPENING:?} at most for one to open and {CLOSING:?} for one to close, \
             and not at all with the GIL where that is needed",
            if early == 1 { "" } else { "s" }
        );
    }
}

/// Waits until no thread has the turn, so that this call comes after the switch. Waits for each turn no
/// longer than that turn may block others, and in total no longer than a window may take to open, even if
/// other threads get the turn in between.
pub fn wait_for(mut guard: Guard<'static, Option<State>>) -> Guard<'static, Option<State>> {
    let mut patience = None;
    while let Some(until) = guard.as_ref().and_then(|state| state.turn.until()) {
        let now = Instant::now();
        let until = until.min(*patience.get_or_insert(now + OPENING));
        if now >= until {
            break;
        }
        // A turn that reaches a closing may block others for less time than it might before.
        let waited = wait_for_end(guard, until.min(now + CLOSING));
        guard = STATE.lock();
        if !waited {
            break;
        }
    }
    guard
}

/// Unlocks the state and waits until a turn ends, at most until `deadline`. A thread that has the GIL does
/// not wait for a thread that waits for the GIL; returns false for that reason.
pub fn wait_for_end(guard: Guard<'_, Option<State>>, deadline: Instant) -> bool {
    let turn = TURNS.load(Ordering::SeqCst);
    drop(guard);
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let has_gil = interpreter().has_gil();
    let mut may_wait = true;
    while TURNS.load(Ordering::SeqCst) == turn {
        let left = deadline.saturating_duration_since(Instant::now());
        may_wait = !(has_gil && interpreter().is_waiting_for_gil());
        if left.is_zero() || !may_wait {
            break;
        }
        wait(
            &TURNS,
            turn,
            if has_gil {
                left.min(GIL_CHECK_INTERVAL)
            } else {
                left
            },
        );
    }
    WAITERS.fetch_sub(1, Ordering::SeqCst);
    may_wait
}
