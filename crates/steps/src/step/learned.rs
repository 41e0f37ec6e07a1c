//! Iterations by the wait that recurs once in each, learnt from the calls.

use tllmprof_calls::{Call, Direction, Kind};
use tllmprof_learn::{Asked, Boundary, Learner, Rule, State, Trail, Trails};

use super::counted::Counted;
use super::threads::{Slot, UNLIMITED};
use tllmprof_sync::Guard;

/// How close, in iterations, an edge must be for it to matter where iterations open.
const NEAR: u64 = 2;

/// An iteration that begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    pub iteration: u64,
    /// It can be relied on to be one.
    pub understood: bool,
}

impl Begun {
    /// By a rule that needs not be learnt.
    pub const fn counted(iteration: u64) -> Self {
        Self {
            iteration,
            understood: true,
        }
    }
}

/// What has been learnt at the end of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learnt {
    /// Nothing recurred.
    Nothing,
    /// Something recurred, not for long enough.
    Unsure,
    /// What recurred is gone.
    Gone,
    /// What an iteration is.
    Understood,
}

/// Where the threads note their calls, and what learns from them.
pub struct Memory {
    pub learner: Guard<'static, Learner>,
    pub trails: &'static Trails,
    /// A monotonic clock, in nanoseconds.
    pub clock: fn() -> u64,
}

/// Counts the iterations that are learnt.
pub struct Learned {
    memory: Memory,
    /// Iterations at the start that are not counted.
    warmup: u64,
    /// The last iteration that was given out as understood. The numbers never go back from there,
    /// though an early choice may prove wrong.
    given: Option<u64>,
    /// It matters where iterations open, and not only how many there are.
    near: bool,
    /// What the cells' limits are set for.
    asked: Asked,
    launches_asked: Option<[u32; 2]>,
}

/// Whether a call of this kind is seen when it returns.
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
    /// Counts from 0, after `warmup` iterations.
    pub fn new(memory: Memory, warmup: u64) -> Self {
        let mut learned = Self {
            memory,
            warmup,
            given: None,
            near: true,
            asked: Asked::ALL,
            launches_asked: None,
        };
        learned.memory.learner.begin(learned.memory.trails);
        learned
    }

    /// The limit of the cell for `what`, of a thread that has called it `count` times.
    pub fn limit(&self, what: Counted, thread: u32, count: u64) -> u64 {
        let asks = match what {
            // An engine that is known may yet come to its step.
            Counted::Named | Counted::Python => self.may_give_way(),
            Counted::Call(call) => match call.kind() {
                kind if kind.launches() => {
                    let threads = self.launches_asked.unwrap_or_default();
                    self.launches_asked.is_some() && threads.contains(&thread)
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

    /// A launch has been entered: an iteration may open before it goes on.
    pub fn launched(&mut self, slots: &[&Slot], slot: &Slot) -> Option<Begun> {
        let Memory { learner, clock, .. } = &mut self.memory;
        let boundary = learner.launched(slot.thread(), clock);
        let begun = boundary.and_then(|boundary| self.begun(boundary));
        self.set_limits(slots);
        begun
    }

    /// A copy or wait has returned.
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
        if trails.of(thread).newest() != wait.map_or(Trail::COPY_TO_HOST, Trail::wait) {
            // The runtime led to another call than its name says.
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

    /// Iterations that are over.
    pub fn iterations(&self) -> u64 {
        let detected = self.memory.learner.detected().saturating_sub(self.warmup);
        detected.max(self.given.unwrap_or(0))
    }

    /// The first iteration that has not begun.
    pub fn next(&self) -> u64 {
        let given = self.given.map_or(0, |given| given.saturating_add(1));
        self.iterations().max(given)
    }

    /// Counts from 0 again; what is known stays. Another rule may take over again.
    pub fn restart(&mut self, slots: &[&Slot]) {
        self.memory.learner.restart();
        self.give_way(slots);
    }

    /// Another rule may take over again.
    pub fn give_way(&mut self, slots: &[&Slot]) {
        self.given = None;
        for slot in slots {
            for what in [Counted::Named, Counted::Python] {
                slot.live(what).set_limit(0);
            }
        }
    }

    /// A window has opened by what was learnt.
    pub fn rely(&mut self) {
        self.memory.learner.rely();
    }

    /// Whether another rule may take over: no iteration has been relied on yet.
    pub fn may_give_way(&self) -> bool {
        self.given.is_none()
    }

    /// What has been learnt.
    pub fn learnt(&self) -> Learnt {
        let learner = &self.memory.learner;
        match learner.state() {
            State::Learning => Learnt::Nothing,
            State::Lost => Learnt::Gone,
            State::Settled if learner.understands() => Learnt::Understood,
            State::Settled => Learnt::Unsure,
        }
    }

    /// What an iteration is.
    pub fn rule(&self) -> Option<Rule> {
        self.memory.learner.rule().copied()
    }

    /// Lets the threads run up to where `iteration` begins; `None`: nobody asks for any.
    pub fn run_to(&mut self, slots: &[&Slot], iteration: Option<u64>) {
        let over = self.iterations();
        self.near = iteration.is_some_and(|next| next.saturating_sub(over) <= NEAR);
        self.set_limits(slots);
    }

    /// Sets the cells' limits where what is asked about has changed.
    fn set_limits(&mut self, slots: &[&Slot]) {
        let learner = &self.memory.learner;
        let asked = learner.asks(self.near);
        let launches = learner.asks_for_launch(self.near);
        if asked == self.asked && launches == self.launches_asked {
            return;
        }
        (self.asked, self.launches_asked) = (asked, launches);
        for slot in slots {
            for what in Counted::all().filter(|what| what.counts()) {
                let cell = slot.live(what);
                cell.set_limit(self.limit(what, slot.thread(), cell.count()));
            }
        }
    }
}
