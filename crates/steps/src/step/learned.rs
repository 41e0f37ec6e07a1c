//! Counts iterations at a wait for the GPU that recurs once in each iteration. The learner finds this wait in the
//! calls.

use tllmprof_calls::{Call, CallPurpose, Direction};
use tllmprof_learn::{
    Boundary, EndingCalls, Inner, Launches, LearnedRule, Learner, LearnerState, Trail, Trails,
};

use super::counted::Counted;
use super::engine_wait::EngineWait;
use super::threads::{Slot, UNLIMITED};
use tllmprof_sync::Guard;

/// If a window opens or closes within this number of iterations, each iteration has to be found at the exact call where
/// it begins.
const NEAR: u64 = 2;

/// An iteration that begins, and a flag for the certainty of the learner (which searches the calls for a pattern).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    pub iteration: u64,
    /// True if the learner (which searches the calls for a pattern) is certain that this is an iteration.
    pub understood: bool,
}

impl Begun {
    /// Returns an iteration that was counted by a rule that is not learnt, so it is certain.
    pub const fn counted(iteration: u64) -> Self {
        Self {
            iteration,
            understood: true,
        }
    }
}

/// The state of the learner, which searches the calls for a pattern that recurs once in each iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learnt {
    /// The learner has found no pattern that recurs in the calls.
    Nothing,
    /// The learner has found a pattern that recurs, but not for long enough to rely on it.
    Unsure,
    /// The learner had found a pattern to rely on, but it has stopped recurring.
    Gone,
    /// The learner has found a pattern to rely on, and it still recurs: each iteration begins at a
    /// known call.
    Understood,
    /// The module of a known engine is in the process, but its step function has not been called. The learner's pattern
    /// counts no iterations meanwhile.
    AwaitsEngine,
}

/// The learner, and the trails that it reads: for each thread, the list in which the thread notes its recent calls.
pub struct Memory {
    pub learner: Guard<'static, Learner>,
    pub trails: &'static Trails,
    /// A function that returns the time of a monotonic clock, in nanoseconds.
    pub clock: fn() -> u64,
    /// A function that returns the number of imports so far of modules of known engines whose step function is awaited;
    /// 0 if no such module is in the process.
    pub engine_imports: fn() -> u32,
}

/// Counts iterations with a rule that the learner finds in the calls.
pub struct Learned {
    memory: Memory,
    /// The number of iterations at the start that are not counted (warm-up).
    warmup: u64,
    /// The last iteration that was reported since the learner has been certain of the pattern in the calls; `None`
    /// before that. The iterations after it get higher numbers, even if the learner chooses another pattern.
    given: Option<u64>,
    engine_wait: EngineWait,
    /// True if a window will soon open or close, so that each iteration has to be found at the exact call where it
    /// begins. Otherwise only the number of iterations matters.
    near: bool,
    /// True if the limits of the threads' counters have to be set again, because the learner may have to examine other
    /// calls now. A thread may count calls up to a limit without reporting them to the learner.
    is_stale: bool,
    /// True if a named function or range counts the iterations. The learnt pattern is then only compared with its
    /// count.
    only_observes: bool,
    /// The calls that the learner asked to examine when the limits of the threads' counters were last set. A thread
    /// reports a call only if its counter has exceeded the limit.
    asked: EndingCalls,
    launches_asked: Option<[u32; 2]>,
    launches: Launches,
    pass: Pass,
}

/// The launch that begins a pass through the program's loop, identified by its position among the thread's calls of the
/// same kind. If two passes in a row have the same number of these calls, the next pass is expected after that number
/// of calls. Until then the thread does not have to report its calls.
#[derive(Clone, Copy, Default)]
struct Pass {
    what: Option<Counted>,
    /// The number of calls of this kind that the thread had made when the last pass through its
    /// loop began.
    count: u64,
    /// The number of calls of this kind in the last complete pass.
    calls: u64,
    /// True if the thread has to report only the call that is expected to begin the next pass.
    is_awaited: bool,
}

/// Returns true if a call of this kind is examined when it returns, and not when a thread enters it.
const fn is_followed(kind: CallPurpose) -> bool {
    matches!(
        kind,
        CallPurpose::AsyncCopy(Direction::ToHost) | CallPurpose::Wait(_) | CallPurpose::Query(_)
    )
}

/// Adds a call to `trail`, the list of a thread's recent calls that the learner reads. Calls of kinds that the learner
/// does not use are left out. `args` has the arguments of the call.
pub fn note(trail: &Trail, call: Call, args: &[usize]) {
    match call.kind() {
        CallPurpose::KernelLaunch { handle } => {
            let kernel = args.get(usize::from(handle));
            trail.note_kernel(kernel.map_or(0, |&kernel| kernel as u64));
        }
        CallPurpose::GraphLaunch => trail.note_graph(),
        CallPurpose::AsyncCopy(Direction::ToHost) => trail.note(Trail::COPY_TO_HOST),
        CallPurpose::AsyncCopy(Direction::ToDevice) => trail.note(Trail::COPY_TO_DEVICE),
        CallPurpose::Wait(wait) | CallPurpose::Query(wait) => trail.note(Trail::wait(wait)),
        _ => {}
    }
}

impl Learned {
    /// Returns a counter whose iteration 0 comes after `warmup` iterations that are not counted.
    ///
    /// If `inner` is true, repetitions inside the learnt pattern are counted as iterations, if there are any.
    pub fn new(memory: Memory, warmup: u64, inner: bool) -> Self {
        let mut learned = Self {
            memory,
            warmup,
            given: None,
            engine_wait: EngineWait::default(),
            near: true,
            is_stale: false,
            only_observes: false,
            asked: EndingCalls::ALL,
            launches_asked: None,
            launches: Launches::All,
            pass: Pass::default(),
        };
        learned.memory.learner.begin(learned.memory.trails, inner);
        learned
    }

    /// Makes a named function or range count the iterations from now on. The learner then only observes: its pattern is
    /// compared with the count of the function or range, and does not change this count.
    pub fn only_observe(&mut self) {
        self.only_observes = true;
        self.near = false;
        self.is_stale = true;
    }

    /// Returns the limit up to which a thread may count `what` without reporting it. The thread has made
    /// `count` calls of this kind so far.
    pub fn limit(&self, what: Counted, thread: u32, count: u64) -> u64 {
        let asks = match what {
            // The step function of a known engine may be called later. Its calls may then define the iterations (see
            // `Counter::entered`), so they have to be reported. This also holds while a window is open: a later call
            // may define the iterations after the window has closed.
            Counted::Named | Counted::Python => !self.only_observes,
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
                _ => return count.saturating_add(u64::from(EndingCalls::SAMPLE) - 1),
            },
        };
        if asks { 0 } else { UNLIMITED }
    }

    fn asks(&self, call: Call) -> bool {
        call.kind()
            .waits_for()
            .map_or(self.asked.has_copies(), |wait| self.asked.has(wait))
    }

    /// Called when a thread has entered a launch of GPU work. Returns the iteration that begins before the
    /// launch; `None` if no iteration begins there.
    pub fn launched(&mut self, what: Counted, slots: &[&Slot], slot: &Slot) -> Option<Begun> {
        let Memory {
            learner,
            trails,
            clock,
            ..
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

    /// Called at each launch that may begin a pass through the program's loop. `begins` is true if the launch begins
    /// a pass. If the next pass is expected after a known number of calls, lets the thread run without reporting its
    /// calls until then.
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

    /// Called when a copy or a wait has returned. Returns the iteration that begins now; `None` if none begins.
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
            ..
        } = &mut self.memory;
        let wait = call.kind().waits_for();
        if trails.get(thread).newest() != wait.map_or(Trail::COPY_TO_HOST, Trail::wait) {
            // The newest call in the trail (the thread's list of recent calls) is not the call that has returned: the
            // function of the CUDA runtime has made another driver call than its name suggests. So the learner does not
            // examine this call.
            return None;
        }
        let asks = wait.map_or(self.asked.has_copies(), |wait| self.asked.has(wait));
        let boundary = match wait {
            _ if !asks => {
                learner.missed(trails, thread, EndingCalls::SAMPLE);
                None
            }
            None => learner.copied_to_host(trails, thread, self.near, clock),
            Some(wait) => learner.returned(trails, thread, wait, clock),
        };
        let begun = boundary.and_then(|boundary| self.begun(boundary));
        self.set_limits(slots);
        cell.set_limit(self.limit(call.into(), thread, cell.count()));
        begun
    }

    fn begun(&mut self, boundary: Boundary) -> Option<Begun> {
        let understood = self.memory.learner.understands();
        let mut found = boundary.iteration;
        if self.awaits_engine() {
            let (imports, now) = ((self.memory.engine_imports)(), (self.memory.clock)());
            if !self.engine_wait.begins(imports, understood, now) {
                return None;
            }
            // The periods so far may include the engine's warm-up, and none of them was reported as an iteration. So
            // the count begins at 0 now.
            self.memory.learner.restart();
            found = self.memory.learner.detected();
        }
        let number = found.checked_sub(self.warmup)?;
        let iteration = number.max(self.given.map_or(0, |given| given + 1));
        if understood || self.given.is_some() {
            self.given = Some(iteration);
        }
        Some(Begun {
            iteration,
            understood,
        })
    }

    /// Returns true if the step function of a known engine is expected, so that the learnt pattern counts no
    /// iterations.
    fn awaits_engine(&self) -> bool {
        !self.only_observes
            && self.given.is_none()
            && !self.engine_wait.is_over()
            && (self.memory.engine_imports)() > 0
    }

    /// Called when a stream capture has ended. An engine that captures streams may still be in its warm-up.
    pub fn captured(&mut self) {
        self.engine_wait.interrupt();
    }

    /// Returns the number of iterations that have ended.
    pub fn iterations(&self) -> u64 {
        if self.awaits_engine() {
            return 0;
        }
        let Memory {
            learner, trails, ..
        } = &self.memory;
        let detected = learner.launched_whole(trails).saturating_sub(self.warmup);
        detected.max(self.given.unwrap_or(0))
    }

    /// Returns the number of the first iteration that has not begun.
    pub fn next(&self) -> u64 {
        let given = self.given.map_or(0, |given| given.saturating_add(1));
        self.iterations().max(given)
    }

    /// Restarts counting at 0. The learnt pattern is kept. From now on a named function or range may
    /// define the iterations instead of the pattern.
    pub fn restart(&mut self, slots: &[&Slot]) {
        self.memory.learner.restart();
        self.is_stale = true;
        self.give_way(slots);
    }

    /// Returns the number of graph launches that all threads have made. After `u32::MAX` it continues at 0.
    pub fn graphs(&self) -> u32 {
        self.memory.trails.graphs()
    }

    /// Allows a named function or range to define the iterations instead of the learnt pattern.
    pub fn give_way(&mut self, slots: &[&Slot]) {
        self.given = None;
        for slot in slots {
            for what in [Counted::Named, Counted::Python] {
                slot.live(what).set_limit(0);
            }
        }
    }

    /// Called when a window opens or is requested while the learnt pattern defines the iterations. From now on the
    /// learner does not treat these iterations as parts of longer ones.
    pub fn rely(&mut self) {
        self.memory.learner.rely();
        self.is_stale = true;
    }

    /// Called when a window opens while the learnt pattern defines the iterations. From now on the pattern counts as
    /// reliable as long as it recurs.
    pub fn keep_reliance(&mut self) {
        self.memory.learner.keep_reliance();
    }

    /// Returns true if no iteration has been reported as certain since the count began, or since the latest call of
    /// [`Learned::restart`] or [`Learned::give_way`]. Then a named function or range that defines the iterations from
    /// now on may count them from 0.
    pub fn may_give_way(&self) -> bool {
        self.given.is_none()
    }

    /// Returns the state of the learner, which searches the calls for a pattern: no pattern, an uncertain one, one that
    /// has ended, or one that is understood. While an engine's step function is expected, the state is
    /// [`Learnt::AwaitsEngine`] in any case.
    pub fn learnt(&self) -> Learnt {
        let learner = &self.memory.learner;
        if self.awaits_engine() {
            return Learnt::AwaitsEngine;
        }
        match learner.state() {
            LearnerState::Learning => Learnt::Nothing,
            LearnerState::Lost => Learnt::Gone,
            LearnerState::Settled if learner.understands() => Learnt::Understood,
            LearnerState::Settled => Learnt::Unsure,
        }
    }

    /// Returns the rule that the learner has found in the calls; `None` if it has found no rule yet.
    pub fn rule(&self) -> Option<LearnedRule> {
        self.memory.learner.rule()
    }

    /// Returns the inner repetitions within an iteration, if there are any.
    pub fn inner(&self) -> Option<Inner> {
        self.memory.learner.inner()
    }

    /// Lets the threads run without reporting each call until shortly before `iteration` begins. `None` means that no
    /// particular iteration has to be found from now on.
    pub fn run_to(&mut self, slots: &[&Slot], iteration: Option<u64>) {
        let near = iteration.is_some_and(|next| self.is_near(next));
        if near != self.near || self.is_stale {
            self.near = near;
            self.set_limits(slots);
        }
    }

    /// Returns true if iteration `next` is so close that iterations have to be found at the exact call where
    /// they begin.
    fn is_near(&self, next: u64) -> bool {
        // The program may already have made the launches of the next iteration, which is not detected yet, because
        // the learner detects an iteration only at its end.
        let detected = self.memory.learner.detected() + 1;
        let most = detected.saturating_sub(self.warmup);
        let most = most.max(self.given.unwrap_or(0));
        next.saturating_sub(most) <= NEAR && next.saturating_sub(self.iterations()) <= NEAR
    }

    /// Sets the limits up to which threads may count calls without reporting them. Does nothing if the learner
    /// examines the same calls as before.
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
