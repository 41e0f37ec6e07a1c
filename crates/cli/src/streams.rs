//! Recorded call streams, replayed through the learner that the library runs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::read::MultiGzDecoder;
use tllmprof_learn::{Call, Learner, State, Trails};

use crate::output;

/// True iterations in which the learner may still be learning.
const LEARNING: usize = 32;

#[derive(Args)]
pub struct Arguments {
    /// One JSON line for each file
    #[arg(long)]
    json: bool,
    /// Call streams: CSV of t_ns,thread,call,arg,stream, gzip or plain
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// What the learner made of one stream.
#[derive(Debug)]
struct Replay {
    rule: String,
    detected: u64,
    /// Boundaries in each true iteration.
    boundaries: Vec<u32>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    for file in &arguments.files {
        let replayed = open(file)
            .and_then(replay)
            .with_context(|| file.display().to_string());
        match replayed {
            Ok(replay) => output::print(replay.line(file, arguments.json).as_bytes())?,
            Err(error) => {
                output::say(format_args!("{error:#}"));
                status = ExitCode::FAILURE;
            }
        }
    }
    Ok(status)
}

/// The stream's text, unpacked where it is packed.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    })
}

fn replay(lines: impl BufRead) -> Result<Replay> {
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
            Record::Call(thread, call) => {
                if learner.event(&trails, thread, call).is_some()
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
    Call(u32, Call),
    /// A call that the learner has no use for.
    Other,
}

/// Kernels are numbered; real handles are pointers, and never small.
const KERNELS: u64 = 1 << 32;

fn record(line: &str) -> Result<Record> {
    let mut fields = line.split(',');
    let mut field = || fields.next().unwrap_or("");
    let (_, thread, call, argument) = (field(), field(), field(), field());
    let thread: u32 = thread
        .parse()
        .context("the second field is no number (wanted: t_ns,thread,call,arg,stream)")?;
    if call == "mark" {
        return Ok(Record::Mark);
    }
    if call.is_empty() {
        bail!("there is no third field (wanted: t_ns,thread,call,arg,stream)");
    }
    let kernel = || {
        let digits = argument.strip_prefix('f').unwrap_or(argument);
        let kernel = u64::from_str_radix(digits, 16)
            .context("the fourth field is no kernel (wanted: f and a number in hex)")?;
        anyhow::Ok(KERNELS.wrapping_add(kernel))
    };
    let call = Call::recorded(call, kernel)?;
    Ok(call.map_or(Record::Other, |call| Record::Call(thread, call)))
}

impl Replay {
    /// The part of the true iterations after the first that hold exactly one boundary. A stream
    /// with no more than those has none.
    fn share(&self) -> Option<f64> {
        let judged = self.boundaries.get(LEARNING..).filter(|j| !j.is_empty())?;
        let right = judged.iter().filter(|&&count| count == 1).count();
        Some(right as f64 / judged.len() as f64)
    }

    fn line(&self, file: &Path, json: bool) -> String {
        let file = file.display().to_string();
        let (rule, detected, marks) = (&self.rule, self.detected, self.boundaries.len());
        if json {
            let share = self
                .share()
                .map_or_else(|| "null".to_owned(), |share| format!("{share:.3}"));
            format!(
                "{{\"file\": {}, \"rule\": {}, \"detected\": {detected}, \"true\": {marks}, \
                 \"share\": {share}}}\n",
                output::json_string(&file),
                output::json_string(rule)
            )
        } else {
            let share = self
                .share()
                .map_or_else(String::new, |share| format!(", share {share:.3}"));
            format!("{file}: {detected} iterations of {marks}{share}\n  {rule}\n")
        }
    }
}
