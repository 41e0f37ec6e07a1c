//! One switch: at a point in the sequence of iterations, windows are opened or closed for the profilers and the
//! record. The data for the switch are copied while the state is locked. The switch is carried out without the lock,
//! because it may take long.

use std::time::Instant;

use super::by::By;
use super::engines::DetectedEngine;
use super::rank::Rank;
use super::recording::Beginning;
use super::state::{Recording, count_calls};
use super::wiring::{Place, doors, sink};
use super::{SessionState, learning, sample, stream_capture, trigger};
use tllmprof_config::{IterationRange, Settings, Step, TracePath};
use tllmprof_learn::{Inner, LearnedRule};
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::sampling::Sampler;
use tllmprof_steps::steady::Verdict;
use tllmprof_steps::trigger::Fired;
use tllmprof_steps::turn::TurnEvent;
use tllmprof_steps::window::{Edge, Point};

/// A switch of windows at the point `target` in the sequence of iterations, with the data that the
/// switch needs.
pub(crate) struct Switch {
    settings: &'static Settings,
    target: Point,
    edge: Edge,
    step: &'static Step,
    rank: Rank,
    /// True if the condition on batches (such as `TLLMPROF_WHERE`) does not hold for the iteration that begins.
    excluded: bool,
    /// The reason that the log gives if the window opens late.
    why_late: &'static str,
    /// Data that is written at the beginning of the record, if the record begins with this switch.
    record: Option<Beginning>,
    /// The rule for a step and its reason, if the rule has changed since the record began.
    another: Option<Beginning>,
    /// The number of iterations, from this switch on, in which kernels are recorded. `None` unless a window opens, or
    /// the open window begins its last part, in which kernels are recorded.
    kernels: Option<u64>,
    opening: Opening,
}

/// Data about the window that opens. If no window opens, all fields but `past` are empty.
#[derive(Default)]
struct Opening {
    engine: Option<&'static DetectedEngine>,
    /// The learnt rule, and the inner loop in its iterations, if there is one.
    learnt: Option<(LearnedRule, Option<Inner>)>,
    /// The window that opens and data about the iteration for which the trigger's condition held, if a trigger (a
    /// condition on iterations) has requested this window.
    triggered: Option<(IterationRange, Fired)>,
    verdict: Option<Verdict>,
    /// The settings of kernel sampling, if the window that opens is a kernel sample.
    sampler: Option<Sampler>,
    /// The number of the window among those that are not planned (requested while the process runs, or opened by a
    /// trigger or for a kernel sample), counted from 1. `None` for a planned window.
    demand: Option<u64>,
    torch_trace: Option<TracePath>,
    /// True if the iterations before the window stay in the record. The flight recorder, which keeps the latest
    /// iterations, has recorded them.
    past: bool,
}

impl Opening {
    fn read(state: &SessionState, edge: &Edge) -> Self {
        let past = state.due().is_some_and(|demand| demand.past);
        let Some(open) = &edge.open else {
            return Self {
                past,
                ..Self::default()
            };
        };
        let triggered = state
            .automatic
            .triggered
            .filter(|_| state.is_triggered(open));
        let is_sample = state.is_sample(open);
        let demand = open.on_demand.then(|| state.schedule.demands_met() + 1);
        let has_trace = demand.is_some() && triggered.is_none() && !is_sample;
        Self {
            engine: state.engine(),
            learnt: state.counter.learnt_levels(),
            triggered,
            verdict: state.schedule.verdict(),
            sampler: state.automatic.sampler.filter(|_| is_sample),
            demand,
            torch_trace: state
                .due()
                .filter(|_| has_trace)
                .and_then(|due| due.torch_trace.clone()),
            past: triggered.is_some() || past,
        }
    }

    /// Logs why the window opens, and which rule counts its iterations.
    fn log(&self, settings: &Settings) {
        if let Some((rule, inner)) = &self.learnt {
            learning::log_choice(&settings.step, rule, inner.as_ref());
        }
        if let Some(engine) = self.engine {
            learning::log_engine(engine);
        }
        if let (Some((window, fired)), Some(when)) = (self.triggered, &settings.when) {
            trigger::log(window, &fired, &when.condition);
        }
        if let Some(sampler) = &self.sampler {
            sample::log(sampler);
        }
        if let Some(why) = self.verdict.and_then(Verdict::shortcoming) {
            log::say!(Warn, "{why}; the window takes what comes now");
        }
    }
}

impl Switch {
    /// Moves the schedule of windows to `target`, and collects the data for the switch. The result is boxed because
    /// it takes several kilobytes, and the program's thread may have a small stack.
    #[inline(never)]
    pub(crate) fn decide(state: &mut SessionState, target: Point) -> Box<Self> {
        if state.schedule.has_edge_at(target) {
            state.ask_engine();
        }
        let edge = state.schedule.reach(target);
        state.turn.on(TurnEvent::Switches {
            closes: edge.close.is_some(),
            now: Instant::now(),
        });
        if edge.open.is_some() {
            state.counter.keep_counting();
            state.counter.keep_reliance();
        }
        let opening = Opening::read(state, &edge);
        let switch = Box::new(Self {
            settings: state.settings,
            target,
            edge,
            step: state.step(),
            rank: state.rank,
            excluded: state.excludes(target),
            why_late: why_late(state),
            record: Beginning::if_begins_at(target, state),
            another: Beginning::anew(state),
            kernels: match &opening.sampler {
                Some(sampler) => Some(sampler.samples().steps),
                None => state.kernels(&edge),
            },
            opening,
        });
        if switch.opens_or_closes() {
            count_calls(&state.slots);
        }
        switch
    }

    const fn opens_or_closes(&self) -> bool {
        self.edge.open.is_some() || self.edge.close.is_some()
    }

    /// Carries out the switch: opens or closes the windows for the profilers and the record. The state must not be
    /// locked. If the record begins with this switch, returns the new state of the record.
    pub(crate) fn carry_out(&self) -> Option<Recording> {
        // During a stream capture the library must not wait for the device, and CUPTI must not be
        // attached or detached.
        let drains = self.edge.close.is_some()
            || self.edge.kernels
            || self.edge.open.is_some() && self.kernels.is_some()
            || sink().has_edge_at(self.target);
        let capturing = stream_capture::about_to_drain(drains);
        let mut recording = None;
        uncounted(&mut || {
            if let Some(record) = &self.record {
                recording = Some(record.begin(self.settings));
            }
            if let Some(another) = &self.another {
                another.write_rule(self.settings);
            }
            self.opening.log(self.settings);
            self.pass_on(capturing);
        });
        stream_capture::drained();
        let begins_flight = recording.is_some() && self.settings.latest.is_some();
        if self.opens_or_closes() || begins_flight {
            doors().record_calls();
        }
        recording
    }

    /// Passes the switch on to the profilers and the record. `capturing` is true if a stream is being
    /// captured.
    fn pass_on(&self, capturing: bool) {
        let by = By {
            step: self.step,
            rank: self.rank,
            verdict: self.opening.verdict,
        };
        sink().switch(
            &Place {
                point: self.target,
                by: format_args!("{by}"),
                rank: self.rank.known().map(|ranked| ranked.rank),
                why_late: self.why_late,
                capturing,
                excluded: self.excluded,
                kernels: self.kernels,
                sampled: self.opening.sampler.as_ref().map(Sampler::samples),
                past: self.opening.past,
                demand: self.opening.demand,
                torch_trace: self.opening.torch_trace.as_ref(),
            },
            self.edge,
        );
    }

    /// Stores in the state that the switch has been carried out.
    pub(crate) fn note(&self, state: &mut SessionState, recording: Option<Recording>) {
        state.turn.on(TurnEvent::Switched(self.target));
        state.note_demand(&self.edge, self.target.over());
        // Closing the window took time after the current iteration had begun, which lengthens this iteration. So the
        // trigger ignores the iteration.
        if self.edge.close.is_some()
            && matches!(self.target, Point::In(_))
            && let Some(watch) = &mut state.automatic.watch
        {
            watch.interrupt();
        }
        if let Some(recording) = recording {
            state.recording = recording;
        }
    }
}

/// Returns the reason that the log gives if the window that opens now opens late.
fn why_late(state: &SessionState) -> &'static str {
    if state.awaited_rank {
        "the rank was not known"
    } else if state.condition().is_none() {
        "the step was still being learnt"
    } else if state.settings.step.is_learnt() {
        "the step was still being learnt, or TLLMPROF_WHERE held for none"
    } else {
        "TLLMPROF_WHERE held for none before"
    }
}
