//! Replays the lines of a recorded stream of CUDA calls through the step learner, which finds the boundaries of
//! iterations. Compares these boundaries with the true iterations.

use std::io::BufRead;

use anyhow::{Context, Result, bail};
use tllmprof_learn::{Call, LearnedRule, Learner, LearnerState, Trails};

/// Number of iterations at the start of a stream that are left out of the comparison, because the step learner needs
/// them to learn the rule by which it recognizes iterations.
const LEARNING: usize = 32;

/// The result of replaying one recorded stream of CUDA calls through the step learner.
#[derive(Debug)]
pub(crate) struct Replay {
    pub rule: String,
    pub detected: u64,
    pub boundaries: Boundaries,
    /// The rule and boundaries of the smaller iterations inside the iterations. `None` if the stream's iterations
    /// contain no smaller ones.
    pub inner: Option<Level>,
}

/// The rule of one level of nested iterations, and the boundaries that the rule finds.
#[derive(Debug)]
pub(crate) struct Level {
    pub rule: String,
    pub boundaries: Boundaries,
}

/// The number of boundaries that the learner found in each true iteration. The correct number is 1.
#[derive(Debug, Default)]
pub(crate) struct Boundaries(Vec<u32>);

/// A step learner, which finds iterations in a stream of CUDA calls, and the boundaries that it has found so far.
struct Judged {
    trails: Trails,
    learner: Box<Learner>,
    boundaries: Boundaries,
}

impl Judged {
    fn new(counts_inner: bool) -> Self {
        let trails = Trails::new();
        let mut learner = Box::new(Learner::new());
        learner.begin(&trails, counts_inner);
        Self {
            trails,
            learner,
            boundaries: Boundaries::default(),
        }
    }

    fn see(&mut self, record: &ReplayRecord) {
        let Self {
            trails,
            learner,
            boundaries: Boundaries(boundaries),
        } = self;
        match *record {
            ReplayRecord::Mark => boundaries.push(0),
            ReplayRecord::Call(thread, call, time) => {
                if learner.event(trails, thread, call, &|| time).is_some()
                    && let Some(count) = boundaries.last_mut()
                {
                    *count += 1;
                }
            }
            ReplayRecord::Other => {}
        }
    }
}

/// Replays a recorded stream of CUDA calls through two step learners. One finds the iterations, the other finds the
/// smaller iterations inside them.
///
/// # Errors
/// The stream cannot be read, or a line is not valid.
pub(crate) fn replay(lines: impl BufRead) -> Result<Replay> {
    let (mut steps, mut parts) = (Judged::new(false), Judged::new(true));
    for (number, line) in lines.lines().enumerate() {
        let line = line?;
        if line.is_empty() || line.starts_with("t_ns,") {
            continue;
        }
        let record = record(&line).with_context(|| format!("line {}: \"{line}\"", number + 1))?;
        steps.see(&record);
        parts.see(&record);
    }
    Ok(Replay {
        rule: rule(&steps.learner),
        detected: steps.learner.detected(),
        boundaries: steps.boundaries,
        inner: parts.learner.inner().map(|inner| Level {
            rule: described(&inner.rule),
            boundaries: parts.boundaries,
        }),
    })
}

fn rule(learner: &Learner) -> String {
    let Some(rule) = learner.rule() else {
        return "none: no host wait recurs, nor do the launches".to_owned();
    };
    let mut text = described(&rule);
    if learner.state() == LearnerState::Lost {
        text.push_str(", then lost");
    }
    text
}

fn described(rule: &LearnedRule) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = rule.describe(&mut text, |out, kernel| {
        write!(out, "f{:x}", kernel.wrapping_sub(KERNELS))
    });
    text
}

enum ReplayRecord {
    /// A mark in the stream: a true iteration begins. The learner does not see the mark.
    Mark,
    /// A CUDA call: its thread, the call, and the time of the call in nanoseconds.
    Call(u32, Call, u64),
    /// A CUDA call that the learner does not use.
    Other,
}

/// A number that is added to the kernel numbers in recorded streams. The sum is as large as a real kernel handle, which
/// is a pointer and never small.
const KERNELS: u64 = 1 << 32;

fn record(line: &str) -> Result<ReplayRecord> {
    let mut fields = line.split(',');
    let mut field = || fields.next().unwrap_or("");
    let (time, thread, call, argument) = (field(), field(), field(), field());
    let time: u64 = time
        .parse()
        .context("the first field is not a number (wanted: t_ns,thread,call,arg,stream)")?;
    let thread: u32 = thread
        .parse()
        .context("the second field is not a number (wanted: t_ns,thread,call,arg,stream)")?;
    if call == "mark" {
        return Ok(ReplayRecord::Mark);
    }
    if call.is_empty() {
        bail!("there is no third field (wanted: t_ns,thread,call,arg,stream)");
    }
    let kernel = || {
        let digits = argument.strip_prefix('f').unwrap_or(argument);
        let kernel = u64::from_str_radix(digits, 16)
            .context("the fourth field is not a kernel (wanted: f and a number in hex)")?;
        anyhow::Ok(KERNELS.wrapping_add(kernel))
    };
    let call = Call::recorded(call, kernel)?;
    Ok(call.map_or(ReplayRecord::Other, |call| {
        ReplayRecord::Call(thread, call, time)
    }))
}

impl Boundaries {
    /// Returns the number of true iterations, which the marks in the stream delimit.
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the share of true iterations with exactly one boundary, without the first [`LEARNING`] ones. `None` if
    /// there are no later iterations.
    #[must_use]
    pub(crate) fn share(&self) -> Option<f64> {
        let judged = self.0.get(LEARNING..).filter(|j| !j.is_empty())?;
        let right = judged.iter().filter(|&&count| count == 1).count();
        Some(right as f64 / judged.len() as f64)
    }
}
