//! The data that the session passes to the record when the record begins and when the rule for a step changes: the
//! rule, the reason for the rule, and the rank.

use core::fmt::{self, Display};

use tllmprof_config::{Settings, Step};
use tllmprof_learn::LearnedRule;

use super::learning;
use super::rank::Rank;
use super::state::{Recording, SessionState};
use super::wiring::{SessionFacts, interpreter, sink};
use crate::engines::DetectedEngine;
use tllmprof_steps::window::Point;

/// The rule for a step, the reason for the rule, and the rank, to be written into the record. These values are copied
/// while the session's state is locked, and written after it is unlocked.
pub(crate) struct Beginning {
    step: &'static Step,
    rank: Rank,
    learnt: Option<LearnedRule>,
    engine: Option<&'static DetectedEngine>,
    is_span: bool,
    /// True if the rule was not relied on, but is probably right.
    is_probable: bool,
}

impl Beginning {
    /// Returns the data for the record if the record has to begin at `point`; otherwise `None`.
    pub(crate) fn if_begins_at(point: Point, state: &mut SessionState) -> Option<Self> {
        state.begins_record(point).then(|| Self::now(state))
    }

    /// Returns new data for the record if the rule has changed since it was last written; otherwise `None`. With `auto`
    /// the rule changes when the step function of a known engine is first called. It also counts as changed when the
    /// process begins to record a stretch of time in place of iterations, or ends this because a step is recognized.
    pub(crate) fn anew(state: &mut SessionState) -> Option<Self> {
        let is_another = |(recorded, was_span): (&Step, bool)| {
            !core::ptr::eq(recorded, state.step()) || was_span != state.span.is_on()
        };
        (state.recording == Recording::Yes && state.recorded_step.is_some_and(is_another))
            .then(|| Self::now(state))
    }

    fn now(state: &mut SessionState) -> Self {
        let step = state.step();
        let is_span = state.span.is_on();
        state.recorded_step = Some((step, is_span));
        Self {
            step,
            rank: state.rank,
            learnt: state.counter.learnt_rule(),
            engine: state.engine(),
            is_span,
            is_probable: state.span.has_probable_steps(),
        }
    }

    /// Begins the record. Returns [`Recording::Yes`] if the record was created, otherwise [`Recording::No`].
    pub(crate) fn begin(&self, settings: &'static Settings) -> Recording {
        let facts = self.facts(settings);
        if sink().begin_record(settings, &facts) {
            Recording::Yes
        } else {
            Recording::No
        }
    }

    /// Writes the step rule into the record again, because the rule has changed since the record began.
    pub(crate) fn write_rule(&self, settings: &'static Settings) {
        sink().rule_is_known(&self.facts(settings));
    }

    fn facts(&self, settings: &'static Settings) -> SessionFacts<'_> {
        let is_auto = settings.step.is_learnt();
        SessionFacts {
            rank: self.rank.known(),
            python: interpreter().version(),
            rule: &self.step,
            why: is_auto.then_some(self),
            engine: self.engine.map(|found| found.engine.name),
            is_span: self.is_span,
        }
    }
}

/// Formats the reason why the setting `auto` has chosen this step rule.
impl Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.engine, &self.learnt) {
            _ if self.is_span => f.write_str("auto relied on no step"),
            (Some(found), _) => write!(f, "auto knows {}", found.engine.name),
            (None, Some(rule)) if self.is_probable => {
                let rule = learning::Described(rule);
                write!(f, "auto took it for the step, and was not sure: {rule}")
            }
            (None, Some(rule)) => write!(f, "auto learnt it: {}", learning::Described(rule)),
            (None, None) => f.write_str("auto knows nothing better"),
        }
    }
}
