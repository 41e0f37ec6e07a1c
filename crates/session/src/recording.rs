//! What the session tells the record: iterations, what each row's calls come to, and the rule.

use core::fmt::{self, Display};

use tllmprof_calls::CALLS;
use tllmprof_config::{Settings, Step};
use tllmprof_learn::Rule;

use super::by::Rank;
use super::wiring::{Facts, interpreter, sink};
use super::{State, learning};
use crate::engines::Found;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::window::Point;

/// How far the process's record is.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// Not asked for, or it could not be made.
    #[default]
    No,
    /// It begins with the first iteration.
    ToBegin,
    Yes,
}

impl Recording {
    pub fn asked_for() -> Self {
        if sink().wants_record() {
            Self::ToBegin
        } else {
            Self::No
        }
    }
}

/// What the record is to know of the rule, taken while the state is locked.
pub struct Beginning {
    step: &'static Step,
    rank: Rank,
    learnt: Option<Rule>,
    engine: Option<&'static Found>,
}

impl Beginning {
    /// What there is to tell, if the record begins at `point`.
    pub fn at(point: Point, state: &State) -> Option<Self> {
        state.begins_record(point).then(|| Self {
            step: state.step(),
            rank: state.rank,
            learnt: state.counter.learnt_rule(),
            engine: state.engine(),
        })
    }

    /// Begins the record; what became of it.
    pub fn begin(&self, settings: &'static Settings) -> Recording {
        let is_auto = matches!(settings.step, Step::Auto);
        let facts = Facts {
            rank: self.rank.known(),
            python: interpreter().version(),
            rule: &self.step,
            why: is_auto.then_some(self),
            engine: self.engine.map(|found| found.engine.name),
        };
        if sink().begin_record(settings, &facts) {
            Recording::Yes
        } else {
            Recording::No
        }
    }
}

/// Why `auto` counts by what it does.
impl Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.learnt, self.engine) {
            (Some(rule), _) => write!(f, "auto learnt it: {}", learning::Described(rule)),
            (None, Some(found)) => write!(f, "auto knows {}", found.engine.name),
            (None, None) => f.write_str("auto knows nothing better"),
        }
    }
}

impl State {
    /// Whether the record is to begin before `point`.
    pub fn begins_record(&self, point: Point) -> bool {
        self.recording == Recording::ToBegin && self.uses_cuda && point != Point::Start
    }

    /// Whether each iteration is told to the record.
    pub fn tells_each(&self) -> bool {
        self.recording != Recording::No && self.uses_cuda
    }

    /// Tells the record of an iteration at which nothing is switched.
    pub fn tell_iteration(&self, point: Point) {
        if self.recording != Recording::Yes {
            return;
        }
        sink().passes(point);
        if sink().wants_calls() {
            count_calls(&self.slots);
        }
    }
}

/// Brings the record's counters of calls up to date.
pub fn count_calls(slots: &[&Slot]) {
    sink().count_calls(&mut CALLS.iter().map(|row| {
        slots
            .iter()
            .map(|slot| slot.live(row.call).count())
            .sum::<u64>()
    }));
    interpreter().count();
}
