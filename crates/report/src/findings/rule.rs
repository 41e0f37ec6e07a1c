//! What the rule makes an iteration of.

use tllmprof_calls::{Kind as CallOf, kind_of};

use super::Judged;
use super::evidence::Evidence;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share};

/// Where so many of the iterations launch after a wait, that is how the step is made.
const MOST: f64 = 0.5;

pub fn mixed_when() -> String {
    format!(
        "the rule is a launch, and in some iterations, under {} of them, work is launched after a wait for the GPU",
        Share(MOST)
    )
}

pub fn mixed(one: &Evidence<'_>) -> Judged {
    let facts = &one.process.facts;
    let rule = facts.rule.split('/').next().unwrap_or_default();
    let launches = matches!(
        kind_of(rule),
        Some(CallOf::GraphLaunch | CallOf::KernelLaunch { .. })
    );
    if !launches {
        return Judged::No("the rule is no launch".to_owned());
    }
    let all = one.iterations().count();
    let after = || {
        one.iterations()
            .filter_map(|iteration| iteration.launched_after)
    };
    let mixed = after().count();
    let said = format!("in {mixed} of {all} iterations work is launched after a wait for the GPU");
    let Some(row) = Quantiles::of(after().map(u64::from)).map(|rows| rows.p50 as u8) else {
        return Judged::No(said);
    };
    if mixed as f64 >= MOST * all as f64 {
        return Judged::No(said);
    }
    let wait = facts.call(row);
    let each = one.calls(|call| call.row == row).count;
    let more = match each as usize >= all {
        true => format!("{rule} counts it to the step before, --step {wait} does not"),
        false => format!("{rule} counts it to the step before: leave --step out"),
    };
    let each = Rate(one.sum.a_step(each));
    Judged::Yes {
        evidence: format!("{said} ({wait}, {each} a step); {more}"),
        loss: None,
    }
}
