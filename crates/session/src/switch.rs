//! One switch at a point: its facts are read while the state is locked, and it is carried out without the lock.

use std::time::Instant;

use super::by::By;
use super::engines::Found;
use super::rank::Rank;
use super::recording::Beginning;
use super::state::{Recording, count_calls};
use super::wiring::{Place, doors, sink};
use super::{State, learning, sample, stream_capture, trigger};
use tllmprof_config::{Settings, Step, TracePath, Window};
use tllmprof_learn::{Inner, Rule};
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::sampling::Sampler;
use tllmprof_steps::steady::Verdict;
use tllmprof_steps::trigger::Fired;
use tllmprof_steps::turn::Event;
use tllmprof_steps::window::{Edge, Point};

/// A switch and the facts about it.
pub struct Switch {
    settings: &'static Settings,
    target: Point,
    edge: Edge,
    step: &'static Step,
    rank: Rank,
    /// True if the condition on batches does not hold for the iteration that begins.
    excluded: bool,
    /// The reason why a window that opens late does so.
    why_late: &'static str,
    /// The facts for a record that begins here.
    record: Option<Beginning>,
    /// The facts for a record whose rule has changed.
    another: Option<Beginning>,
    /// The number of iterations with kernels, of a window that opens or of its part with them that begins.
    kernels: Option<u64>,
    opening: Opening,
}

/// Facts about a window that opens. Empty if none does.
#[derive(Default)]
struct Opening {
    engine: Option<&'static Found>,
    /// The learnt rule, and the step within its iterations, if there is one.
    learnt: Option<(Rule, Option<Inner>)>,
    /// The iteration after which the window opens by itself.
    triggered: Option<(Window, Fired)>,
    verdict: Option<Verdict>,
    /// The sampler, if the window is a kernel sample.
    sampler: Option<Sampler>,
    /// The number of the window among those on demand, from 1.
    demand: Option<u64>,
    torch_trace: Option<TracePath>,
    /// True if the kept iterations before the window stay in the record.
    past: bool,
}

impl Opening {
    fn read(state: &State, edge: &Edge) -> Self {
        let past = state.due().is_some_and(|demand| demand.past);
        let Some(open) = &edge.open else {
            return Self {
                past,
                ..Self::default()
            };
        };
        let triggered = state.automatic.triggered;
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

    /// Logs why the window opens, and by which rule.
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
    /// Moves the schedule to `target`, and reads the facts about the switch that this needs. They are several kilobytes, and the
    /// program's thread may have a small stack.
    #[inline(never)]
    pub fn decide(state: &mut State, target: Point) -> Box<Self> {
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

    /// Carries it out. Returns the record's state if the record has begun here. The state must not be locked.
    pub fn carry_out(&self) -> Option<Recording> {
        // CUPTI must not be attached or detached while a stream is captured either.
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

    /// Has the profilers and the record switched. `capturing`: a stream is being captured.
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

    /// Notes in the state that it has been carried out.
    pub fn note(&self, state: &mut State, recording: Option<Recording>) {
        state.turn.on(Event::Switched(self.target));
        state.note_demand(&self.edge, self.target.over());
        if let Some(recording) = recording {
            state.recording = recording;
        }
    }
}

/// Returns the reason why a window that opens now would open late.
fn why_late(state: &State) -> &'static str {
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
