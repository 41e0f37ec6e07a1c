//! Is it a step? From the calls of many threads to one sequence of iterations.

pub mod counted;
pub mod ledger;
pub mod numbering;
pub mod open;
pub mod threads;

use tllmprof_config::calls::{Call, Calls, Kind};
use tllmprof_config::{Settings, Step, Warmup};

use counted::Counted;
use ledger::{Fence, Ledger};
use numbering::Numbering;
use threads::{Slot, UNLIMITED};

/// What makes an iteration.
pub enum Rule {
    /// Every so many occurrences of one thing.
    Calls(Ledger),
    /// The first launch after a host wait.
    LaunchAfterWait {
        /// A wait has returned since the last counted launch.
        waited: bool,
        /// Launches counted so far.
        launches: u64,
    },
}

/// What it means that a call has been entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entered {
    /// The iteration that opens.
    pub opens: Option<u64>,
    /// The iteration that is over when the call returns.
    pub ends: Option<u64>,
}

/// Counts iterations of a process.
pub struct Counter {
    rule: Rule,
    numbering: Numbering,
    /// The count starts again after a stream capture.
    restarts: bool,
    /// Iteration 0 of a rule that closes iterations is open, and nobody has been told yet.
    to_begin: bool,
}

impl Counter {
    /// A counter as the settings want it; `None` for a rule that this version cannot count.
    pub fn new(settings: &Settings, fence: Fence) -> Option<Self> {
        let (rule, every, closes) = match &settings.step {
            Step::Call { call, every, .. } => (
                Rule::Calls(Ledger::new(Counted::Call(*call), fence)),
                *every,
                call.kind() == Kind::Wait,
            ),
            Step::Auto => (
                Rule::LaunchAfterWait {
                    waited: true,
                    launches: 0,
                },
                1,
                false,
            ),
            Step::Symbol { every, .. } | Step::Nvtx { every, .. } => (
                Rule::Calls(Ledger::new(Counted::Named, fence)),
                *every,
                false,
            ),
            Step::Python { .. } => return None,
        };
        let (warmup, restarts) = match settings.warmup {
            Warmup::Iterations(count) => (count, false),
            Warmup::Capture => (0, true),
        };
        let numbering = Numbering {
            every,
            closes,
            warmup,
            start: 0,
        };
        Some(Self {
            rule,
            numbering,
            restarts,
            to_begin: numbering.begins_open(),
        })
    }

    /// The limit that a new thread's cell of `what` starts with.
    pub fn first_limit(&self, what: Counted) -> u64 {
        let asks = match &self.rule {
            _ if self.to_begin || !what.counts() => true,
            Rule::Calls(ledger) if ledger.what() == what => return ledger.first_limit(),
            Rule::Calls(_) => false,
            Rule::LaunchAfterWait { .. } => what.launches() || what.waits(),
        };
        if asks { 0 } else { UNLIMITED }
    }

    /// A call has been entered.
    ///
    /// A call that closes iterations is not counted here but when it returns.
    pub fn entered(&mut self, what: Counted, slots: &[&Slot], slot: &Slot) -> Entered {
        let began = (self.to_begin && what.counts()).then(|| self.begin(slots));
        let entered = match &mut self.rule {
            Rule::Calls(ledger) if ledger.what() == what && !self.numbering.closes => {
                let numbers = ledger.number(slots, slot);
                let last = numbers.clone().last();
                Entered {
                    opens: self.numbering.last_begun(numbers),
                    ends: last.and_then(|last| self.numbering.ends_after(last)),
                }
            }
            Rule::LaunchAfterWait { waited, launches } if *waited && what.launches() => {
                *waited = false;
                *launches += 1;
                Entered {
                    opens: self.numbering.begins_at(*launches - 1),
                    ends: None,
                }
            }
            _ => Entered::default(),
        };
        Entered {
            opens: entered.opens.or(began),
            ..entered
        }
    }

    /// A call has returned: the iteration that is open from here, if one is closed.
    pub fn returned(&mut self, call: Call, slots: &[&Slot], slot: &Slot) -> Option<u64> {
        match &mut self.rule {
            Rule::Calls(ledger)
                if ledger.what() == Counted::Call(call) && self.numbering.closes =>
            {
                self.numbering.last_begun(ledger.number(slots, slot))
            }
            Rule::LaunchAfterWait { waited, .. } if call.kind() == Kind::Wait => {
                *waited = true;
                None
            }
            _ => None,
        }
    }

    /// A stream capture has ended: whether the count starts again.
    pub fn captured(&mut self, slots: &[&Slot]) -> bool {
        if !self.restarts {
            return false;
        }
        self.numbering.start = self.calls(slots);
        self.to_begin = self.numbering.begins_open();
        if let Rule::LaunchAfterWait { waited, .. } = &mut self.rule {
            *waited = true;
        }
        if self.to_begin {
            self.set_limits(slots);
        }
        true
    }

    /// No stream capture starts the count again from now on.
    pub fn keep_counting(&mut self) {
        self.restarts = false;
    }

    /// Lets the threads run up to where `iteration` begins; `None`: nobody asks for any.
    pub fn run_to(&mut self, slots: &[&Slot], iteration: Option<u64>) {
        if let Rule::Calls(ledger) = &mut self.rule {
            match iteration {
                None => ledger.hand_out(slots, None),
                Some(iteration) => {
                    if let Some(call) = self.numbering.call_of(iteration) {
                        ledger.hand_out(slots, Some(call));
                    }
                }
            }
        }
    }

    /// The calls at which the next edge may be met soon, if `iterations` are left until there.
    pub fn close_calls(&self, iterations: u64) -> Calls {
        const CLOSE: u64 = 64;
        match &self.rule {
            Rule::Calls(ledger) if ledger.is_close() => {
                Calls::which(|call| ledger.what() == Counted::Call(call))
            }
            Rule::LaunchAfterWait { .. } if iterations <= CLOSE => {
                Calls::which(|call| call.kind().launches() || call.kind() == Kind::Wait)
            }
            _ => Calls::NONE,
        }
    }

    /// Whether launches are of no interest until a wait returns.
    pub fn awaits_wait(&self) -> bool {
        !self.to_begin && matches!(self.rule, Rule::LaunchAfterWait { waited: false, .. })
    }

    /// Iterations so far.
    pub fn iterations(&mut self, slots: &[&Slot]) -> u64 {
        let calls = self.calls(slots);
        self.numbering.iterations(calls)
    }

    fn calls(&mut self, slots: &[&Slot]) -> u64 {
        match &mut self.rule {
            Rule::Calls(ledger) => {
                ledger.settle(slots);
                ledger.numbered()
            }
            Rule::LaunchAfterWait { launches, .. } => *launches,
        }
    }

    fn begin(&mut self, slots: &[&Slot]) -> u64 {
        self.to_begin = false;
        self.set_limits(slots);
        0
    }

    /// Sets the limits of all calls that are not numbered by the ledger.
    fn set_limits(&self, slots: &[&Slot]) {
        let ledgers = match &self.rule {
            Rule::Calls(ledger) => Some(ledger.what()),
            Rule::LaunchAfterWait { .. } => None,
        };
        for what in Counted::all().filter(|what| Some(*what) != ledgers) {
            for slot in slots {
                slot.live(what).set_limit(self.first_limit(what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Process {
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
            let counter = Counter::new(&settings, || true).unwrap();
            let slot = Box::leak(Box::new(Slot::new(|what| counter.first_limit(what))));
            Self {
                counter,
                slot,
                begun: Vec::new(),
                asked: 0,
            }
        }

        /// One call, as the doors make it.
        fn call(&mut self, call: Call) {
            let cell = self.slot.live(call);
            cell.add();
            if cell.count() <= cell.limit() {
                return;
            }
            self.asked += 1;
            let slots = [self.slot];
            self.begun
                .extend(self.counter.entered(call.into(), &slots, self.slot).opens);
            self.begun
                .extend(self.counter.returned(call, &slots, self.slot));
        }

        fn calls(&mut self, calls: &[Call]) {
            calls.iter().for_each(|&call| self.call(call));
        }
    }

    use Call::{GraphLaunch, LaunchKernel, StreamSynchronize};

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
    fn auto_counts_the_first_launch_after_a_wait() {
        let mut process = Process::new(&[]);
        process.calls(&[
            LaunchKernel,
            LaunchKernel,
            StreamSynchronize,
            StreamSynchronize,
        ]);
        process.calls(&[GraphLaunch, LaunchKernel, StreamSynchronize]);
        assert_eq!(process.begun, [0, 1]);
    }

    #[test]
    fn a_capture_starts_the_count_again_until_told_to_keep_it() {
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
    fn far_from_the_next_window_calls_do_not_ask() {
        let mut process = Process::new(&[("TLLMPROF_STEP", "cudaGraphLaunch")]);
        process.call(GraphLaunch);
        process.counter.run_to(&[process.slot], Some(10_000));
        process.calls(&[GraphLaunch; 10_000]);
        assert_eq!(process.begun.last(), Some(&10_000));
        assert!(process.asked < 200, "{}", process.asked);
    }
}
