//! What the session reports to the record as it begins: the rule, and why it is that one.

use core::fmt::{self, Display};

use tllmprof_config::{Settings, Step};
use tllmprof_learn::Rule;

use super::learning;
use super::rank::Rank;
use super::state::{Recording, State};
use super::wiring::{Facts, interpreter, sink};
use crate::engines::Found;
use tllmprof_steps::window::Point;

/// What the record is to know of the rule, taken while the state is locked.
pub struct Beginning {
    step: &'static Step,
    rank: Rank,
    learnt: Option<Rule>,
    engine: Option<&'static Found>,
}

impl Beginning {
    /// What there is to report, if the record begins at `point`.
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
