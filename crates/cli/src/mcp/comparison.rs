//! The tool of `tllmprof mcp` that compares two runs.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use tllmprof_report::{ComparisonOptions, Condition, Style};

use super::answer;
use super::reports;
use super::shared::Shared;
use crate::compare::{self, CompareRequest};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Compare {
    /// Runs to compare with: each is the path of a record, of a trace, or of a folder with the records or traces of
    /// several ranks.
    #[schemars(extend("minItems" = 1))]
    base: Vec<PathBuf>,
    /// Runs that are compared with the runs in base, in the same form.
    #[schemars(extend("minItems" = 1))]
    other: Vec<PathBuf>,
    /// Largest difference at which runs count as equal, as a percentage (default: 2%).
    #[schemars(with = "String")]
    #[serde(default)]
    within: Option<String>,
    /// Conditions to check: NAME > +N% or NAME < -N%, where NAME is rate, mean, p50, p90, p99, gpu, busy, launches,
    /// kernel:NAME or layer:NAME (default: none).
    #[serde(default)]
    fail_if: Vec<String>,
    /// For traces of other profilers: the rule for what counts as an iteration (nvtx:REGEX, py:MODULE:QUALNAME, a CUDA
    /// call, or auto).
    #[schemars(with = "String")]
    #[serde(default)]
    step: Option<String>,
}

pub(crate) fn compare(asked: &Compare, _: &mut Shared) -> Result<String> {
    for (name, runs) in [("base", &asked.base), ("other", &asked.other)] {
        if runs.is_empty() {
            bail!("{name}: it is empty (wanted: at least one run)");
        }
    }
    let mut how = ComparisonOptions::default();
    if let Some(within) = &asked.within {
        how.within = compare::percent(within).map_err(|why| anyhow!("within {within:?}: {why}"))?;
    }
    for condition in &asked.fail_if {
        let parsed = Condition::parse(condition);
        how.conditions
            .push(parsed.map_err(|why| anyhow!("fail_if {condition:?}: {why}"))?);
    }
    let step = reports::step(asked.step.as_deref())?;
    let wanted = CompareRequest {
        step: step.as_ref(),
        merge: false,
        asked: how,
    };
    let Some(compared) = compare::compare(&asked.base, &asked.other, &wanted)? else {
        bail!("one of the runs cannot be read");
    };
    let text = compared.comparison.styled(Style::whole());
    Ok(answer::text(&text, "tllmprof compare has the rest"))
}
