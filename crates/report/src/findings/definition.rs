//! The definition of a rule.

use schemars::JsonSchema;
use serde::Serialize;

use super::Judgement;
use super::claims::ClaimRule;
use super::evidence::Evidence;
use crate::events::origin::Data;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::skew::Skew;

/// The kind of a finding. Findings are sorted in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FindingKind")]
pub enum Kind {
    /// Something that costs time and can be fixed.
    Cause,
    /// The resource that the program is bound by.
    Bound,
    /// A consequence of causes.
    Symptom,
    /// Something to know that is not a fault.
    Note,
}

/// A rule.
#[derive(Serialize, JsonSchema)]
pub struct Rule {
    /// The rule's name, such as `launch-bound`.
    #[serde(rename = "rule")]
    pub name: &'static str,
    /// The kind of the rule.
    pub kind: Kind,
    /// The data that it is judged by, in words.
    #[serde(skip)]
    pub evidence: &'static str,
    /// Returns the condition under which it holds, in words.
    #[serde(skip)]
    pub threshold: fn() -> String,
    #[serde(skip)]
    pub advice: &'static str,
    /// Advice on how to get the data if it is unknown, as a sentence and in a word or two; empty if few programs have
    /// such data at all.
    #[serde(skip)]
    pub to_know: &'static str,
    #[serde(skip)]
    pub needs: &'static str,
    /// The rows of the ledger whose time it claims if it holds.
    #[serde(skip)]
    pub(super) claims: ClaimRule,
    /// Data that other profilers may not have recorded. Without it the rule is unknown.
    #[serde(skip)]
    pub data: &'static [Data],
    #[serde(skip)]
    pub(super) judge: Judge,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Clone, Copy)]
pub(super) enum Judge {
    /// Judges each process by itself.
    Each(fn(&Evidence<'_>) -> Judgement),
    /// Judges each process by its ledger, in which waits for a processor are already separate.
    Ledger(fn(&Evidence<'_>) -> Judgement),
    /// Judges all processes together.
    All(fn(&[Evidence<'_>], JobAnalyses<'_>) -> Judgement),
}

/// Analyses of several processes together.
#[derive(Clone, Copy)]
pub(super) struct JobAnalyses<'a> {
    /// All rules: some judge by the results of others.
    pub rules: &'a [Rule],
    pub skew: Option<&'a Skew>,
    pub arrivals: Option<&'a Arrivals>,
}
