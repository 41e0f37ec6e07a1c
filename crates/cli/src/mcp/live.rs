//! The tools of `tllmprof mcp` that list and capture running processes.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tllmprof_report::{Report, Style};

use super::answer::{self, Page};
use super::shared::Shared;
use crate::live::capture::{self, CaptureRequest};
use crate::live::{ps, targets};
use crate::output;

/// The maximum number of iterations that an assistant can capture at once.
const MAX_STEPS: u64 = 10_000;

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
pub(crate) struct LiveProcesses {
    #[serde(flatten)]
    page: Page,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
pub(crate) struct Capture {
    /// Processes to capture: PID, or HOST:PID if several containers use the same PID (default: the only process, or the
    /// processes of the only run).
    processes: Vec<String>,
    /// Identifier of a run: captures all of its processes. Use either this or processes.
    #[schemars(with = "String")]
    run: Option<String>,
    /// Number of iterations to capture (default: 50).
    #[schemars(with = "u64", extend("minimum" = 1, "maximum" = MAX_STEPS))]
    steps: Option<u64>,
    /// Number of iterations in which GPU kernels are recorded. The processes must have been started with --kernels
    /// (default: record no kernels).
    #[schemars(with = "u64")]
    kernels: Option<u64>,
    /// Time in seconds to wait for an open window to close. The capture also gives up if no iteration begins for this
    /// time (default: 60 for iterations, and refuse if a window is open).
    #[schemars(with = "u64")]
    wait_s: Option<u64>,
}

pub(crate) fn live_processes(asked: &LiveProcesses, _: &mut Shared) -> Result<String> {
    let seen = ps::look();
    if seen.is_empty() {
        output::say(format_args!("{}", ps::NONE));
    }
    let json = |seen| serde_json::from_str::<Value>(&ps::json(seen).to_line());
    let rows = seen.iter().map(json).collect::<Result<Vec<_>, _>>()?;
    answer::list(Map::new(), asked.page, rows.into_iter())
}

pub(crate) fn capture(asked: &Capture, shared: &mut Shared) -> Result<String> {
    let steps = asked.steps.unwrap_or(tllmprof_control::STEPS);
    if !(1..=MAX_STEPS).contains(&steps) {
        bail!("steps {steps}: wanted: 1 to {MAX_STEPS}");
    }
    if let ([first, ..], Some(run)) = (&asked.processes[..], &asked.run) {
        bail!("processes {first:?}: run {run:?} is given, too (wanted: one of the two)");
    }
    let targets = targets::Targets {
        processes: asked.processes.clone(),
        run: asked.run.clone(),
        all: false,
    };
    let wait = asked
        .wait_s
        .map(|seconds| Duration::from_secs(seconds.max(1)));
    let wanted = CaptureRequest::from_steps(steps, wait).with_kernels(asked.kernels);
    if !shared.interrupts.begin() {
        bail!("nothing was captured: the client has gone");
    }
    let mut windows = capture::CapturedWindows::default();
    let (read, succeeded) = capture::take(
        targets.find()?,
        &wanted,
        &shared.interrupts.count,
        &mut windows,
    )?;
    if read.is_empty() {
        return Err(anyhow!("nothing was captured"));
    }
    if !succeeded {
        output::say(format_args!("not all windows were captured whole"));
    }
    let mut text = String::new();
    for process in &read {
        writeln!(text, "record: {}", process.file.display())?;
    }
    let style = Style {
        is_brief: true,
        ..Style::whole()
    };
    text.push_str(&Report::new(read).styled(style));
    Ok(answer::text(
        &text,
        "brief, finding and table have the rest of each record",
    ))
}
