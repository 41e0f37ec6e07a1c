//! What the session tells the record: iterations, what each row's calls come to, and the rule.

use core::fmt::{self, Display};

use tllmprof_config::Step;
use tllmprof_config::calls::CALLS;
use tllmprof_learn::Rule;

use super::by::Rank;
use super::{State, learning};
use crate::engines;
use crate::record::{self, Ended, Facts};
use crate::step::threads::Slot;
use crate::window::Point;

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
        if record::is_wanted() {
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
}

impl Beginning {
    /// What there is to tell, if the record begins at `point`.
    pub fn at(point: Point, state: &State) -> Option<Self> {
        state.begins_record(point).then(|| Self {
            step: state.step(),
            rank: state.rank,
            learnt: state.counter.learnt_rule(),
        })
    }

    /// Begins the record; what became of it.
    pub fn begin(&self, state: &'static tllmprof_config::Settings) -> Recording {
        let rank = match self.rank {
            Rank::Known(rank) => rank,
            Rank::NotAsked => None,
        };
        let is_auto = matches!(state.step, Step::Auto);
        record::begin(
            state,
            &Facts {
                rank,
                rule: &self.step,
                why: is_auto.then_some(self),
            },
        );
        if record::is_on() {
            Recording::Yes
        } else {
            Recording::No
        }
    }
}

/// Why `auto` counts by what it does.
impl Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.learnt, engines::found()) {
            (Some(rule), _) => write!(f, "learnt: {}", learning::Described(rule)),
            (None, Some(found)) => write!(f, "{} is known", found.engine.name),
            (None, None) => f.write_str("nothing else is known"),
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
        record::iteration_ends(point != Point::Start);
        if let Point::In(n) = point {
            record::iteration_begins(n);
        }
        if record::wants_calls() {
            count_calls(&self.slots);
        }
    }
}

/// Brings the record's counters of calls up to date.
pub fn count_calls(slots: &[&Slot]) {
    record::count_calls(CALLS.iter().map(|row| {
        slots
            .iter()
            .map(|slot| slot.live(row.call).count())
            .sum::<u64>()
    }));
}

/// The process ends after `iterations`.
pub fn finish(iterations: u64, in_order: bool) {
    record::finish(
        iterations,
        if in_order {
            Ended::InOrder
        } else {
            Ended::AtOnce
        },
    );
}
