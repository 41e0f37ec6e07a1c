//! Turns the calls of many threads into one sequence of iterations.
//!
//! The steps of all threads are ordered by the time at which they begin. An iteration's number is its position in
//! that order, and the iteration lasts until the next one begins, on any thread. A call gets its number with the
//! session's lock held, right before it continues to the intercepted function (a wait: right before it returns). So the
//! order of the numbers is the order in which steps begin. While a window is being opened or closed no call gets a
//! number, unless its thread must not wait any longer.

pub mod comparison;
pub mod counted;
mod engine_wait;
pub mod learned;
pub mod ledger;
pub mod numbering;
pub mod open;
pub mod polls;
pub mod threads;

use tllmprof_calls::{Call, CallSet};
use tllmprof_config::{Settings, Step, Warmup};
use tllmprof_learn::Inner;

use comparison::{ComparisonProgress, Mismatch, RuleComparison};
use counted::Counted;
use learned::{Begun, Learned, Learnt, Memory};
use ledger::{Fence, Ledger};
use numbering::Numbering;
use threads::{Slot, UNLIMITED};

/// The rule that defines an iteration, with the current state of counting.
pub enum StepRule {
    /// The rule is a fixed number of calls of one kind.
    Calls(Ledger),
    /// The rule is a wait for the GPU that recurs once in each iteration. The learner finds this
    /// wait.
    Learned(Learned),
}

/// The effects that a call has when a thread enters it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entered {
    /// The iteration that begins with the call, if any.
    pub opens: Option<Begun>,
    /// The iteration that ends when the call returns, if any.
    pub ends: Option<u64>,
    /// The first iteration that the calls of a known engine's step function count; `None` unless these calls replace,
    /// from this call on, a learnt pattern that has counted iterations.
    pub replaced: Option<u64>,
}

/// The number of iterations in a row without a stream capture after which the warm-up is over.
pub const WARMUP_ITERATIONS: u64 = 32;
/// The number of stream captures after which the warm-up is over, if the program launched graphs before each of them.
/// A program that launches graphs between its captures does its regular work. In a warm-up, an engine captures graphs
/// of many sizes and launches none of them in between.
pub const WARMUP_CAPTURES: u32 = 64;

/// Counts the iterations of a process.
pub struct Counter {
    rule: StepRule,
    numbering: Numbering,
    /// True if counting restarts whenever a stream capture ends.
    restarts: bool,
    /// The number of stream captures in a row that each came after a graph launch. A capture without such a launch
    /// resets it to 0.
    captures: u32,
    /// The number of graph launches that the process had made before the latest stream capture.
    graphs: u32,
    /// True if iteration 0 is open but has not been reported yet. Only possible if the counted calls close
    /// iterations.
    to_begin: bool,
    /// True if the settings define the length of the warm-up.
    warmup_given: bool,
    /// The comparison of an engine's steps with the pattern that recurs in the CUDA calls; `None` if no comparison is
    /// in progress.
    comparison: Option<RuleComparison>,
    fence: Fence,
}

impl Counter {
    /// Returns a counter with the step rule and the warm-up from the settings.
    ///
    /// `memory` returns the memory of the learner (which finds a rule in the calls). It is called only if the rule has
    /// to be learnt.
    pub fn new(settings: &Settings, fence: Fence, memory: impl FnOnce() -> Memory) -> Self {
        let (warmup, restarts) = match settings.warmup {
            Warmup::Iterations(count) => (count, false),
            Warmup::Capture => (0, true),
        };
        let (rule, every, closes) = match &settings.step {
            Step::Call { call, every, .. } => (
                StepRule::Calls(Ledger::new(Counted::Call(*call), fence)),
                *every,
                call.kind().waits(),
            ),
            Step::Auto => (
                StepRule::Learned(Learned::new(memory(), warmup, false)),
                1,
                false,
            ),
            Step::AutoInner => (
                StepRule::Learned(Learned::new(memory(), warmup, true)),
                1,
                false,
            ),
            Step::Symbol { every, .. } | Step::Nvtx { every, .. } => (
                StepRule::Calls(Ledger::new(Counted::Named, fence)),
                *every,
                false,
            ),
            Step::Python { every, .. } => (
                StepRule::Calls(Ledger::new(Counted::Python, fence)),
                *every,
                false,
            ),
        };
        let numbering = Numbering {
            every,
            closes,
            warmup,
            start: 0,
        };
        Self {
            rule,
            numbering,
            restarts,
            captures: 0,
            graphs: 0,
            to_begin: numbering.begins_open(),
            warmup_given: settings.warmup_given,
            comparison: None,
            fence,
        }
    }

    /// Returns the first limit of thread number `thread` for `what`: the count up to which it need not report
    /// these calls.
    pub fn first_limit(&self, what: Counted, thread: u32) -> u64 {
        self.limit(what, thread, 0)
    }

    /// Returns the limit up to which a thread may count `what` without reporting it. The thread has made
    /// `count` calls of this kind so far.
    fn limit(&self, what: Counted, thread: u32, count: u64) -> u64 {
        let asks = match (&self.rule, &self.comparison) {
            _ if self.to_begin || !what.counts() => true,
            (StepRule::Calls(ledger), _) if ledger.what() == what => return ledger.first_limit(),
            (StepRule::Calls(_), Some(comparison)) if !what.is_by_name() => {
                return comparison.limit(what, thread, count);
            }
            (StepRule::Calls(_), _) => false,
            (StepRule::Learned(learned), _) => return learned.limit(what, thread, count),
        };
        if asks { 0 } else { UNLIMITED }
    }

    /// Updates the comparison of an engine's steps with the pattern in the CUDA calls, when a thread has entered
    /// `what`. Returns `None` if there is no comparison, or if `what` is the engine's step itself. Otherwise returns
    /// `Some`, which contains the mismatch if the comparison has just ended with one.
    pub fn compares_entered(
        &mut self,
        what: Counted,
        slots: &[&Slot],
        slot: &Slot,
    ) -> Option<Option<Mismatch>> {
        let comparison = self.comparison.as_mut().filter(|_| !what.is_by_name())?;
        let progress = match what.launches() {
            true => comparison.launched(what, slots, slot),
            false => ComparisonProgress::Continues,
        };
        Some(self.compared(progress, slots))
    }

    /// Updates the comparison of an engine's steps with the pattern in the CUDA calls, when a copy or a wait has
    /// returned. Returns `None` if there is no comparison. Otherwise returns `Some`, which contains the mismatch if the
    /// comparison has just ended with one.
    pub fn compares_returned(
        &mut self,
        call: Call,
        slots: &[&Slot],
        slot: &Slot,
    ) -> Option<Option<Mismatch>> {
        let progress = self.comparison.as_mut()?.returned(call, slots, slot);
        Some(self.compared(progress, slots))
    }

    /// Returns the mismatch, if `progress` says that the comparison has ended with one. At the end of the comparison,
    /// threads no longer have to report calls for it.
    fn compared(&mut self, progress: ComparisonProgress, slots: &[&Slot]) -> Option<Mismatch> {
        let ComparisonProgress::Ends(mismatch) = progress else {
            return None;
        };
        self.comparison = None;
        self.set_limits(slots);
        mismatch
    }

    /// Called when a thread has entered a call. Returns the iterations that the call begins and ends.
    ///
    /// A call that closes iterations is counted only when it returns.
    ///
    /// `may_replace` is called if the call may be the step function of a known engine. It returns true if this function
    /// may replace a learnt pattern that has counted iterations so far. Must return false while a window is open: all
    /// iterations of a window are counted by the same rule.
    pub fn entered(
        &mut self,
        what: Counted,
        slots: &[&Slot],
        slot: &Slot,
        may_replace: impl FnOnce() -> bool,
    ) -> Entered {
        let mut replaced = None;
        if what.is_by_name()
            && let StepRule::Learned(learned) = &self.rule
            && (learned.may_give_way() || may_replace())
        {
            replaced = self.follow(what, slots, slot);
        }
        let began = (self.to_begin && what.counts()).then(|| self.begin(slots));
        let entered = match &mut self.rule {
            StepRule::Calls(ledger) if ledger.what() == what && !self.numbering.closes => {
                let numbers = ledger.number(slots, slot);
                let last = numbers.clone().last();
                Entered {
                    opens: self.numbering.last_begun(numbers).map(Begun::counted),
                    ends: last.and_then(|last| self.numbering.ends_after(last)),
                    ..Entered::default()
                }
            }
            StepRule::Learned(learned) if what.launches() => Entered {
                opens: learned.launched(what, slots, slot),
                ..Entered::default()
            },
            _ => Entered::default(),
        };
        Entered {
            opens: entered.opens.or(began.map(Begun::counted)),
            replaced,
            ..entered
        }
    }

    /// Returns true if a call of `what` may get its number (its position among the counted calls) or begin an iteration
    /// when a thread enters it. A wait can do so only when it returns, unless iteration 0 has not been reported: then
    /// any call may begin it.
    pub fn orders_entered(&self, what: Counted) -> bool {
        !what.waits() || self.to_begin
    }

    /// Returns true if this call, which has returned, may get its number (its position among the counted calls) or
    /// begin an iteration now. A call within the limit of its thread's counter does neither.
    pub fn orders_returned(&self, call: Call, slot: &Slot) -> bool {
        let cell = slot.live(call);
        cell.count() > cell.limit()
            && match &self.rule {
                StepRule::Calls(ledger) => {
                    self.numbering.closes && ledger.what() == Counted::Call(call)
                }
                StepRule::Learned(_) => true,
            }
    }

    /// Returns true if a thread need not report that it enters a wait: the learner examines a wait when it returns.
    /// Returns false if the rule is not learnt and no learnt pattern is compared with it, or if iteration 0 has not
    /// been reported.
    pub const fn passes_entered_waits(&self) -> bool {
        let learns = matches!(self.rule, StepRule::Learned(_)) || self.comparison.is_some();
        learns && !self.to_begin
    }

    /// Called when a call has returned. If the call closes an iteration, returns the next iteration, which
    /// begins now.
    pub fn returned(&mut self, call: Call, slots: &[&Slot], slot: &Slot) -> Option<Begun> {
        match &mut self.rule {
            StepRule::Calls(ledger)
                if ledger.what() == Counted::Call(call) && self.numbering.closes =>
            {
                let numbers = ledger.number(slots, slot);
                self.numbering.last_begun(numbers).map(Begun::counted)
            }
            StepRule::Learned(learned) => learned.returned(call, slots, slot),
            _ => None,
        }
    }

    /// Called when a stream capture has ended. Returns true if counting restarts. Counting restarts only during the
    /// warm-up, so that a program that captures its graphs again later is not interrupted. The warm-up ends after
    /// [`WARMUP_ITERATIONS`] iterations in a row without a capture, or after [`WARMUP_CAPTURES`] captures with graph
    /// launches between them.
    pub fn captured(&mut self, slots: &[&Slot]) -> bool {
        if let StepRule::Learned(learned) = &mut self.rule {
            learned.captured();
        }
        if !self.restarts {
            return false;
        }
        if self.iterations(slots) >= WARMUP_ITERATIONS || self.captures_at_work() {
            self.restarts = false;
            if let StepRule::Learned(learned) = &mut self.rule {
                // The learnt pattern may be that of the engine's warm-up, which runs before the
                // engine's first step. So the engine's step function may still replace the pattern.
                learned.give_way(slots);
            }
            return false;
        }
        match &mut self.rule {
            StepRule::Calls(ledger) => {
                ledger.settle(slots);
                self.numbering.start = ledger.numbered();
            }
            StepRule::Learned(learned) => learned.restart(slots),
        }
        self.to_begin = self.numbering.begins_open();
        if self.to_begin {
            self.set_limits(slots);
        }
        true
    }

    /// Returns true if stream captures are part of the program's iterations: many captures in a row came
    /// after graph launches.
    pub const fn captures_are_work(&self) -> bool {
        self.captures >= WARMUP_CAPTURES
    }

    /// Counts a stream capture. Returns true if the program launched graphs before each of the latest
    /// [`WARMUP_CAPTURES`] captures, so that captures are part of its work. Returns false if the rule is not learnt.
    fn captures_at_work(&mut self) -> bool {
        let StepRule::Learned(learned) = &self.rule else {
            return false;
        };
        let graphs = learned.graphs();
        self.captures = match graphs == core::mem::replace(&mut self.graphs, graphs) {
            true => 0,
            false => self.captures + 1,
        };
        self.captures_are_work()
    }

    /// Returns true if the next stream capture makes counting restart.
    pub const fn may_restart(&self) -> bool {
        self.restarts
    }

    /// Called when a window opens or is requested. From then on, stream captures no longer restart the count.
    pub fn keep_counting(&mut self) {
        self.restarts = false;
        if let StepRule::Learned(learned) = &mut self.rule {
            learned.rely();
        }
    }

    /// Called when a window opens. From then on, a learnt pattern counts as reliable as long as it recurs.
    pub fn keep_reliance(&mut self) {
        if let StepRule::Learned(learned) = &mut self.rule {
            learned.keep_reliance();
        }
    }

    /// Lets the threads run without reporting each call until shortly before `iteration` begins. `None` means that no
    /// particular iteration has to be found from now on.
    pub fn run_to(&mut self, slots: &[&Slot], iteration: Option<u64>) {
        match (&mut self.rule, iteration) {
            (StepRule::Calls(ledger), None) => ledger.hand_out(slots, None),
            (StepRule::Calls(ledger), Some(iteration)) => {
                if let Some(call) = self.numbering.call_of(iteration) {
                    ledger.hand_out(slots, Some(call));
                }
            }
            (StepRule::Learned(learned), iteration) => learned.run_to(slots, iteration),
        }
    }

    /// Returns the calls at which a window may soon open or close. `iterations` is the number of iterations until the
    /// next window opens or closes. Returns no calls if this number is greater than 64, or if the threads may still
    /// count many calls by themselves.
    pub fn close_calls(&self, iterations: u64) -> CallSet {
        const CLOSE: u64 = 64;
        match &self.rule {
            StepRule::Calls(ledger) if ledger.is_close() && iterations <= CLOSE => {
                CallSet::which(|call| ledger.what() == Counted::Call(call))
            }
            StepRule::Learned(_) if iterations <= CLOSE => {
                CallSet::which(|call| call.kind().launches() || call.kind().waits())
            }
            _ => CallSet::NONE,
        }
    }

    /// Returns the number of iterations that have been counted so far.
    pub fn iterations(&mut self, slots: &[&Slot]) -> u64 {
        match &mut self.rule {
            StepRule::Calls(ledger) => {
                ledger.settle(slots);
                self.numbering.iterations(ledger.made(slots))
            }
            StepRule::Learned(learned) => learned.iterations(),
        }
    }

    /// Returns the number of the first iteration that has not begun.
    pub fn next(&mut self, slots: &[&Slot]) -> u64 {
        match &mut self.rule {
            StepRule::Calls(ledger) => {
                ledger.settle(slots);
                self.numbering.next(ledger.numbered())
            }
            StepRule::Learned(learned) => learned.next(),
        }
    }

    /// Called at the first call of the step function of a known engine, `what`, at which this function may replace the
    /// learnt pattern. From now on calls of this function are counted, and the learnt pattern is only compared with
    /// them. Such an engine captures streams in the middle of its work, so captures do not restart the count unless the
    /// settings define the warm-up.
    ///
    /// If the learnt pattern has counted iterations, their numbers continue, and the number of the iteration that
    /// begins now is returned.
    fn follow(&mut self, what: Counted, slots: &[&Slot], slot: &Slot) -> Option<u64> {
        let first = match &self.rule {
            StepRule::Learned(learned) if !learned.may_give_way() => Some(learned.next()),
            _ => None,
        };
        let ledger = match first {
            // Each call of the step function counts as one iteration, so the numbers of calls and iterations differ
            // only by the warm-up.
            Some(first) => {
                let call = first.saturating_add(self.numbering.warmup);
                Ledger::beginning_with(what, call, slots, slot, self.fence)
            }
            None => Ledger::new(what, self.fence),
        };
        let counted = StepRule::Calls(ledger);
        if let StepRule::Learned(learned) = core::mem::replace(&mut self.rule, counted) {
            self.comparison = Some(RuleComparison::new(learned, what, slots));
        }
        self.restarts &= self.warmup_given;
        self.set_limits(slots);
        first
    }

    /// Returns the kind of call that is counted; `None` if the rule is learnt.
    pub const fn counts(&self) -> Option<Counted> {
        match &self.rule {
            StepRule::Calls(ledger) => Some(ledger.what()),
            StepRule::Learned(_) => None,
        }
    }

    /// Returns the state of the learner, which finds the rule in the calls; `None` if the settings give the rule, or if
    /// an engine's step function is counted.
    pub fn learnt(&self) -> Option<Learnt> {
        match &self.rule {
            StepRule::Calls(_) => None,
            StepRule::Learned(learned) => Some(learned.learnt()),
        }
    }

    /// Returns the learnt rule; `None` if no rule has been learnt, if the settings give the rule, or if an engine's
    /// step function is counted.
    pub fn learnt_rule(&self) -> Option<tllmprof_learn::LearnedRule> {
        match &self.rule {
            StepRule::Calls(_) => None,
            StepRule::Learned(learned) => learned.rule(),
        }
    }

    /// Returns the learnt rule and the repetitions inside an iteration, if there are any.
    pub fn learnt_levels(&self) -> Option<(tllmprof_learn::LearnedRule, Option<Inner>)> {
        match &self.rule {
            StepRule::Calls(_) => None,
            StepRule::Learned(learned) => Some((learned.rule()?, learned.inner())),
        }
    }

    fn begin(&mut self, slots: &[&Slot]) -> u64 {
        self.to_begin = false;
        self.set_limits(slots);
        0
    }

    /// Sets the limits up to which threads need not report their calls, for all kinds of calls but the one
    /// that the ledger numbers.
    fn set_limits(&self, slots: &[&Slot]) {
        let StepRule::Calls(ledger) = &self.rule else {
            return;
        };
        for what in Counted::all().filter(|what| *what != ledger.what()) {
            for slot in slots {
                let cell = slot.live(what);
                cell.set_limit(self.limit(what, slot.thread(), cell.count()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_learn::{Learner, Trails};
    use tllmprof_sync::Lock;

    struct Process {
        trails: &'static Trails,
        counter: Counter,
        slot: &'static Slot,
        begun: Vec<u64>,
        asked: u64,
    }

    impl Process {
        fn new(variables: &[(&str, &str)]) -> Self {
            let settings = Settings::from_env(|name| {
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| (*value).into())
            })
            .unwrap();
            let trails: &'static Trails = Box::leak(Box::new(Trails::new()));
            let memory = || Memory {
                learner: Box::leak(Box::new(Lock::new(Learner::new()))).lock(),
                trails,
                clock: || 0,
                engine_imports: || 0,
            };
            let counter = Counter::new(&settings, || true, memory);
            let slot = Slot::new(0, |what| counter.first_limit(what, 0));
            let slot = Box::leak(Box::new(slot));
            Self {
                trails,
                counter,
                slot,
                begun: Vec::new(),
                asked: 0,
            }
        }

        /// Makes a call, and counts and reports it as the hooks do.
        fn call(&mut self, call: Call) {
            let cell = self.slot.live(call);
            cell.add();
            if cell.count() <= cell.limit() {
                return;
            }
            self.asked += 1;
            let slots = [self.slot];
            let entered = self
                .counter
                .entered(call.into(), &slots, self.slot, || false);
            let opens = entered.opens;
            let returned = self.counter.returned(call, &slots, self.slot);
            let begun = opens.into_iter().chain(returned);
            self.begun.extend(begun.map(|begun| begun.iteration));
        }

        fn launch(&mut self, kernel: usize) {
            learned::note(self.trails.get(0), Call::LaunchKernel, &[kernel]);
            self.call(Call::LaunchKernel);
        }

        fn calls(&mut self, calls: &[Call]) {
            calls.iter().for_each(|&call| self.call(call));
        }
    }

    use Call::{GraphLaunch, StreamSynchronize};

    #[test]
    fn a_launch_opens_every_fourth_time() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "cudaGraphLaunch/4")]);
        process.calls(&[GraphLaunch; 9]);
        assert_eq!(process.begun, [0, 1, 2]);
        assert_eq!(process.counter.iterations(&[process.slot]), 3);
    }

    #[test]
    fn a_wait_closes_and_the_first_call_begins_iteration_0() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "cudaStreamSynchronize")]);
        process.call(GraphLaunch);
        assert_eq!(process.begun, [0]);
        let asked = process.asked;
        process.call(GraphLaunch);
        assert_eq!(process.asked, asked, "a launch is of no interest any more");
        process.calls(&[StreamSynchronize, GraphLaunch, StreamSynchronize]);
        assert_eq!(process.begun, [0, 1, 2]);
    }

    #[test]
    fn a_capture_starts_the_count_again_until_the_count_is_kept() {
        let mut process = Process::new(&[
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
            ("TLLMPROF_WARMUP", "capture"),
        ]);
        process.calls(&[GraphLaunch; 3]);
        assert!(process.counter.captured(&[process.slot]));
        process.calls(&[GraphLaunch; 2]);
        process.counter.keep_counting();
        assert!(!process.counter.captured(&[process.slot]));
        process.call(GraphLaunch);
        assert_eq!(process.begun, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_capture_after_the_warm_up_starts_nothing_again() {
        let mut process = Process::new(&[
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
            ("TLLMPROF_WARMUP", "capture"),
        ]);
        let warmup = [GraphLaunch; WARMUP_ITERATIONS as usize - 1];
        process.calls(&warmup);
        assert!(
            process.counter.captured(&[process.slot]),
            "one iteration too few"
        );
        process.calls(&warmup);
        process.call(GraphLaunch);
        assert!(!process.counter.captured(&[process.slot]));
        process.call(GraphLaunch);
        assert!(
            !process.counter.captured(&[process.slot]),
            "it has ended for good"
        );
        assert_eq!(
            process.counter.iterations(&[process.slot]),
            WARMUP_ITERATIONS + 1
        );
    }

    #[test]
    fn captures_with_graph_launches_between_them_end_the_warm_up() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "auto")]);
        let mut capture = |launches: usize| {
            for _ in 0..launches {
                learned::note(process.trails.get(0), GraphLaunch, &[]);
            }
            process.trails.mark_used(0);
            process.counter.captured(&[process.slot])
        };
        for _ in 0..2 * WARMUP_CAPTURES {
            assert!(capture(0), "an engine that captures each size");
        }
        for _ in 0..WARMUP_CAPTURES - 1 {
            assert!(capture(1));
        }
        assert!(capture(0), "not in a row");
        for _ in 0..WARMUP_CAPTURES - 1 {
            assert!(capture(2));
        }
        assert!(!capture(1) && !capture(0), "it has ended for good");
    }

    #[test]
    fn warm_up_iterations_are_not_counted() {
        let mut process = Process::new(&[
            ("TLLMPROF_STEP", "cudaStreamSynchronize/2"),
            ("TLLMPROF_WARMUP", "1"),
        ]);
        process.calls(&[StreamSynchronize; 7]);
        assert_eq!(process.begun, [0, 1, 2]);
        assert_eq!(process.counter.iterations(&[process.slot]), 2);
    }

    #[test]
    fn only_the_launch_that_begins_a_pass_asks_once_passes_are_understood() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "auto")]);
        let pass: Vec<usize> = (0..40)
            .map(|n| 0x1000 + 0x10 * (n * n % 23 + n / 30))
            .collect();
        let mut asked = 0;
        for n in 0..400 {
            if n == 300 {
                asked = process.asked;
            }
            for &kernel in &pass {
                process.launch(kernel);
            }
        }
        assert_eq!(process.asked - asked, 100);
        assert_eq!(process.counter.iterations(&[process.slot]), 400);
        assert_eq!(process.begun.last(), Some(&400));
    }

    #[test]
    fn far_from_the_next_window_calls_do_not_ask() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "cudaGraphLaunch")]);
        process.call(GraphLaunch);
        process.counter.run_to(&[process.slot], Some(10_000));
        process.calls(&[GraphLaunch; 10_000]);
        assert_eq!(process.begun.last(), Some(&10_000));
        assert!(process.asked < 200, "{}", process.asked);
    }
}
