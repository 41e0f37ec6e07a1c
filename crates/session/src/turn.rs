//! Opens and closes windows at points in the sequence of iterations. Only the thread that has the
//! [turn](tllmprof_steps::turn) (the right to switch) does this. Other threads wait for that thread, for a
//! limited time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::rank::Rank;
use super::switch::Switch;
use super::wiring::interpreter;
use super::{OWNER, STATE, SessionState, ranks, slots};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::turn::{Action, CLOSING, OPENING, TurnEvent};
use tllmprof_steps::window::Point;
use tllmprof_sync::Guard;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

/// The interval at which a waiting thread that has the GIL checks whether a thread of the library needs the GIL.
const GIL_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time that a thread that is about to open or close windows waits for other threads. It waits for threads
/// whose calls have got a number (their position in the sequence of calls) but have not yet continued to the
/// intercepted function. Such threads hold none of the library's locks, and only have to execute some instructions or
/// to get the GIL.
const CONTINUE_TIMEOUT: Duration = Duration::from_millis(200);
/// The interval at which a thread that is about to open or close windows checks whether the threads that it waits for
/// have continued to the intercepted function.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

lifecycle::global! {
    stage: Session;

    /// A counter that increases each time a thread gives up the turn (the right to switch windows). Threads that wait
    /// for the end of a turn sleep on this word (futex).
    #[fork(keep = "only changes matter")]
    static TURNS: AtomicU32 = AtomicU32::new(0);
    /// The number of threads that wait until another thread gives up the turn (the right to switch windows).
    #[fork(reset)]
    static WAITERS: AtomicU32 = AtomicU32::new(0);
}

/// Moves the process to `point` in the sequence of iterations, and opens or closes the windows that are due there.
///
/// If another thread has the turn (the right to switch windows), the other thread also switches for `point`, and the
/// calling thread waits for a limited time until the switch is done. At the beginning of an iteration the calling
/// thread does not wait, because it has already waited in [`wait_for`].
pub(crate) fn reach(mut guard: Guard<'static, Option<SessionState>>, point: Point) {
    let Some(state) = guard.as_mut() else { return };
    match (state.turn.on(TurnEvent::Reached(point)), point) {
        // The calling thread has already waited in `wait_for`, and its call has to continue now.
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
        state.turn.on(TurnEvent::Passed);
        state.record_iteration(point);
        return state.run_on();
    }
    if OWNER.load(Ordering::Relaxed) != ids::process() {
        return; // this is a copy of the process for which no fork handler ran
    }
    // The driver may be loaded but not used yet. `note_cuda` is called in this case too, because a window that opens
    // at this point would otherwise have no record.
    state.note_cuda();
    state.take_turn();
    guard = ask_rank(guard, point);
    let is_edge = |state: &SessionState| state.schedule.has_edge_at(point);
    if guard.as_ref().is_some_and(is_edge) {
        guard = let_go_on(guard);
    }
    run(guard);
}

/// Looks up the rank if it is unknown and matters at `point`, and logs which window waits for the rank. Called by the
/// thread that has the turn (the right to switch windows).
fn ask_rank(
    mut guard: Guard<'static, Option<SessionState>>,
    point: Point,
) -> Guard<'static, Option<SessionState>> {
    let is_asked = |state: &SessionState| {
        state.rank == Rank::NotAsked
            || state.asks_rank_at(point)
            || state.rank.known().is_none() && state.schedule.has_edge_at(point)
    };
    if !guard.as_ref().is_some_and(is_asked) {
        return guard;
    }
    let mut rank = Rank::None;
    guard = unlocked(guard, || uncounted(&mut || rank = ranks::look())).0;
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

/// Waits, for a limited time, until each call of another thread that has a number (a position in the sequence of
/// calls) has continued to the intercepted function. Called by the thread that has the turn (the right to switch
/// windows).
fn let_go_on(
    mut guard: Guard<'static, Option<SessionState>>,
) -> Guard<'static, Option<SessionState>> {
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
        // A futex wait is used because, unlike `sleep`, it is not a cancellation point. This thread has the turn, so no
        // other thread wakes this futex, and the wait lasts until its time-out.
        let pause = || wait(&TURNS, TURNS.load(Ordering::SeqCst), POLL_INTERVAL);
        guard = unlocked(guard, pause).0;
    }
    guard
}

/// Unlocks the state while `act` runs. Other threads may change the state meanwhile, but this thread keeps the turn
/// (the right to switch windows).
fn unlocked<T>(
    guard: Guard<'_, Option<SessionState>>,
    act: impl FnOnce() -> T,
) -> (Guard<'static, Option<SessionState>>, T) {
    drop(guard);
    let result = act();
    (STATE.lock(), result)
}

/// Switches windows until nothing is left to switch, and gives up the turn (the right to switch).
pub(crate) fn run(mut guard: Guard<'_, Option<SessionState>>) {
    let _uncancelled = Uncancelled::new();
    loop {
        let Some(state) = guard.as_mut() else { return };
        match state.turn.on(TurnEvent::GoesOn) {
            Action::Begin => {
                let settings = state.settings;
                guard = unlocked(guard, || super::beginning::begin(settings)).0;
            }
            Action::Switch(target) => {
                let switch = Switch::decide(state, target);
                let (locked, recording) = unlocked(guard, || switch.carry_out());
                guard = locked;
                if let Some(state) = guard.as_mut() {
                    switch.note(state, recording);
                }
            }
            _ => {
                state.run_on();
                break;
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

/// Waits until no thread has the turn (the right to switch windows), so that the calling thread's call comes after the
/// switch. The wait ends at the deadline of the turn. It lasts for at most [`OPENING`] in all, even if several threads
/// get the turn one after another.
pub(crate) fn wait_for(
    mut guard: Guard<'static, Option<SessionState>>,
) -> Guard<'static, Option<SessionState>> {
    let mut patience = None;
    while let Some(until) = guard.as_ref().and_then(|state| state.turn.until()) {
        let now = Instant::now();
        let until = until.min(*patience.get_or_insert(now + OPENING));
        if now >= until {
            break;
        }
        // The other thread may begin to close a window, which moves the deadline of its turn (its right to switch
        // windows) to an earlier time. So the deadline is read again after `CLOSING`.
        let waited = wait_for_end(guard, until.min(now + CLOSING));
        guard = STATE.lock();
        if !waited {
            break;
        }
    }
    guard
}

/// Unlocks the state and waits until another thread's turn (its right to switch windows) ends, but not beyond
/// `deadline`. Returns false if the calling thread must not wait: it has the GIL, and a thread of the library waits
/// for the GIL.
pub(crate) fn wait_for_end(guard: Guard<'_, Option<SessionState>>, deadline: Instant) -> bool {
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
