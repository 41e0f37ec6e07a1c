//! Conditions on iterations. They can depend on the size of an iteration's batch (`TLLMPROF_WHERE`), and in
//! `TLLMPROF_WHEN` also on the time that the iteration took, or on the time for which the process has been stuck.
//!
//! ```text
//! condition = all {"or" all}
//! all       = not {"and" not}
//! not       = "not" not | "(" condition ")" | comparison
//! comparison = NUMBER_NAME ("=" | "!=" | "<" | "<=" | ">" | ">=") number | "phase" ("=" | "!=") PHASE
//!            | TIME_NAME ("<" | "<=" | ">" | ">=") time
//! time      = decimal ("ns" | "us" | "ms" | "s") | [decimal "*"] "p50"
//! ```
//!
//! A comparison with an unknown size or time is itself unknown. An iteration counts only if the whole condition is
//! known to hold.

mod parser;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::comparison::ComparisonOperator;
use crate::error::{Problem, shown};
use parser::{Parser, Vocabulary};

/// Maximum number of comparisons in a condition.
pub const PARTS: usize = 16;

/// The names that comparisons can use, in this order: the fields of [`BatchFacts`], the phase, and the fields of
/// [`IterationDurations`].
const NAMES: [&str; 10] = [
    "requests",
    "tokens",
    "prefill_tokens",
    "decode_tokens",
    "phase",
    "iteration",
    "gc",
    "gil",
    "wait",
    "stuck",
];
const PHASE: usize = 4;
const FIRST_TIME: usize = 5;
const STUCK: usize = 9;
const PHASES: [&str; 5] = ["prefill", "decode", "mixed", "idle", "draft"];
const DRAFT: u32 = 4;
/// A stand-in for the phase of a batch that is not a draft, for comparisons with `draft`. Any value other than
/// [`DRAFT`] serves.
const PHASE_OF_ANOTHER: u32 = 0;

/// The known sizes and properties of an iteration's batch. `None` means that a property is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchFacts {
    pub requests: Option<u32>,
    pub tokens: Option<u32>,
    pub prefill_tokens: Option<u32>,
    /// True if the step is a forward pass of the draft model of speculative decoding.
    pub is_draft: Option<bool>,
}

impl BatchFacts {
    fn decode_tokens(self) -> Option<u32> {
        self.tokens?.checked_sub(self.prefill_tokens?)
    }

    /// Returns the phase of the batch (such as prefill or decode), as an index of [`PHASES`]. `None` if the number of
    /// prefill tokens or of decode tokens is unknown.
    fn phase(self) -> Option<u32> {
        Some(match (self.prefill_tokens?, self.decode_tokens()?) {
            (0, 0) => 3,
            (_, 0) => 0,
            (0, _) => 1,
            _ => 2,
        })
    }

    /// Returns the class of the batch. Batches of the same class take about the same time.
    #[must_use]
    pub fn kind(self) -> BatchClass {
        let phase = self.value(PHASE);
        let size = match phase {
            Some(1) => self.requests.or(self.tokens),
            _ => self.tokens.or(self.requests),
        };
        BatchClass {
            phase: phase.map_or(PHASES.len(), |phase| phase as usize),
            size: size.map_or(0, |size| (u32::BITS - size.leading_zeros()) as usize),
        }
    }

    fn value(self, name: usize) -> Option<u32> {
        match name {
            PHASE if self.is_draft == Some(true) => Some(DRAFT),
            0 => self.requests,
            1 => self.tokens,
            2 => self.prefill_tokens,
            3 => self.decode_tokens(),
            _ => self.phase(),
        }
    }
}

/// A class of similar batches: they have the same phase, and their sizes have the same number of bits. So no batch of a
/// class is twice as large as another. The size of a batch is its number of tokens. For a batch that only decodes, the
/// size is the number of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchClass {
    phase: usize,
    /// Number of significant bits of the batch's size; 0 if the size is 0 or unknown.
    size: usize,
}

impl BatchClass {
    /// Number of different batch classes: every phase, or no known phase, combined with every possible number of bits
    /// of the batch's size.
    pub const COUNT: usize = (PHASES.len() + 1) * SIZES;

    /// Returns the index of this class in a table with [`BatchClass::COUNT`] entries.
    #[must_use]
    pub const fn place(self) -> usize {
        self.phase * SIZES + self.size
    }
}

const SIZES: usize = u32::BITS as usize + 1;

impl fmt::Display for BatchClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(phase) = PHASES.get(self.phase) else {
            return f.write_str("batch unknown");
        };
        let of = if *phase == "decode" {
            "requests"
        } else {
            "tokens"
        };
        match self.size.checked_sub(1) {
            None => f.write_str(phase),
            Some(0) => write!(f, "{phase}, 1 of {of}"),
            Some(bits) => write!(
                f,
                "{phase}, {} to {} {of}",
                1_u64 << bits,
                (2_u64 << bits) - 1
            ),
        }
    }
}

/// Durations of an iteration and of its parts, in nanoseconds. `None` means that a duration is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IterationDurations {
    pub iteration: Option<u64>,
    pub gc: Option<u64>,
    pub gil: Option<u64>,
    pub wait: Option<u64>,
    /// Time for which the process has been stuck, in nanoseconds: since the last time that a step or a collective
    /// began or ended. `None` when an iteration ends, because the process is then not stuck.
    pub stuck: Option<u64>,
    /// The median duration, in nanoseconds, of the iterations whose batches are of the same class as this iteration's
    /// batch.
    pub p50: Option<u64>,
}

impl IterationDurations {
    const fn value(self, name: usize) -> Option<u64> {
        match name - FIRST_TIME {
            0 => self.iteration,
            1 => self.gc,
            2 => self.gil,
            3 => self.wait,
            _ => self.stuck,
        }
    }
}

/// The right-hand side of a comparison, with which a size or a time is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum With {
    /// A number, or a phase, which is given as its index in [`PHASES`].
    Number(u32),
    Nanoseconds(u64),
    /// A multiple of the median duration of iterations. The value is the factor, in thousandths.
    Median(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ConditionPart {
    name: usize,
    comparison: ComparisonOperator,
    with: With,
}

impl ConditionPart {
    fn holds(self, facts: BatchFacts, times: &IterationDurations) -> Option<bool> {
        let (value, with) = match self.with {
            // A comparison with `draft` can be decided even if nothing else is known about the batch.
            With::Number(DRAFT) if self.name == PHASE && facts.is_draft.is_some() => {
                let is_draft = facts.is_draft == Some(true);
                let phase = if is_draft { DRAFT } else { PHASE_OF_ANOTHER };
                (phase.into(), DRAFT.into())
            }
            With::Number(with) => (facts.value(self.name)?.into(), with.into()),
            With::Nanoseconds(with) => (times.value(self.name)?, with),
            With::Median(thousandths) => {
                let with = u128::from(times.p50?) * u128::from(thousandths) / 1000;
                (
                    times.value(self.name)?,
                    u64::try_from(with).unwrap_or(u64::MAX),
                )
            }
        };
        Some(self.comparison.holds(value.cmp(&with)))
    }
}

impl fmt::Display for ConditionPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[self.name])?;
        f.write_str(self.comparison.sign())?;
        match self.with {
            With::Number(place) if self.name == PHASE => f.write_str(PHASES[place as usize]),
            With::Number(number) => write!(f, "{number}"),
            With::Nanoseconds(ns) => write!(f, "{}ms", ns as f64 / 1e6),
            With::Median(thousandths) => write!(f, "{}*p50", thousandths as f64 / 1e3),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum ConditionNode {
    /// A single comparison. The value is its index in [`Condition::parts`].
    Part(usize),
    Not(Box<Self>),
    And(Box<[Self; 2]>),
    Or(Box<[Self; 2]>),
}

/// A condition on iterations: its comparisons, and the tree that combines them with `and`, `or` and `not`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    parts: Vec<ConditionPart>,
    node: ConditionNode,
    /// The condition as the user typed it, for error messages.
    text: String,
}

impl Condition {
    /// Parses a condition that depends only on batches.
    ///
    /// # Errors
    /// Returns the problem if the text does not parse, with its position.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        Self::parse_of(text, Vocabulary::Batch)
    }

    /// Parses a condition that can also depend on times. A condition that compares `stuck` must not hold for a stuck
    /// time of 0, and must hold for the longest possible stuck time. In both cases, nothing but the stuck time is
    /// known.
    ///
    /// # Errors
    /// Returns the problem if the text does not parse, with its position, or if the condition breaks the rule about
    /// `stuck`.
    pub fn parse_with_times(text: &str) -> Result<Self, Problem> {
        let condition = Self::parse_of(text, Vocabulary::All)?;
        let decides = |ns| condition.holds_if_stuck(ns);
        if condition.names(NAMES[STUCK]) && (decides(0) || !decides(u64::MAX)) {
            return Err(Problem::new(
                "a process that is stuck ends no iteration to which the rest could apply",
                "stuck > TIME alone, or joined with other comparisons by or, such as stuck > 30s or gc > 10ms",
            ));
        }
        Ok(condition)
    }

    /// Returns true if the condition holds for a process that has been stuck for this time, in nanoseconds, regardless
    /// of its iterations.
    #[must_use]
    pub fn holds_if_stuck(&self, ns: u64) -> bool {
        let times = IterationDurations {
            stuck: Some(ns),
            ..IterationDurations::default()
        };
        self.holds_for(BatchFacts::default(), &times) == Some(true)
    }

    /// Returns true if the condition can hold for an iteration. A condition that compares only `stuck` cannot.
    #[must_use]
    pub fn names_iterations(&self) -> bool {
        self.parts.iter().any(|part| part.name != STUCK)
    }

    fn parse_of(text: &str, names: Vocabulary) -> Result<Self, Problem> {
        let (parts, node) = Parser::new(text, names).parse()?;
        Ok(Self {
            parts,
            node,
            text: shown(text.trim().as_ref()),
        })
    }

    /// Returns true if the condition holds for a batch. Returns `None` if too little is known to decide.
    #[must_use]
    pub fn holds(&self, facts: BatchFacts) -> Option<bool> {
        self.holds_for(facts, &IterationDurations::default())
    }

    /// Returns true if the condition holds for an iteration with this batch and these times. Returns `None` if too
    /// little is known to decide.
    #[must_use]
    pub fn holds_for(&self, facts: BatchFacts, times: &IterationDurations) -> Option<bool> {
        self.value(&self.node, &|part| part.holds(facts, times))
    }

    /// Returns true if the condition compares the size or time that is called `name`.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.parts.iter().any(|part| NAMES[part.name] == name)
    }

    /// Returns true if the condition compares any size or property of the batch.
    #[must_use]
    pub fn names_batch(&self) -> bool {
        self.parts.iter().any(|part| part.name < FIRST_TIME)
    }

    /// Returns true if the condition compares the phase with `draft`. Then its result depends on which iterations are
    /// passes of a draft model.
    #[must_use]
    pub fn names_drafts(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.name == PHASE && matches!(part.with, With::Number(DRAFT)))
    }

    fn value(
        &self,
        node: &ConditionNode,
        holds: &impl Fn(ConditionPart) -> Option<bool>,
    ) -> Option<bool> {
        match node {
            ConditionNode::Part(place) => holds(self.parts[*place]),
            ConditionNode::Not(node) => self.value(node, holds).map(|holds| !holds),
            ConditionNode::And(sides) => self.decided(sides, false, holds),
            ConditionNode::Or(sides) => self.decided(sides, true, holds),
        }
    }

    /// Evaluates `and` if `by` is false, or `or` if `by` is true. If either side has the value `by`, the result is
    /// `by`. Otherwise the result is `None` if a side is unknown, and the opposite of `by` if both sides are known.
    fn decided(
        &self,
        sides: &[ConditionNode; 2],
        by: bool,
        holds: &impl Fn(ConditionPart) -> Option<bool>,
    ) -> Option<bool> {
        let [one, other] = sides;
        match (self.value(one, holds), self.value(other, holds)) {
            (Some(one), _) if one == by => Some(by),
            (_, Some(other)) if other == by => Some(by),
            (Some(_), Some(_)) => Some(!by),
            _ => None,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Counts of the iterations for which a condition held, and for which each comparison in the condition held. A log line
/// shows these counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub asked: u64,
    pub held: u64,
    /// Number of iterations for which it is unknown whether the condition held.
    pub unknown: u64,
    parts: [u64; PARTS],
}

impl Held {
    /// Counts an iteration with this batch. Returns true if `condition` holds for the iteration.
    pub fn count(&mut self, condition: &Condition, facts: BatchFacts) -> bool {
        self.asked += 1;
        for (held, part) in self.parts.iter_mut().zip(&condition.parts) {
            *held += u64::from(part.holds(facts, &IterationDurations::default()) == Some(true));
        }
        let holds = condition.holds(facts);
        self.unknown += u64::from(holds.is_none());
        self.held += u64::from(holds == Some(true));
        holds == Some(true)
    }

    /// Writes for each comparison of `condition` the number of iterations in which it held, such as `requests>=64 held
    /// in 0 of 300 iterations, …`.
    pub fn show(&self, condition: &Condition, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (held, part)) in self.parts.iter().zip(&condition.parts).enumerate() {
            match place {
                0 => write!(f, "{part} held in {held} of {} iterations", self.asked)?,
                _ => write!(f, ", {part} in {held}")?,
            }
        }
        match self.unknown {
            0 => Ok(()),
            unknown => write!(f, "; in {unknown} the batch was not known"),
        }
    }
}
