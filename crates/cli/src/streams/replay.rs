//! A stream's lines, through the learner.

use std::io::BufRead;

use anyhow::{Context, Result, bail};
use tllmprof_learn::{Call, Learner, State, Trails};

/// True iterations in which the learner may still be learning.
const LEARNING: usize = 32;

/// What the learner made of one stream.
#[derive(Debug)]
pub struct Replay {
    pub rule: String,
    pub detected: u64,
    /// Boundaries in each true iteration.
    pub boundaries: Vec<u32>,
}

/// Replays a stream.
///
/// # Errors
/// Where it cannot be read, or a line is none of a stream.
pub fn replay(lines: impl BufRead) -> Result<Replay> {
    let trails = Trails::new();
    let mut learner = Box::new(Learner::new());
    let mut boundaries = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line?;
        if line.is_empty() || line.starts_with("t_ns,") {
            continue;
        }
        match record(&line).with_context(|| format!("line {}: \"{line}\"", number + 1))? {
            Record::Mark => boundaries.push(0),
            Record::Call(thread, call, time) => {
                if learner.event(&trails, thread, call, &|| time).is_some()
                    && let Some(count) = boundaries.last_mut()
                {
                    *count += 1;
                }
            }
            Record::Other => {}
        }
    }
    Ok(Replay {
        rule: described(&learner),
        detected: learner.detected(),
        boundaries,
    })
}

fn described(learner: &Learner) -> String {
    let Some(rule) = learner.rule() else {
        return "none: no host wait recurs".to_owned();
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = rule.describe(&mut text, |out, kernel| {
        write!(out, "f{:x}", kernel - KERNELS)
    });
    if learner.state() == State::Lost {
        text.push_str(", then lost");
    }
    text
}

enum Record {
    /// A true iteration begins. The learner never sees this.
    Mark,
    /// By this thread, at this time in nanoseconds.
    Call(u32, Call, u64),
    /// A call that the learner has no use for.
    Other,
}

/// Kernels are numbered; real handles are pointers, and never small.
const KERNELS: u64 = 1 << 32;

fn record(line: &str) -> Result<Record> {
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
        return Ok(Record::Mark);
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
    Ok(call.map_or(Record::Other, |call| Record::Call(thread, call, time)))
}

impl Replay {
    /// The part of the true iterations after the first that hold exactly one boundary. A stream
    /// with no more than those has none.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let judged = self.boundaries.get(LEARNING..).filter(|j| !j.is_empty())?;
        let right = judged.iter().filter(|&&count| count == 1).count();
        Some(right as f64 / judged.len() as f64)
    }
}
