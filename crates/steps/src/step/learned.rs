//! Counts iterations by the wait that recurs once in each, which is learnt from the calls.

use tllmprof_calls::{Call, Direction, Kind};
use tllmprof_learn::{Asked, Boundary, Inner, Launches, Learner, Rule, State, Trail, Trails};

use super::counted::Counted;
use super::threads::{Slot, UNLIMITED};
use tllmprof_sync::Guard;

/// The distance from an edge, in iterations, within which it matters where iterations open.
const NEAR: u64 = 2;

/// An iteration that begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    pub iteration: u64,
    /// True if it is certain to be one.
    pub understood: bool,
}

impl Begun {
    /// An iteration by a rule that does not have to be learnt.
    pub const fn counted(iteration: u64) -> Self {
        Self {
            iteration,
            understood: true,
        }
    }
}

/// The state of learning at the end of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learnt {
    /// Nothing recurred.
    Nothing,
    /// Something recurred, but not for long enough.
    Unsure,
    /// The wait that recurred has stopped recurring.
    Gone,
    /// The iteration is understood.
    Understood,
}

/// The threads' notes of their calls, and the learner that reads them.
pub struct Memory {
    pub learner: Guard<'static, Learner>,
    pub trails: &'static Trails,
    /// A monotonic clock, in nanoseconds.
    pub clock: fn() -> u64,
}

/// Counts the iterations that are learnt.
pub struct Learned {
    memory: Memory,
    /// The number of iterations at the start that are not counted.
    warmup: u64,
    /// The last iteration that was reported as understood. The numbers never decrease after that, even if an
    /// early choice proves wrong.
    given: Option<u64>,
    /// True if it matters where iterations open, and not only how many there are.
    near: bool,
    /// True if the learner's questions may have changed since the limits were set.
    is_stale: bool,
    /// True if something by name counts the iterations, and these are only compared with them.
    only_observes: bool,
    /// The questions for which the cells' limits are set.
    asked: Asked,
    launches_asked: Option<[u32; 2]>,
    launches: Launches,
    pass: Pass,
}

/// The launch that begins a pass, as one of a thread's calls of this kind. If two passes in a row have the
/// same number of these calls, the thread runs freely until the next pass is expected to begin.
#[derive(Clone, Copy, Default)]
struct Pass {
    what: Option<Counted>,
    /// The thread's number of these calls when the last pass began.
    count: u64,
    /// The number of calls in the last pass.
    calls: u64,
    /// True if the thread only stops at that call.
    is_awaited: bool,
}

/// Returns true if a call of this kind is handled when it returns.
const fn is_followed(kind: Kind) -> bool {
    matches!(kind, Kind::AsyncCopy(Direction::ToHost) | Kind::Wait(_))
}

/// Notes a call in a trail.
pub fn note(trail: &Trail, call: Call, args: &[usize]) {
    match call.kind() {
        Kind::KernelLaunch { handle } => {
            let kernel = args.get(usize::from(handle));
            trail.note_kernel(kernel.map_or(0, |&kernel| kernel as u64));
        }
        Kind::GraphLaunch => trail.note_graph(),
        Kind::AsyncCopy(Direction::ToHost) => trail.note(Trail::COPY_TO_HOST),
        Kind::AsyncCopy(Direction::ToDevice) => trail.note(Trail::COPY_TO_DEVICE),
        Kind::Wait(wait) => trail.note(Trail::wait(wait)),
        _ => {}
    }
}

impl Learned {
    /// A count from 0, after `warmup` iterations.
    ///
    /// `inner`: iterations are the parts of what recurs, if it has any.
    pub fn new(memory: Memory, warmup: u64, inner: bool) -> Self {
        let mut learned = Self {
            memory,
            warmup,
            given: None,
            near: true,
            is_stale: false,
            only_observes: false,
            asked: Asked::ALL,
            launches_asked: None,
            launches: Launches::All,
            pass: Pass::default(),
        };
        learned.memory.learner.begin(learned.memory.trails, inner);
        learned
    }

    /// From now on something by name counts the iterations: its cells are not touched, and it does not matter
    /// where iterations open.
    pub fn only_observe(&mut self) {
        self.only_observes = true;
        self.near = false;
        self.is_stale = true;
    }

    /// Returns the limit of the cell for `what`, of a thread that has called it `count` times.
    pub fn limit(&self, what: Counted, thread: u32, count: u64) -> u64 {
        let asks = match what {
            // A known engine may still begin its steps.
            Counted::Named | Counted::Python => self.may_give_way(),
            Counted::Call(call) => match call.kind() {
                kind if kind.launches() => {
                    let threads = self.launches_asked.unwrap_or_default();
                    let is_pending = self.launches_asked.is_some() && threads.contains(&thread);
                    match self.launches {
                        Launches::After(launches) if !is_pending => {
                            return count.saturating_add(u64::from(launches));
                        }
                        Launches::All => true,
                        Launches::Of(of) => is_pending || of == thread,
                        Launches::None | Launches::After(_) => is_pending,
                    }
                }
                kind if !is_followed(kind) => !kind.counts(),
                _ if self.asks(call) => true,
                _ => return count.saturating_add(u64::from(Asked::SAMPLE) - 1),
            },
        };
        if asks { 0 } else { UNLIMITED }
    }

    fn asks(&self, call: Call) -> bool {
        call.kind()
            .waits_for()
            .map_or(self.asked.has_copies(), |wait| self.asked.has(wait))
    }

    /// Called when a launch has been entered: an iteration may open before it continues.
    pub fn launched(&mut self, what: Counted, slots: &[&Slot], slot: &Slot) -> Option<Begun> {
        let Memory {
            learner,
            trails,
            clock,
        } = &mut self.memory;
        let passes = learner.passes_found();
        let boundary = learner.launched(trails, slot.thread(), clock);
        let begins = learner.passes_found() != passes;
        let begun = boundary.and_then(|boundary| self.begun(boundary));
        self.set_limits(slots);
        match self.launches {
            Launches::Of(thread) if thread == slot.thread() => self.await_pass(what, slot, begins),
            Launches::After(_) => {
                let cell = slot.live(what);
                cell.set_limit(self.limit(what, slot.thread(), cell.count()));
            }
            _ => {}
        }
        begun
    }

    /// Lets the thread run until the next pass is expected, if one `begins` now.
    fn await_pass(&mut self, what: Counted, slot: &Slot, begins: bool) {
        let cell = slot.live(what);
        let pass = self.pass;
        let mut is_expected = false;
        if begins {
            let calls = cell.count().saturating_sub(pass.count);
            is_expected = pass.what == Some(what) && calls == pass.calls;
            self.pass = Pass {
                what: Some(what),
                count: cell.count(),
                calls,
                ..pass
            };
        }
        let is_pending = self
            .launches_asked
            .is_some_and(|threads| threads.contains(&slot.thread()));
        let awaits = is_expected && !is_pending;
        if awaits != pass.is_awaited {
            self.pass.is_awaited = awaits;
            let limit = if awaits { UNLIMITED } else { 0 };
            for launch in Counted::all().filter(|what| what.launches()) {
                slot.live(launch).set_limit(limit);
            }
        }
        if awaits {
            cell.set_limit(cell.count() + self.pass.calls.saturating_sub(1));
        }
    }

    /// Called when a copy or wait has returned.
    pub fn returned(&mut self, call: Call, slots: &[&Slot], slot: &Slot) -> Option<Begun> {
        let cell = slot.live(call);
        if cell.count() <= cell.limit() {
            return None;
        }
        let thread = slot.thread();
        let Memory {
            learner,
            trails,
            clock,
        } = &mut self.memory;
        let wait = call.kind().waits_for();
        if trails.get(thread).newest() != wait.map_or(Trail::COPY_TO_HOST, Trail::wait) {
            // The runtime led to another call than its name suggests.
            return None;
        }
        let asks = wait.map_or(self.asked.has_copies(), |wait| self.asked.has(wait));
        let boundary = match wait {
            _ if !asks => {
                learner.missed(trails, thread, Asked::SAMPLE);
                None
            }
            None => learner.copied_to_host(trails, thread, clock),
            Some(wait) => learner.returned(trails, thread, wait, clock),
        };
        let begun = boundary.and_then(|boundary| self.begun(boundary));
        self.set_limits(slots);
        cell.set_limit(self.limit(call.into(), thread, cell.count()));
        begun
    }

    fn begun(&mut self, boundary: Boundary) -> Option<Begun> {
        let number = boundary.iteration.checked_sub(self.warmup)?;
        let iteration = number.max(self.given.map_or(0, |given| given + 1));
        let understood = self.memory.learner.understands();
        if understood || self.given.is_some() {
            self.given = Some(iteration);
        }
        Some(Begun {
            iteration,
            understood,
        })
    }

    /// Returns the number of iterations that are over.
    pub fn iterations(&self) -> u64 {
        let Memory {
            learner, trails, ..
        } = &self.memory;
        let detected = learner.launched_whole(trails).saturating_sub(self.warmup);
        detected.max(self.given.unwrap_or(0))
    }

    /// Returns the first iteration that has not begun.
    pub fn next(&self) -> u64 {
        let given = self.given.map_or(0, |given| given.saturating_add(1));
        self.iterations().max(given)
    }

    /// Restarts the count at 0; what was learnt stays. Another rule may take over again.
    pub fn restart(&mut self, slots: &[&Slot]) {
        self.memory.learner.restart();
        self.is_stale = true;
        self.give_way(slots);
    }

    /// Returns the number of graph launches of all threads. It wraps.
    pub fn graphs(&self) -> u32 {
        self.memory.trails.graphs()
    }

    /// Allows another rule to take over again.
    pub fn give_way(&mut self, slots: &[&Slot]) {
        self.given = None;
        for slot in slots {
            for what in [Counted::Named, Counted::Python] {
                slot.live(what).set_limit(0);
            }
        }
    }

    /// Called when a window has opened by what was learnt.
    pub fn rely(&mut self) {
        self.memory.learner.rely();
        self.is_stale = true;
    }

    /// Returns true if another rule may take over: no iteration has been relied on yet.
    pub fn may_give_way(&self) -> bool {
        self.given.is_none()
    }

    /// Returns the state of learning.
    pub fn learnt(&self) -> Learnt {
        let learner = &self.memory.learner;
        match learner.state() {
            State::Learning => Learnt::Nothing,
            State::Lost => Learnt::Gone,
            State::Settled if learner.understands() => Learnt::Understood,
            State::Settled => Learnt::Unsure,
        }
    }

    /// Returns what an iteration is.
    pub fn rule(&self) -> Option<Rule> {
        self.memory.learner.rule()
    }

    /// Returns the parts of an iteration.
    pub fn inner(&self) -> Option<Inner> {
        self.memory.learner.inner()
    }

    /// Lets the threads run until `iteration` begins; `None`: no iteration matters any more.
    pub fn run_to(&mut self, slots: &[&Slot], iteration: Option<u64>) {
        let near = iteration.is_some_and(|next| self.is_near(next));
        if near != self.near || self.is_stale {
            self.near = near;
            self.set_limits(slots);
        }
    }

    /// Returns true if so few iterations remain until `next` that it matters where they open.
    fn is_near(&self, next: u64) -> bool {
        // One more than detected may be launched as a whole. Whether it is takes longer to find out.
        let detected = self.memory.learner.detected() + 1;
        let most = detected.saturating_sub(self.warmup);
        let most = most.max(self.given.unwrap_or(0));
        next.saturating_sub(most) <= NEAR && next.saturating_sub(self.iterations()) <= NEAR
    }

    /// Sets the cells' limits, if the questions have changed.
    fn set_limits(&mut self, slots: &[&Slot]) {
        self.is_stale = false;
        let learner = &self.memory.learner;
        let asked = learner.asks(self.near);
        let launches = learner.asks_for_launch(self.near);
        let passes = learner.asks_for_launches();
        if (asked, launches, passes) == (self.asked, self.launches_asked, self.launches) {
            return;
        }
        (self.asked, self.launches_asked, self.launches) = (asked, launches, passes);
        self.pass.is_awaited = false;
        let by_name = !self.only_observes;
        let is_own = |what: &Counted| what.counts() && (by_name || !what.is_by_name());
        for slot in slots {
            for what in Counted::all().filter(is_own) {
                let cell = slot.live(what);
                cell.set_limit(self.limit(what, slot.thread(), cell.count()));
            }
        }
    }
}
