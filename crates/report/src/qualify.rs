//! Which iterations count in the figures of windows.
//!
//! With a condition (`TLLMPROF_WHERE`) those that fulfil it, which is known of those whose batches are: a window
//! is made of them, and others that come meanwhile are recorded, too. Without one, all but idle ones, as the dummy
//! batches of data parallelism are: they say nothing about how fast batches are. Where all are idle, they are
//! what there is, and count.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_config::Condition;
use tllmprof_config::condition::Facts;
use tllmprof_record::{Batch, Phase};

/// Why an iteration does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "UnqualifiedBy")]
pub enum Unqualified {
    /// Its batch does not fulfil the condition.
    Where,
    /// There is a condition, and its batch is not known.
    Unknown,
    /// Its batch has no tokens, and there is no condition.
    Idle,
}

impl Unqualified {
    /// In the order in which they are reported.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Idle, Self::Where];
}

/// Of each iteration of a record whether it counts.
#[derive(Debug, Default)]
pub struct Qualified {
    /// Empty where all do.
    why: Vec<Option<Unqualified>>,
    /// How many of those before each one count, and how many there are.
    before: Vec<usize>,
    /// The condition is not understood, so all count.
    pub is_unsure: bool,
}

impl Qualified {
    /// By the condition of the record, which may be empty, and the batch of each iteration.
    pub fn of(condition: &str, batches: &[Option<Batch>]) -> Self {
        let parsed = match condition {
            "" => None,
            // A newer one may name what this does not know.
            _ => match Condition::parse(condition) {
                Ok(condition) => Some(condition),
                Err(_) => {
                    return Self {
                        is_unsure: true,
                        ..Self::default()
                    };
                }
            },
        };
        let why = |batch: &Option<Batch>| match (&parsed, batch) {
            (Some(_), None) => Some(Unqualified::Unknown),
            (Some(condition), Some(batch)) => {
                let holds = condition.holds(facts(*batch)) == Some(true);
                (!holds).then_some(Unqualified::Where)
            }
            (None, batch) => {
                let is_idle = batch.is_some_and(|batch| batch.phase() == Phase::Idle);
                is_idle.then_some(Unqualified::Idle)
            }
        };
        let why: Vec<_> = batches.iter().map(why).collect();
        let is_alike = |some: bool| why.iter().all(|one| one.is_some() == some);
        if is_alike(false) || parsed.is_none() && is_alike(true) {
            return Self::default();
        }
        let mut counted = 0;
        let mut before = vec![0];
        before.extend(why.iter().map(|why| {
            counted += usize::from(why.is_none());
            counted
        }));
        Self {
            why,
            before,
            is_unsure: false,
        }
    }

    /// Why the iteration at a place does not count; `None`: it does.
    pub fn why(&self, place: usize) -> Option<Unqualified> {
        self.why.get(place).copied().flatten()
    }

    /// Whether the iteration at a place counts.
    pub fn has(&self, place: usize) -> bool {
        self.why(place).is_none()
    }

    /// Whether all count.
    pub fn has_all(&self) -> bool {
        self.why.is_empty()
    }

    /// Whether any from one place to another counts.
    pub fn has_any(&self, first: usize, last: usize) -> bool {
        match (self.before.get(first), self.before.get(last + 1)) {
            (Some(before), Some(until)) => before < until,
            _ => true,
        }
    }
}

/// What a condition looks at.
fn facts(batch: Batch) -> Facts {
    Facts {
        requests: Some(batch.requests.into()),
        tokens: Some(batch.tokens),
        prefill_tokens: Some(batch.prefill_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(condition: &str, batches: &[Option<Batch>]) -> Vec<Option<Unqualified>> {
        let qualified = Qualified::of(condition, batches);
        (0..batches.len())
            .map(|place| qualified.why(place))
            .collect()
    }

    const IDLE: Option<Unqualified> = Some(Unqualified::Idle);
    const WHERE: Option<Unqualified> = Some(Unqualified::Where);

    #[test]
    fn without_a_condition_all_count_but_idle_ones_beside_others() {
        let (decode, idle) = (Batch::new(2, 2, 0), Batch::new(0, 0, 0));
        assert_eq!(why("", &[decode, idle, None]), [None, IDLE, None]);
        assert_eq!(why("", &[idle, idle]), [None, None]);
        assert_eq!(why("", &[None, None]), [None, None]);
    }

    #[test]
    fn with_a_condition_those_count_that_fulfil_it() {
        let (decode, idle) = (Batch::new(2, 2, 0), Batch::new(0, 0, 0));
        let unknown = Some(Unqualified::Unknown);
        let all = [decode, idle, None, Batch::new(3, 5, 5)];
        assert_eq!(why("requests<3", &all), [None, None, unknown, WHERE]);
        assert_eq!(why("phase=idle", &all), [WHERE, None, unknown, WHERE]);
        assert_eq!(why("tokens>9", &[decode]), [WHERE]);
        // Not one of this version, as is one that was cut.
        assert_eq!(why("waiting>3", &all), [None; 4]);
        assert!(Qualified::of("waiting>3", &all).is_unsure);
        assert!(Qualified::of("tokens>1…", &all).is_unsure);
    }

    #[test]
    fn stretches_of_iterations_have_any_that_counts() {
        let (decode, idle) = (Batch::new(2, 2, 0), Batch::new(0, 0, 0));
        let qualified = Qualified::of("", &[idle, decode, idle, idle]);
        assert!(!qualified.has_all() && qualified.has(1) && !qualified.has(2));
        assert!(qualified.has_any(0, 1) && qualified.has_any(1, 3));
        assert!(!qualified.has_any(0, 0) && !qualified.has_any(2, 3));
        let all = Qualified::of("", &[decode]);
        assert!(all.has_all() && all.has(0) && all.has_any(0, 0));
    }
}
