//! Why it is slow: one table of rules ([`RULES`]), each judged by what the records show.
//!
//! A rule says yes only where the records leave nothing else: one that lacks its data is unknown, and says
//! what to switch on.

mod arrivals;
mod evidence;
mod gpu;
mod host;
mod ledger;
mod python;
mod ranks;
mod routing;
mod rule;
mod rules;
pub mod text;

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;

use crate::process::Process;
use crate::ranks::arrivals::Arrivals;
use crate::ranks::skew::Skew;
use evidence::Evidence;
use rules::{Judge, Together};
pub use rules::{Kind, RULES, Rule};

/// Whether a finding's rule holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds.
    Yes,
    /// It does not hold.
    No,
    /// The records lack what it is judged by.
    Unknown,
}

/// A rule, and whether it holds for these records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Finding {
    #[serde(flatten)]
    pub rule: &'static Rule,
    /// Whether it holds.
    pub verdict: Verdict,
    /// The figures it was judged by, in words.
    pub evidence: String,
    /// What to do: if it holds, against it; if it is unknown, to know it. Else empty.
    pub advice: String,
    /// How much of the iterations' time would be gained if it went away; `null` if that is not known. No time counts for two
    /// findings.
    #[schemars(extend("unit" = "part of 1"))]
    pub loss: Option<f64>,
}

impl Finding {
    /// What it says is another finding's.
    fn withdraw(&mut self) {
        self.verdict = Verdict::No;
        (self.loss, self.advice) = (None, String::new());
    }
}

/// What a rule says of one process, or of all.
#[derive(Debug)]
enum Judged {
    Yes { evidence: String, loss: Option<f64> },
    No(String),
    Unknown(String),
}

impl Judged {
    const fn yes(evidence: String, loss: f64) -> Self {
        let loss = Some(loss);
        Self::Yes { evidence, loss }
    }
}

/// What all rules find in some processes: causes first, the greatest loss first, and what is not so and what
/// is not known last. None where no process has iterations.
pub fn findings(
    processes: &[Process],
    names: &[String],
    skew: Option<&Skew>,
    arrivals: Option<&Arrivals>,
) -> Vec<Finding> {
    let together = Together { skew, arrivals };
    let all: Vec<_> = Evidence::of(processes, names);
    if all.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<_> = RULES
        .iter()
        .map(|rule| find(rule, &all, together))
        .collect();
    delays_are_apart(&mut findings);
    faults_are_code(&mut findings);
    yields(&mut findings, &all);
    skew_is_once(&mut findings);
    share_out(&mut findings);
    name_functions(&mut findings, &all);
    findings.sort_by_key(|finding| {
        let order = match finding.verdict {
            Verdict::Yes => 0,
            Verdict::Unknown => 1,
            Verdict::No => 2,
        };
        // In parts per million: a key has to have an order.
        let loss = (finding.loss.unwrap_or(0.0) * 1e6) as u64;
        (order, finding.rule.kind, Reverse(loss))
    });
    // A symptom that has its cause needs no guesses.
    let first = findings
        .first()
        .filter(|first| first.verdict == Verdict::Yes && first.rule.kind == Kind::Cause);
    if let Some(cause) = first.map(|first| first.rule.name) {
        for finding in &mut findings {
            if finding.verdict == Verdict::Yes && finding.rule.kind == Kind::Symptom {
                finding.advice = format!("fix {cause} first");
                // Its time is that of its causes.
                finding.loss = None;
            }
        }
    }
    findings
}

/// Whatever takes long takes longer without a processor: that is no second finding's.
fn delays_are_apart(findings: &mut [Finding]) {
    let mut losses = findings.iter().filter_map(|finding| {
        let is_it = finding.rule.name == ledger::DELAYED_RULE;
        finding.loss.filter(|_| is_it)
    });
    let Some(delayed) = losses.next() else {
        return;
    };
    let others = findings
        .iter_mut()
        .filter(|finding| !matches!(finding.rule.judge, Judge::Ledger(_)));
    for loss in others.filter_map(|finding| finding.loss.as_mut()) {
        *loss *= 1.0 - delayed;
    }
}

/// Page faults are in code of the host: what they take of that is no second finding's.
fn faults_are_code(findings: &mut [Finding]) {
    let loss = |name| {
        let of = findings.iter().find(|finding| finding.rule.name == name);
        of.and_then(|finding| finding.loss)
    };
    let (Some(faults), Some(code)) = (loss(ledger::FAULTS_RULE), loss(ledger::CODE_RULE)) else {
        return;
    };
    let left = (code - faults).max(0.0);
    let code = findings
        .iter_mut()
        .find(|finding| finding.rule.name == ledger::CODE_RULE);
    if let Some(code) = code {
        match left >= ledger::CODE {
            true => code.loss = Some(left),
            false => code.withdraw(),
        }
    }
}

/// Where one rank is slow, the code of its host is why: that is one finding.
fn yields(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let place = |name| {
        let is_it = |finding: &Finding| {
            finding.rule.name == name && finding.verdict == Verdict::Yes && finding.loss.is_some()
        };
        findings.iter().position(is_it)
    };
    let (Some(slow), Some(code)) = (place(ranks::SLOW), place(ledger::CODE_RULE)) else {
        return;
    };
    let loss = findings[slow].loss.unwrap_or(0.0);
    let mut bound = all.iter().filter_map(|one| match ledger::code(one) {
        Judged::Yes { evidence, .. } => Some((one.place, evidence)),
        Judged::No(_) | Judged::Unknown(_) => None,
    });
    let (first, others) = (bound.next(), bound.next());
    match (first, others) {
        (Some((place, evidence)), None) if ranks::slowest(all) == Some(place) => {
            findings[slow].evidence += &format!("; there {evidence}");
            findings[code].withdraw();
        }
        _ => {
            let code = &mut findings[code];
            code.loss = code.loss.map(|other| (other - loss).max(0.0));
        }
    }
}

/// What a slow rank costs the others is what they wait for it.
fn skew_is_once(findings: &mut [Finding]) {
    let loss = |name| {
        let of = findings.iter().find(|finding| finding.rule.name == name);
        of.and_then(|finding| finding.loss)
    };
    let Some(skew) = loss(arrivals::SKEW) else {
        return;
    };
    let slow = findings
        .iter_mut()
        .find(|finding| finding.rule.name == ranks::SLOW);
    if let Some(slow) = slow {
        slow.loss = slow.loss.map(|slow| slow - skew).filter(|left| *left > 0.0);
    }
}

/// Where nothing says which function the host runs, what does is said.
fn name_functions(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let is_known = |one: &Evidence<'_>| one.process.stacks.counts.enough();
    let mut host_bound = findings.iter_mut().filter(|finding| {
        finding.rule.name == ledger::CODE_RULE && finding.verdict == Verdict::Yes
    });
    if let Some(finding) = host_bound.next()
        && !all.iter().any(is_known)
    {
        finding.advice += "; --stacks shows which function it is";
    }
}

/// Sees to it that the causes claim no more than all of the time, the greatest first.
fn share_out(findings: &mut [Finding]) {
    let is_cause = |finding: &&mut Finding| {
        finding.verdict == Verdict::Yes && finding.rule.kind == Kind::Cause
    };
    let mut causes: Vec<_> = findings.iter_mut().filter(is_cause).collect();
    causes.sort_by(|a, b| b.loss.unwrap_or(0.0).total_cmp(&a.loss.unwrap_or(0.0)));
    let mut left = 1.0_f64;
    for loss in causes.into_iter().filter_map(|cause| cause.loss.as_mut()) {
        *loss = loss.min(left);
        left = (left - *loss).max(0.0);
    }
}

fn find(rule: &'static Rule, all: &[Evidence<'_>], together: Together<'_>) -> Finding {
    let judged = match rule.judge {
        Judge::Each(judge) | Judge::Ledger(judge) => {
            worst(all.iter().map(|one| (one.who.as_str(), judge(one))))
        }
        Judge::All(judge) => judge(all, together),
    };
    let (verdict, evidence, loss, advice) = match judged {
        Judged::Yes { evidence, loss } => (Verdict::Yes, evidence, loss, rule.advice),
        Judged::No(evidence) => (Verdict::No, evidence, None, ""),
        Judged::Unknown(evidence) => (Verdict::Unknown, evidence, None, rule.to_know),
    };
    Finding {
        rule,
        verdict,
        evidence,
        advice: advice.to_owned(),
        loss,
    }
}

/// What is said of several processes: yes where one has it, the one that loses most, and no where it is known
/// of all.
fn worst<'a>(judged: impl Iterator<Item = (&'a str, Judged)>) -> Judged {
    let mut yes: Vec<(&str, String, Option<f64>)> = Vec::new();
    let (mut no, mut unknown) = (None, None);
    let of = |who: &str, evidence: String| match who {
        "" => evidence,
        _ => format!("{who}: {evidence}"),
    };
    for (who, judged) in judged {
        match judged {
            Judged::Yes { evidence, loss } => yes.push((who, evidence, loss)),
            Judged::No(evidence) => no = no.or_else(|| Some(of(who, evidence))),
            Judged::Unknown(evidence) => unknown = unknown.or_else(|| Some(of(who, evidence))),
        }
    }
    let more = yes.len().saturating_sub(1);
    let loss = |one: &(&str, String, Option<f64>)| one.2.unwrap_or(0.0);
    let most = yes
        .into_iter()
        .reduce(|most, one| if loss(&one) > loss(&most) { one } else { most });
    match (most, unknown, no) {
        (Some((who, evidence, loss)), ..) => {
            let more = match more {
                0 => String::new(),
                _ => format!(", and {more} more processes"),
            };
            let evidence = of(who, evidence) + &more;
            Judged::Yes { evidence, loss }
        }
        (None, Some(evidence), _) => Judged::Unknown(evidence),
        (None, None, no) => Judged::No(no.unwrap_or_default()),
    }
}
