//! Findings on the rule by which an iteration is recognized (`TLLMPROF_STEP`).

use tllmprof_calls::{CallPurpose, kind_of};

use super::Judgement;
use super::evidence::Evidence;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share};

/// Minimum share of iterations, as a fraction, that launch work after a wait, for such launches to count as a normal
/// part of a step. With a smaller share, these launches suggest that the rule by which iterations are recognized is
/// wrong.
const MIN_USUAL_SHARE: f64 = 0.5;

pub(crate) fn mixed_when() -> String {
    format!(
        "the rule is a launch, and in some iterations, under {} of them, work is launched after a wait for the GPU",
        Share(MIN_USUAL_SHARE)
    )
}

pub(crate) fn mixed(one: &Evidence<'_>) -> Judgement {
    let facts = &one.process.facts;
    let rule = facts.rule.split('/').next().unwrap_or_default();
    let launches = matches!(
        kind_of(rule),
        Some(CallPurpose::GraphLaunch | CallPurpose::KernelLaunch { .. })
    );
    if !launches {
        return Judgement::No("the rule is no launch".to_owned());
    }
    let all = one.iterations().count();
    let after = || {
        one.iterations()
            .filter_map(|iteration| iteration.launched_after)
    };
    let mixed = after().count();
    let said = format!("in {mixed} of {all} iterations work is launched after a wait for the GPU");
    let Some(row) = Quantiles::from_values(after().map(u64::from)).map(|rows| rows.p50 as u8)
    else {
        return Judgement::No(said);
    };
    if mixed as f64 >= MIN_USUAL_SHARE * all as f64 {
        return Judgement::No(said);
    }
    let wait = facts.call(row);
    let each = one.calls(|call| call.row == row).count;
    let more = match each as usize >= all {
        true => format!("{rule} counts it to the step before, --step {wait} does not"),
        false => format!("{rule} counts it to the step before: leave --step out"),
    };
    let each = Rate(one.sum.a_step(each));
    Judgement::Yes {
        evidence: format!("{said} ({wait}, {each} a step); {more}"),
        loss: None,
    }
}
