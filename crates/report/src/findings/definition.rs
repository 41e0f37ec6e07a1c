//! The definition of a rule: a possible reason why iterations take long, with its condition, its
//! advice and the function that judges it.

use schemars::JsonSchema;
use serde::Serialize;

use super::Judgement;
use super::claims::ClaimRule;
use super::evidence::Evidence;
use crate::events::origin::Data;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::skew::Skew;

/// The type of a finding. Among findings with the same verdict, causes come first, then bounds, symptoms and notes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// A cause of lost time that can be fixed.
    Cause,
    /// The resource that limits the speed of the program.
    Bound,
    /// A consequence of causes.
    Symptom,
    /// A fact that is worth knowing but is not a fault.
    Note,
}

/// A rule that the report checks against records. Each rule gives one finding.
#[derive(Serialize, JsonSchema)]
pub struct Rule {
    /// The name of the rule, such as `launch-bound`.
    #[serde(rename = "rule")]
    pub name: &'static str,
    /// The type of the finding: cause, bound, symptom or note.
    pub kind: FindingKind,
    /// The data that decide whether the rule holds, as text.
    #[serde(skip)]
    pub evidence: &'static str,
    /// A function that returns the condition under which the rule holds, as text.
    #[serde(skip)]
    pub threshold: fn() -> String,
    #[serde(skip)]
    pub advice: &'static str,
    /// Advice for recording the data that the rule lacks. `to_know` is the advice as a sentence. `needs` names the
    /// missing data in a few words, such as the option that records them (`--gc`). Both are empty for data that few
    /// programs have.
    #[serde(skip)]
    pub to_know: &'static str,
    #[serde(skip)]
    pub needs: &'static str,
    /// The ledger rows whose time the rule claims if it holds.
    #[serde(skip)]
    pub(super) claims: ClaimRule,
    /// The data that the rule needs and that traces of other profilers may lack. Without these data the verdict is
    /// `Unknown`.
    #[serde(skip)]
    pub data: &'static [Data],
    #[serde(skip)]
    pub(super) judge: Judge,
}

impl Rule {
    /// Returns true if the finding's loss is only an upper bound ([`Judge::AtMost`]).
    pub(super) const fn is_at_most(&self) -> bool {
        matches!(self.judge, Judge::AtMost(_))
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Clone, Copy)]
pub(super) enum Judge {
    /// The function judges each process separately, and waits for a processor are subtracted from the finding's loss.
    Each(fn(&Evidence<'_>) -> Judgement),
    /// The function judges each process separately. The finding's loss contains no waits for a processor, so these are
    /// not subtracted from it. For example, the ledger (time by cause) lists these waits in rows of their own.
    Undelayed(fn(&Evidence<'_>) -> Judgement),
    /// The function judges each process separately. The finding's loss is only an upper bound of the time that a fix
    /// would save. So the confidence is at most medium, and `remove_upper_bounds` may remove the loss, so that another
    /// cause with a loss comes first.
    AtMost(fn(&Evidence<'_>) -> Judgement),
    /// The function judges all processes of the job together.
    All(fn(&[Evidence<'_>], JobAnalyses<'_>) -> Judgement),
}

/// The table of rules, and the analyses that compare several processes of a job.
#[derive(Clone, Copy)]
pub(super) struct JobAnalyses<'a> {
    /// All rules. The functions that judge ranks need them to subtract the time that other rules explain.
    pub rules: &'a [Rule],
    pub skew: Option<&'a Skew>,
    pub arrivals: Option<&'a Arrivals>,
}
