//! Selection of the iterations that the report's figures on windows include.
//!
//! With a condition (`TLLMPROF_WHERE`), the figures include only iterations that satisfy it. The other iterations of a
//! window are recorded, too, but marked. Without a condition, the figures leave out two kinds of iterations, which say
//! nothing about the speed of real batches: idle ones, such as the dummy batches of data parallelism, and passes of a
//! draft model.
//!
//! In both cases, the figures leave out an iteration that ended early, for example because the process ended. If these
//! rules would leave out all iterations and there is no condition, the figures include all of them.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Batch, Phase};

/// The reason why the figures of windows leave out an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "UnqualifiedBy")]
pub enum Unqualified {
    /// The batch of the iteration does not satisfy the condition (`TLLMPROF_WHERE`).
    Where,
    /// A condition (`TLLMPROF_WHERE`) is set, but the batch of the iteration is not known.
    Unknown,
    /// No condition is set, and the batch of the iteration has no tokens.
    Idle,
    /// No condition is set, and the iteration is a pass of a draft model.
    Draft,
    /// The iteration did not reach its end, for example because the process ended.
    Cut,
}

/// The properties of an iteration that decide whether the report's figures include it. `marked` is true if the record
/// marks the iteration as not satisfying the condition. `cut` is true if something other than its regular end ended
/// the iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IterationCandidate {
    pub marked: bool,
    pub batch: Option<Batch>,
    pub cut: bool,
}

impl Unqualified {
    /// All reasons for which the report's figures leave out iterations, in the order in which they are reported.
    pub const ALL: [Self; 5] = [
        Self::Unknown,
        Self::Idle,
        Self::Draft,
        Self::Cut,
        Self::Where,
    ];
}

/// The selection of the iterations of a record that the report's figures include.
#[derive(Debug, Default)]
pub(crate) struct Qualified {
    /// For each iteration, the reason why the figures leave it out, or `None` if they include it. The list is empty
    /// if the figures include all iterations.
    why: Vec<Option<Unqualified>>,
    /// For each iteration, the number of iterations before it that the figures include. One more entry at the end is
    /// the number of all iterations that the figures include. The list is empty if `why` is empty.
    before: Vec<usize>,
}

impl Qualified {
    /// Decides for each iteration in `known` whether the report's figures include it. `condition` is the user's
    /// condition (`TLLMPROF_WHERE`); it is empty if there is no condition.
    pub(crate) fn new(condition: &str, known: impl Iterator<Item = IterationCandidate>) -> Self {
        let known: Vec<_> = known.collect();
        let has_condition = !condition.is_empty() || known.iter().any(|one| one.marked);
        let why = |one: &IterationCandidate| match (one.marked, one.batch) {
            (true, None) => Some(Unqualified::Unknown),
            (true, Some(_)) => Some(Unqualified::Where),
            (false, batch) => match batch.map(Batch::phase) {
                Some(Phase::Idle) if !has_condition => Some(Unqualified::Idle),
                Some(Phase::Draft) if !has_condition => Some(Unqualified::Draft),
                _ => one.cut.then_some(Unqualified::Cut),
            },
        };
        let why: Vec<_> = known.iter().map(why).collect();
        let is_alike = |some: bool| why.iter().all(|one| one.is_some() == some);
        if is_alike(false) || !has_condition && is_alike(true) {
            return Self::default();
        }
        let mut counted = 0;
        let mut before = vec![0];
        before.extend(why.iter().map(|why| {
            counted += usize::from(why.is_none());
            counted
        }));
        Self { why, before }
    }

    /// Returns the reason why the figures leave out the iteration at the index `place`, or `None` if they include it.
    pub(crate) fn why(&self, place: usize) -> Option<Unqualified> {
        self.why.get(place).copied().flatten()
    }

    /// Returns true if the figures include the iteration at the index `place`.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.why(place).is_none()
    }

    /// Returns true if the figures include all iterations.
    pub(crate) fn has_all(&self) -> bool {
        self.why.is_empty()
    }

    /// Returns true if the figures include at least one of the iterations from the index `first` to the index `last`.
    pub(crate) fn has_any(&self, first: usize, last: usize) -> bool {
        match (self.before.get(first), self.before.get(last + 1)) {
            (Some(before), Some(until)) => before < until,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qualified(condition: &str, known: &[(bool, Option<Batch>)]) -> Qualified {
        let known = known.iter().map(|&(marked, batch)| IterationCandidate {
            marked,
            batch,
            cut: false,
        });
        Qualified::new(condition, known)
    }

    fn why(condition: &str, known: &[(bool, Option<Batch>)]) -> Vec<Option<Unqualified>> {
        let qualified = qualified(condition, known);
        let places = 0..known.len();
        places.map(|place| qualified.why(place)).collect()
    }

    fn decode() -> Option<Batch> {
        Batch::new(2, 2, 0)
    }

    fn idle() -> Option<Batch> {
        Batch::new(0, 0, 0)
    }

    #[test]
    fn without_a_condition_all_count_but_idle_ones_beside_others() {
        let some = [(false, decode()), (false, idle()), (false, None)];
        assert_eq!(why("", &some), [None, Some(Unqualified::Idle), None]);
        assert_eq!(why("", &[(false, idle()); 2]), [None; 2]);
        assert_eq!(why("", &[(false, None); 2]), [None; 2]);
    }

    #[test]
    fn one_that_is_cut_counts_where_there_is_no_other() {
        let known = |cut| IterationCandidate {
            marked: false,
            batch: None,
            cut,
        };
        let of = |cut: &[bool]| {
            let qualified = Qualified::new("", cut.iter().map(|cut| known(*cut)));
            (0..cut.len())
                .map(|place| qualified.why(place))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[false, true]), [None, Some(Unqualified::Cut)]);
        assert_eq!(of(&[true]), [None]);
    }

    #[test]
    fn with_a_condition_those_count_that_are_not_marked() {
        let all = [
            (true, decode()),
            (false, idle()),
            (true, None),
            (false, None),
        ];
        let expected = [
            Some(Unqualified::Where),
            None,
            Some(Unqualified::Unknown),
            None,
        ];
        assert_eq!(why("phase=idle", &all), expected);
        // Iterations can be marked although the process has no condition, because a single window
        // may have a condition of its own.
        assert_eq!(why("", &all), expected);
        assert_eq!(
            why("tokens>9", &[(true, idle())]),
            [Some(Unqualified::Where)]
        );
    }

    #[test]
    fn stretches_of_iterations_have_any_that_counts() {
        let some = [idle(), decode(), idle(), idle()].map(|batch| (false, batch));
        let some = qualified("", &some);
        assert!(!some.has_all() && some.has(1) && !some.has(2));
        assert!(some.has_any(0, 1) && some.has_any(1, 3));
        assert!(!some.has_any(0, 0) && !some.has_any(2, 3));
        let all = qualified("", &[(false, decode())]);
        assert!(all.has_all() && all.has(0) && all.has_any(0, 0));
    }
}
