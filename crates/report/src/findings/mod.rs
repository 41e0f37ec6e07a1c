//! Reasons why iterations take long. The table of rules is [`RULES`]; each rule is judged by the
//! figures of the records.
//!
//! A finding holds only if the records leave no other explanation. If the records lack the data
//! that a rule needs, its finding is unknown, and its advice says how to record these data.

mod arrivals;
mod claims;
mod compilation;
mod copies;
mod decode;
mod definition;
mod event_loop;
mod evidence;
mod fallback;
mod gpu;
mod host;
mod ledger;
mod limits;
mod loop_blocks;
mod padding;
mod python;
mod ranks;
mod recompiles;
mod routing;
mod rule;
mod rules;
mod separation;
mod state;
mod streams;
pub mod text;

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;

use crate::numbers::units::Count;
use crate::process::Process;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::skew::Skew;
pub use claims::{ClaimedRow, LedgerSide};
pub use definition::{FindingKind, Rule};
use definition::{JobAnalyses, Judge};
use evidence::Evidence;
pub(crate) use python::is_set;
pub use rules::RULES;

/// The result of checking a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The rule holds.
    Yes,
    /// The rule does not hold.
    No,
    /// The records lack the data that the rule needs.
    Unknown,
}

/// The confidence in a verdict. It depends on the number of iterations, and on the effect of recording on their times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The verdict is based on fewer than 8 iterations.
    Low,
    /// The verdict is based on 8 to 29 iterations, or recording changed the times of the iterations. The findings
    /// `serial-streams` and `shared-gpu` never have a higher confidence: it is not known if the streams need their
    /// order, or how much of the time the processes would use the GPU at once.
    Medium,
    /// The verdict is based on 30 or more iterations, and recording did not change their times.
    High,
}

/// A rule, and the verdict on whether it holds for these records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Finding {
    /// The identifier of the finding in this report. It equals `rule`, because a report has one finding for each rule.
    pub id: &'static str,
    #[serde(flatten)]
    pub rule: &'static Rule,
    /// The result of checking the rule.
    pub verdict: Verdict,
    /// The confidence in the verdict. For several processes this is the lowest of their confidences. `null` if the
    /// verdict is `unknown`.
    pub confidence: Option<Confidence>,
    /// The figures that decided the verdict, in words.
    pub evidence: String,
    /// Advice in words. If the rule holds, how to fix the problem. If the verdict is `unknown`, how to record the
    /// missing data. Otherwise empty.
    pub advice: String,
    /// The share of the iterations' time that a fix would save; `null` if it is not known. No time is counted in the
    /// losses of two findings.
    #[schemars(extend("unit" = "part of 1"))]
    pub loss: Option<f64>,
    /// True if `loss` is only an upper bound.
    pub loss_is_at_most: bool,
    /// True if `loss` is only a lower bound: the GPU's work was not measured, and it certainly had none for this share
    /// of the time.
    pub loss_is_at_least: bool,
    /// The rows of processes' ledgers (time by cause) whose time this finding explains. Empty if the rule does not
    /// hold, or if it is not about time, or if other findings explain all of its time.
    pub claims: Vec<ClaimedRow>,
    /// True if the losses of other findings already contain a part of the time that this finding is about.
    #[serde(skip)]
    pub is_partly_others: bool,
    /// The index of the only process that the finding is about; `None` if it is about several processes or none.
    #[serde(skip)]
    pub place: Option<usize>,
    /// A word or two for the data that a verdict of `Unknown` lacks, such as the option that records them. Empty if few
    /// programs have such data.
    #[serde(skip)]
    needs: &'static str,
    /// True if another profiler than tllmprof recorded at least one of the processes.
    #[serde(skip)]
    is_foreign: bool,
}

impl Finding {
    /// Changes the verdict of this finding to no, because another finding explains the same time.
    fn withdraw(&mut self) {
        self.verdict = Verdict::No;
        (self.loss, self.advice) = (None, String::new());
        self.claims.clear();
    }
}

/// The result of judging a rule, for one process or for all processes. `loss` is the share of the
/// time that a fix would save, as a fraction.
#[derive(Debug)]
enum Judgement {
    Yes { evidence: String, loss: Option<f64> },
    No(String),
    Unknown(String),
}

impl Judgement {
    const fn yes(evidence: String, loss: f64) -> Self {
        let loss = Some(loss);
        Self::Yes { evidence, loss }
    }
}

/// Returns a finding for each rule; no findings if no process has iterations. Findings that hold come first, then
/// unknown findings, then findings that do not hold. Within these groups, causes come before symptoms, and greater
/// losses before smaller losses.
pub fn findings(
    processes: &[Process],
    names: &[String],
    skew: Option<&Skew>,
    arrivals: Option<&Arrivals>,
) -> Vec<Finding> {
    let together = JobAnalyses {
        rules: RULES,
        skew,
        arrivals,
    };
    let all: Vec<_> = Evidence::collect(processes, names);
    if all.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<_> = RULES
        .iter()
        .map(|rule| judge_rule(rule, &all, together))
        .collect();
    let found: Vec<_> = findings.iter().map(|finding| finding.loss).collect();
    separation::separate(&mut findings, &all);
    for (finding, found) in findings.iter_mut().zip(found) {
        finding.is_partly_others = finding.loss < found;
    }
    advise_stacks(&mut findings, &all);
    findings.sort_by_key(|finding| {
        let order = match finding.verdict {
            Verdict::Yes => 0,
            Verdict::Unknown => 1,
            Verdict::No => 2,
        };
        // A sort key must have a total order, which floats lack, so convert the loss to an integer
        // (parts per million).
        let loss = (finding.loss.unwrap_or(0.0) * 1e6) as u64;
        (order, finding.rule.kind, Reverse(loss))
    });
    // The advice for each symptom is to fix the first cause first. Padding does not count as this cause, because a fix
    // of padding only gives the GPU less work.
    let holds =
        |finding: &Finding, kind| finding.verdict == Verdict::Yes && finding.rule.kind == kind;
    let causes = findings.iter().filter(|one| holds(one, FindingKind::Cause));
    let causes: Vec<_> = causes.map(|cause| cause.rule.name).collect();
    let first = causes.iter().find(|name| **name != padding::PADDING_RULE);
    if !causes.is_empty() {
        for finding in &mut findings {
            if holds(finding, FindingKind::Symptom) {
                if let Some(cause) = first {
                    finding.advice = format!("fix {cause} first");
                }
                // The symptom's time is already counted in the losses of the causes.
                finding.loss = None;
            }
        }
    }
    findings
}

/// Adds the advice to sample stacks to the finding on host code, if no samples show in which
/// function the host spends the time.
fn advise_stacks(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let is_known = |one: &Evidence<'_>| {
        one.process.stacks.counts.enough() || one.process.ledger.details.claims.code_in.are_known()
    };
    let mut host_bound = findings.iter_mut().filter(|finding| {
        finding.rule.name == ledger::CODE_RULE && finding.verdict == Verdict::Yes
    });
    if let Some(finding) = host_bound.next()
        && !all.iter().any(is_known)
    {
        finding.advice += "; --stacks shows which function it is";
    }
}

fn judge_rule(rule: &'static Rule, all: &[Evidence<'_>], together: JobAnalyses<'_>) -> Finding {
    let lacked = |one: &Evidence<'_>| {
        let origin = &one.process.facts.origin;
        rule.data.iter().copied().find(|data| origin.lacks(*data))
    };
    let lacks = all.iter().find_map(lacked);
    let mut claims = Vec::new();
    let (judged, place) = match (rule.judge, lacks) {
        (Judge::Each(judge) | Judge::Undelayed(judge) | Judge::AtMost(judge), _) => {
            combine(all.iter().map(|one| {
                let judged = match lacked(one) {
                    Some(data) => Judgement::Unknown(data.missing().to_owned()),
                    None => judge(one),
                };
                if matches!(judged, Judgement::Yes { .. }) {
                    claims.extend(rule.claims.claim(one));
                }
                (one, judged)
            }))
        }
        (Judge::All(_), Some(data)) => (Judgement::Unknown(data.missing().to_owned()), None),
        (Judge::All(judge), None) => {
            let place = match rule.name {
                ranks::SLOW_RULE => ranks::slowest(all),
                arrivals::SKEW_RULE => together.arrivals.and_then(arrivals::latest),
                _ => None,
            };
            (judge(all, together), place)
        }
    };
    let lacks_gpu_time =
        matches!(&judged, Judgement::Unknown(why) if why == ledger::GPU_TIME_MISSING);
    let (to_know, needs) = match lacks {
        Some(data) => data.to_know(),
        None if lacks_gpu_time => (rules::KERNELS_TO_KNOW, rules::KERNELS),
        None if rule.name == ranks::SLOW_RULE => ranks::to_know(all, rule),
        None if rule.name == padding::PADDING_RULE => padding::to_know(all, rule),
        None => (rule.to_know, rule.needs),
    };
    let (verdict, evidence, loss, advice) = match judged {
        Judgement::Yes { evidence, loss } => (Verdict::Yes, evidence, loss, rule.advice),
        Judgement::No(evidence) => (Verdict::No, evidence, None, ""),
        Judgement::Unknown(evidence) => (Verdict::Unknown, evidence, None, to_know),
    };
    let about = all
        .iter()
        .filter(|one| place.is_none_or(|place| place == one.place));
    let limit = match verdict == Verdict::Yes && rule.is_at_most() {
        true => Confidence::Medium,
        false => Confidence::High,
    };
    let confidence = about.map(|one| one.confidence().min(limit)).min();
    Finding {
        id: rule.name,
        rule,
        verdict,
        confidence: confidence.filter(|_| verdict != Verdict::Unknown),
        evidence,
        advice: advice.to_owned(),
        loss,
        claims,
        loss_is_at_most: rule.is_at_most(),
        loss_is_at_least: loss.is_some() && is_at_least(rule, all, place),
        is_partly_others: false,
        place,
        needs,
        is_foreign: all.iter().any(|one| !one.process.facts.origin.is_own()),
    }
}

/// Returns true if the loss of a finding is only a lower bound, because it is based on the GPU's idle time, of which only
/// a part is known. `place` is the place of the finding.
fn is_at_least(rule: &Rule, all: &[Evidence<'_>], place: Option<usize>) -> bool {
    let mut about = all.iter().filter(|one| Some(one.place) == place);
    ledger::IDLE_RULES.contains(&rule.name)
        && about.any(|one| one.process.ledger.details.claims.idle_is_at_least)
}

/// Combines the judgements on several processes: yes if any of them is yes, else unknown if any is
/// unknown, else no. For yes, also returns the index of the process with the greatest loss.
fn combine<'a, 'b: 'a>(
    judged: impl Iterator<Item = (&'a Evidence<'b>, Judgement)>,
) -> (Judgement, Option<usize>) {
    let mut yes: Vec<(&Evidence<'_>, String, Option<f64>)> = Vec::new();
    let (mut no, mut unknown) = (None, None);
    let of = |one: &Evidence<'_>, evidence: String| match &*one.who {
        "" => evidence,
        who => format!("{who}: {evidence}"),
    };
    for (one, judged) in judged {
        match judged {
            Judgement::Yes { evidence, loss } => yes.push((one, evidence, loss)),
            Judgement::No(evidence) => no = no.or_else(|| Some(of(one, evidence))),
            Judgement::Unknown(evidence) => unknown = unknown.or_else(|| Some(of(one, evidence))),
        }
    }
    let more = yes.len().saturating_sub(1);
    let loss = |one: &(&Evidence<'_>, String, Option<f64>)| one.2.unwrap_or(0.0);
    let most = yes
        .into_iter()
        .reduce(|most, one| if loss(&one) > loss(&most) { one } else { most });
    match (most, unknown, no) {
        (Some((one, evidence, loss)), ..) => {
            let more = match more {
                0 => String::new(),
                _ => format!(", and {}", Count(more as u64, "more process")),
            };
            let evidence = of(one, evidence) + &more;
            (Judgement::Yes { evidence, loss }, Some(one.place))
        }
        (None, Some(evidence), _) => (Judgement::Unknown(evidence), None),
        (None, None, no) => (Judgement::No(no.unwrap_or_default()), None),
    }
}
