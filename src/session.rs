//! The process's one run of the line from calls to captures.
//!
//! The doors report calls here; the counter turns them into iterations, the gate those into
//! windows, and the capture switches. The state is locked for moments only. Switching may take
//! long, so it happens outside the lock: one thread at a time has the *turn*, and whoever comes to
//! a call that is counted meanwhile waits for it, but not for ever.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use tllmprof_config::calls::{CALLS, Call, Calls, Kind};
use tllmprof_config::{Settings, Step, rank};

use crate::capture::{self, Place};
use crate::intercept::{Tls, attend, tls, uncounted};
use crate::lock::{Guard, Lock, wait, wake};
use crate::log;
use crate::step::Counter;
use crate::step::threads::Slot;
use crate::window::{Edge, Gate};

/// How long others wait for a window to open.
const OPENING: Duration = Duration::from_secs(2);
/// How long others wait for a window to close. Short: the device may need their launches to become
/// idle.
const CLOSING: Duration = Duration::from_millis(50);
/// How long the end of the process waits for a thread that has the turn.
const ENDING: Duration = Duration::from_secs(1);

static STATE: Lock<Option<State>> = Lock::new(None);
/// The process whose calls are counted; another is a child that shares our memory, as after
/// `vfork`, or a copy that no handler told of, and is left alone.
static OWNER: AtomicI32 = AtomicI32::new(0);
static FINISHED: AtomicBool = AtomicBool::new(false);
/// A launch or wait of the moment is of no interest, so it need not lock: `auto` has counted a
/// launch, and no wait has returned since.
static QUIET: AtomicBool = AtomicBool::new(false);
/// Calls whose runtime functions count, too. At first all do: the runtime looks the driver's
/// functions up in its first call.
static ATTENDED: AtomicU32 = AtomicU32::new(Calls::ALL.bits());
/// Moves on each time a turn ends; what those who wait for it sleep on.
static TURNS: AtomicU32 = AtomicU32::new(0);
/// Threads that wait for a turn to end.
static WAITERS: AtomicU32 = AtomicU32::new(0);
/// Stream captures that are beginning or under way, in all threads.
static CAPTURES: AtomicI32 = AtomicI32::new(0);
/// The device is about to be waited for, which no capture survives that begins meanwhile.
static DRAINING: AtomicBool = AtomicBool::new(false);
static THREAD_KEY: AtomicU32 = AtomicU32::new(u32::MAX);

struct State {
    settings: &'static Settings,
    counter: Counter,
    gate: Gate,
    slots: Vec<&'static Slot>,
    captures: Vec<(usize, &'static Slot)>,
    turn: Turn,
    rank: Rank,
    follows_each: bool,
}

/// Who switches, and to where.
#[derive(Default)]
struct Turn {
    taken: bool,
    closing: bool,
    target: Option<u64>,
    done: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    NotAsked,
    Known(Option<u64>),
}

impl State {
    fn new() -> Option<Self> {
        let settings = crate::settings()?;
        Some(Self {
            settings,
            counter: Counter::new(settings, fence)?,
            gate: Gate::new(settings.windows.as_slice()),
            slots: Vec::new(),
            captures: Vec::new(),
            turn: Turn::default(),
            rank: Rank::NotAsked,
            follows_each: settings.nvtx && capture::nvtx::has_consumer(),
        })
    }

    /// Lets the threads run to where the next thing happens.
    fn run_on(&mut self) {
        let next = if self.follows_each {
            Some(self.turn.done.map_or(0, |done| done.saturating_add(1)))
        } else {
            self.gate.next_edge()
        };
        self.counter.run_to(&self.slots, next);
        let left = |next: u64| next.saturating_sub(self.turn.done.unwrap_or(0));
        let close = next.map_or(Calls::NONE, |next| self.counter.close_calls(left(next)));
        if ATTENDED.swap(close.bits(), Ordering::AcqRel) != close.bits() {
            attend(close);
        }
        QUIET.store(
            self.counter.awaits_wait() && !self.turn.taken,
            Ordering::Release,
        );
    }

    /// Whether `iteration` begins without anything to switch.
    fn has_nothing_at(&self, iteration: Option<u64>) -> bool {
        let before_edge = |iteration| self.gate.next_edge().is_none_or(|edge| iteration < edge);
        !self.follows_each && iteration.is_none_or(before_edge)
    }

    /// Looks the rank up, late, as engines set it late; a rank that is not wanted opens nothing.
    fn ask_rank(&mut self) {
        if self.rank != Rank::NotAsked {
            return;
        }
        let rank = rank(|name| std::env::var_os(name));
        self.rank = Rank::Known(rank);
        if let Some(ranks) = &self.settings.ranks
            && !ranks.contains(rank.unwrap_or(0))
        {
            self.gate = Gate::default();
        }
    }
}

/// The rule as messages name it, and the rank where there is one.
struct By<'a> {
    step: &'a Step,
    rank: Rank,
}

impl core::fmt::Display for By<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.step {
            Step::Auto => f.write_str("auto: the first launch after a host wait")?,
            step => write!(f, "{step}")?,
        }
        match self.rank {
            Rank::Known(Some(rank)) => write!(f, ", rank {rank}"),
            _ => Ok(()),
        }
    }
}

/// The calling thread's slot, if it has one.
fn slot() -> Option<&'static Slot> {
    // SAFETY: the block is the thread's own; slots are never freed.
    unsafe { (*tls()).slot.as_ref() }
}

/// Gives the calling thread a slot, or none. Under the lock of the state.
fn set_slot(slot: Option<&'static Slot>) {
    let cells = slot.map_or(core::ptr::null(), |slot| {
        core::ptr::from_ref(slot.cells(false))
    });
    let block = tls();
    // SAFETY: the block is the thread's own.
    unsafe {
        if let Some(old) = (*block).slot.as_ref() {
            old.set_block(0);
        }
        (*block).slot = slot.map_or(core::ptr::null(), core::ptr::from_ref);
        (*block).cells = cells.cast();
    }
    if let Some(slot) = slot {
        slot.set_block(block.expose_provenance());
    }
}

/// Says whether the calls of the thread that counts in `slot` are being captured. Under the lock
/// of the state, which is what keeps the thread from ending meanwhile.
fn set_capturing(slot: &Slot, capturing: bool) {
    let block = core::ptr::with_exposed_provenance_mut::<Tls>(slot.block());
    if !block.is_null() {
        let cells: *const c_void = core::ptr::from_ref(slot.cells(capturing)).cast();
        // SAFETY: the thread is alive, as its slot has its block; the program orders its captures,
        // so that the thread does not read the word while another thread's call ends them.
        unsafe { (&raw mut (*block).cells).write_volatile(cells) };
    }
}

/// Gives the calling thread a place to count, and begins the session with the first.
pub fn new_thread() {
    let mut guard = STATE.lock();
    if guard.is_none() {
        *guard = State::new();
        if let Some(state) = guard.as_ref() {
            begin(state.settings);
        }
    }
    let Some(state) = guard.as_mut() else { return };
    OWNER.store(process_id(), Ordering::Relaxed);
    let slot = state
        .slots
        .iter()
        .copied()
        .find(|slot| slot.take())
        .unwrap_or_else(|| {
            let slot: &'static Slot =
                Box::leak(Box::new(Slot::new(|call| state.counter.first_limit(call))));
            state.slots.push(slot);
            slot
        });
    set_slot(Some(slot));
    drop(guard);
    // SAFETY: the key was made by `begin`; its value is a static's address.
    unsafe {
        libc::pthread_setspecific(
            THREAD_KEY.load(Ordering::Relaxed),
            core::ptr::from_ref(slot).cast(),
        );
    }
}

/// The process has made its first call.
fn begin(settings: &'static Settings) {
    extern "C" fn at_exit() {
        finish();
    }
    unsafe extern "C" fn thread_ends(slot: *mut c_void) {
        // SAFETY: the value is the address of a slot, which is never freed.
        leave(unsafe { &*slot.cast::<Slot>() });
    }
    log::set_level(settings.log);
    crate::start::tell_unavailable(settings);
    capture::start(settings, uncounted);
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::AcqRel) {
        return; // a forked child has the handlers already
    }
    let mut key = 0;
    // SAFETY: the handlers are functions of this library, which is never unloaded. Registered now,
    // the exit handler runs before those that the driver registered when it was initialised.
    unsafe {
        libc::pthread_key_create(&raw mut key, Some(thread_ends));
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
        libc::atexit(at_exit);
    }
    THREAD_KEY.store(key, Ordering::Relaxed);
}

/// A thread has ended: another may count where it did.
fn leave(slot: &'static Slot) {
    let mut guard = STATE.lock();
    set_slot(None);
    if let Some(state) = guard.as_mut() {
        let before = state.captures.len();
        state
            .captures
            .retain(|(_, owner)| !core::ptr::eq(*owner, slot));
        let lost = before - state.captures.len();
        CAPTURES.fetch_sub(i32::try_from(lost).unwrap_or(0), Ordering::SeqCst);
    }
    slot.leave();
    drop(guard);
    // SAFETY: always succeeds.
    if process_id() == unsafe { libc::gettid() } {
        capture::main_thread_leaves();
    }
}

/// Whether the runtime's function for `call` counts, though the driver's would.
pub fn attends(call: Call) -> bool {
    Calls::from_bits(ATTENDED.load(Ordering::Acquire)).contains(call)
}

/// Counts a call that the assembler did not count.
pub fn count(call: Call) {
    if let Some(slot) = slot() {
        slot.cell(call, is_capturing()).add();
    }
}

/// A call has been entered and goes on when this returns.
pub fn entered(call: Call) {
    match call.kind() {
        Kind::CaptureBegin => return capture_begins(),
        Kind::CaptureEnd => return,
        Kind::Profiler => {
            log::once!(
                Info,
                "the program controls the profiler itself, too: {call} is passed through"
            );
            return;
        }
        _ => {}
    }
    if QUIET.load(Ordering::Acquire) {
        return;
    }
    let Some(slot) = slot().filter(|_| !is_capturing()) else {
        return;
    };
    let mut guard = STATE.lock();
    let Some(state) = guard.as_mut() else { return };
    match state.counter.entered(call, &state.slots, slot) {
        Some(iteration) => reach(guard, Some(iteration)),
        None if state.turn.taken && call.kind() != Kind::Wait => wait_for_turn(guard),
        None => state.run_on(),
    }
}

/// A call that was followed has returned. `stream` is its first argument.
pub fn returned(call: Call, stream: usize, succeeded: bool) {
    match call.kind() {
        Kind::CaptureBegin => return capture_began(stream, succeeded),
        Kind::CaptureEnd => return capture_ended(stream),
        _ => {}
    }
    let Some(slot) = slot().filter(|_| !is_capturing()) else {
        return;
    };
    let mut guard = STATE.lock();
    let Some(state) = guard.as_mut() else { return };
    match state.counter.returned(call, &state.slots, slot) {
        Some(iteration) => reach(guard, Some(iteration)),
        None => state.run_on(),
    }
}

/// Moves the process on to where `iteration` begins, or to a count that starts again.
///
/// If another thread has the turn, it will go on to there; this one waits a while for that.
fn reach(mut guard: Guard<'_, Option<State>>, iteration: Option<u64>) {
    let Some(state) = guard.as_mut() else { return };
    state.turn.target = iteration;
    if state.turn.taken {
        return wait_for_turn(guard);
    }
    if state.has_nothing_at(iteration) {
        state.turn.done = iteration;
        return state.run_on();
    }
    state.turn.taken = true;
    QUIET.store(false, Ordering::Release);
    state.ask_rank();
    let _uncancelled = Uncancelled::new();
    loop {
        let Some(state) = guard.as_mut() else { return };
        let target = state.turn.target;
        if target == state.turn.done {
            state.turn.taken = false;
            state.run_on();
            break;
        }
        let edge = target.map_or(Edge::default(), |iteration| state.gate.advance(iteration));
        state.turn.closing = edge.close.is_some();
        if edge.open.is_some() {
            state.counter.keep_counting();
        }
        let (step, rank) = (&state.settings.step, state.rank);
        drop(guard);
        DRAINING.store(edge.close.is_some(), Ordering::SeqCst);
        let capturing = CAPTURES.load(Ordering::SeqCst) != 0;
        uncounted(&mut || {
            let by = By { step, rank };
            capture::switch(
                &Place {
                    iteration: target,
                    by: format_args!("{by}"),
                    capturing,
                },
                edge,
            );
        });
        DRAINING.store(false, Ordering::SeqCst);
        guard = STATE.lock();
        if let Some(state) = guard.as_mut() {
            state.turn.done = target;
        }
    }
    drop(guard);
    TURNS.fetch_add(1, Ordering::SeqCst);
    if WAITERS.load(Ordering::SeqCst) != 0 {
        wake(&TURNS, i32::MAX);
    }
}

/// Waits until the thread that has the turn has switched, for a bounded time.
fn wait_for_turn(guard: Guard<'_, Option<State>>) {
    let patience = match guard.as_ref() {
        Some(state) if state.turn.closing => CLOSING,
        _ => OPENING,
    };
    wait_for_next_turn(guard, patience);
}

/// Unlocks the state and waits until a turn ends, for `patience` at most.
fn wait_for_next_turn(guard: Guard<'_, Option<State>>, patience: Duration) {
    let turn = TURNS.load(Ordering::SeqCst);
    drop(guard);
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let deadline = std::time::Instant::now() + patience;
    while TURNS.load(Ordering::SeqCst) == turn {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            break;
        }
        wait(&TURNS, turn, left);
    }
    WAITERS.fetch_sub(1, Ordering::SeqCst);
}

/// Whether a stream capture is under way on the calling thread.
fn is_capturing() -> bool {
    // SAFETY: the block is the thread's own.
    let cells = unsafe { (*tls()).cells };
    slot().is_some_and(|slot| core::ptr::eq(cells, core::ptr::from_ref(slot.cells(true)).cast()))
}

/// A capture is about to begin: the driver must not be in the middle of starting to wait.
fn capture_begins() {
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    for _ in 0..50 {
        if !DRAINING.load(Ordering::SeqCst) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn capture_began(stream: usize, succeeded: bool) {
    let slot = slot().filter(|_| succeeded);
    let mut guard = STATE.lock();
    match (slot, guard.as_mut()) {
        (Some(slot), Some(state)) => {
            state.captures.push((stream, slot));
            set_capturing(slot, true);
        }
        _ => {
            CAPTURES.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A capture has ended, by success or by error. A relaxed capture may end on another thread.
fn capture_ended(stream: usize) {
    let Some(here) = slot() else { return };
    let mut guard = STATE.lock();
    let Some(state) = guard.as_mut() else { return };
    let is_on =
        |captures: &[(usize, &Slot)], slot| captures.iter().any(|(_, s)| core::ptr::eq(*s, slot));
    let mine = state
        .captures
        .iter()
        .position(|(s, slot)| *s == stream && core::ptr::eq(*slot, here));
    let Some(index) = mine.or_else(|| state.captures.iter().position(|(s, _)| *s == stream)) else {
        return;
    };
    let (_, owner) = state.captures.swap_remove(index);
    CAPTURES.fetch_sub(1, Ordering::SeqCst);
    set_capturing(owner, is_on(&state.captures, owner));
    if !state.gate.has_opened() && state.captures.is_empty() && state.counter.captured(&state.slots)
    {
        reach(guard, None);
    }
}

/// The process ends: closes the window and says what became of it. Once.
pub fn finish() {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 || owner != process_id() || FINISHED.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(mut guard) = STATE.lock_for(ENDING) else {
        return;
    };
    if guard.as_ref().is_some_and(|state| state.turn.taken) {
        wait_for_next_turn(guard, ENDING);
        match STATE.lock_for(ENDING) {
            Some(again) => guard = again,
            None => return,
        }
    }
    let Some(state) = guard.as_mut() else { return };
    if state.turn.taken {
        log::say!(
            Warn,
            "the process ends while a window is being switched: it is left as it is"
        );
        return;
    }
    // Nobody switches from here on.
    state.turn.taken = true;
    state.ask_rank();
    let iterations = state.counter.iterations(&state.slots);
    let closed = state.gate.finish();
    let settings = state.settings;
    let rank = state.rank;
    let captured = state.gate.captured().to_vec();
    let calls = Tally::of(&state.slots);
    drop(guard);
    let capturing = CAPTURES.load(Ordering::SeqCst) != 0;
    if closed.is_some() || settings.nvtx {
        uncounted(&mut || capture::finish(iterations, capturing));
    }
    if !settings.windows.is_empty() {
        say_what_became(settings, rank, &captured, iterations, &calls);
    }
}

/// Calls of a process by what they do.
struct Tally {
    graphs: u64,
    kernels: u64,
    waits: u64,
}

impl Tally {
    fn of(slots: &[&Slot]) -> Self {
        let sum = |kind: Kind| {
            let rows = CALLS.iter().filter(move |row| row.kind == kind);
            rows.flat_map(|row| slots.iter().map(|slot| slot.live(row.call).count()))
                .sum()
        };
        Self {
            graphs: sum(Kind::GraphLaunch),
            kernels: sum(Kind::KernelLaunch),
            waits: sum(Kind::Wait),
        }
    }
}

/// The last line.
fn say_what_became(
    settings: &Settings,
    rank: Rank,
    captured: &[tllmprof_config::Window],
    iterations: u64,
    calls: &Tally,
) {
    use core::fmt::Write;
    let by = By {
        step: &settings.step,
        rank,
    };
    if let (Some(ranks), Rank::Known(known)) = (&settings.ranks, rank)
        && !ranks.contains(known.unwrap_or(0))
    {
        log::say!(
            Info,
            "no window here by TLLMPROF_RANKS: {iterations} iterations by {by}"
        );
        return;
    }
    let mut text = String::new();
    for (what, are_captured) in [("captured", true), ("never opened", false)] {
        let windows: Vec<String> = settings
            .windows
            .as_slice()
            .iter()
            .filter(|window| captured.contains(window) == are_captured)
            .map(ToString::to_string)
            .collect();
        if !windows.is_empty() {
            let separator = if text.is_empty() { "" } else { "; " };
            let s = if windows.len() == 1 { "" } else { "s" };
            let _ = write!(text, "{separator}window{s} {} {what}", windows.join(","));
        }
    }
    let mut hint = String::new();
    if iterations == 0 && !matches!(settings.step, Step::Auto) {
        let Tally {
            graphs,
            kernels,
            waits,
        } = calls;
        let _ = write!(
            hint,
            "; it made {graphs} graph launches, {kernels} kernel launches and {waits} stream waits: try auto"
        );
    }
    log::say!(Info, "{text}: {iterations} iterations by {by}{hint}");
}

extern "C" fn before_fork() {
    // Held over the fork, so that the child finds the state whole; given up after a while, if the
    // fork comes from a signal handler that interrupted us.
    if let Some(guard) = STATE.lock_for(Duration::from_millis(20)) {
        core::mem::forget(guard);
        FORKING.store(true, Ordering::Relaxed);
    }
}

/// Whether [`before_fork`] has got the lock.
static FORKING: AtomicBool = AtomicBool::new(false);

extern "C" fn after_fork_in_parent() {
    if FORKING.swap(false, Ordering::Relaxed) {
        STATE.release();
    }
}

/// The child starts anew: nothing counted, nothing open, one thread.
extern "C" fn after_fork_in_child() {
    // SAFETY: the child has one thread.
    unsafe {
        STATE.break_open();
        capture::after_fork();
    }
    FORKING.store(false, Ordering::Relaxed);
    QUIET.store(false, Ordering::Relaxed);
    ATTENDED.store(Calls::ALL.bits(), Ordering::Relaxed);
    WAITERS.store(0, Ordering::Relaxed);
    set_slot(None);
    OWNER.store(0, Ordering::Relaxed);
    FINISHED.store(false, Ordering::Relaxed);
    CAPTURES.store(0, Ordering::Relaxed);
    DRAINING.store(false, Ordering::Relaxed);
    // The parent's state is left where it is: the allocator may be in any condition.
    core::mem::forget(STATE.lock().take());
}

fn process_id() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

/// The barrier that lets threads count without fences: `membarrier(2)`, private expedited.
fn fence() -> bool {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: the commands take no memory of ours.
    let command =
        |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    command(PRIVATE_EXPEDITED)
        || (command(REGISTER_PRIVATE_EXPEDITED) && command(PRIVATE_EXPEDITED))
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Keeps the calling thread from being cancelled in the middle of a switch.
struct Uncancelled(libc::c_int);

impl Uncancelled {
    fn new() -> Self {
        let mut old = 0;
        // SAFETY: writes the old state to the local; PTHREAD_CANCEL_DISABLE is 1 in glibc.
        unsafe { pthread_setcancelstate(1, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: puts back the state that was in force; the old one is not asked for.
        unsafe { pthread_setcancelstate(self.0, core::ptr::null_mut()) };
    }
}
