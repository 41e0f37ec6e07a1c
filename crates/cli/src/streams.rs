//! `tllmprof streams`: replays recorded streams of CUDA calls through the step learner, the code with which the
//! library finds iterations by itself.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use flate2::read::MultiGzDecoder;

use crate::{failure, output};

mod replay;

use replay::{Boundaries, Replay, replay};

#[derive(Args)]
pub(crate) struct StreamsArguments {
    /// Print one JSON line for each file
    #[arg(long)]
    json: bool,
    /// Call streams: CSV files with the columns t_ns,thread,call,arg,stream, plain or compressed with gzip
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &StreamsArguments) -> Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    for file in &arguments.files {
        let replayed = open(file)
            .and_then(replay)
            .with_context(|| file.display().to_string());
        match replayed {
            Ok(replay) => output::print(replay.line(file, arguments.json).as_bytes())?,
            Err(error) => {
                output::say(format_args!("{}", failure::text(&error)));
                status = ExitCode::FAILURE;
            }
        }
    }
    Ok(status)
}

/// Opens a file with a recorded stream of CUDA calls, and decompresses it if it is compressed with gzip.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    })
}

impl Replay {
    fn line(&self, file: &Path, json: bool) -> String {
        let file = file.display().to_string();
        let (rule, detected, marks) = (&self.rule, self.detected, self.boundaries.len());
        if json {
            let inner = self.inner.as_ref().map_or_else(
                || "null".to_owned(),
                |inner| {
                    let rule = output::json(&inner.rule);
                    format!(
                        "{{\"rule\": {rule}, \"share\": {}}}",
                        json_share(&inner.boundaries)
                    )
                },
            );
            format!(
                "{{\"file\": {}, \"rule\": {}, \"detected\": {detected}, \"true\": {marks}, \
                 \"share\": {}, \"inner\": {inner}}}\n",
                output::json(&file),
                output::json(rule),
                json_share(&self.boundaries)
            )
        } else {
            let share = text_share(&self.boundaries);
            let inner = self.inner.as_ref().map_or_else(String::new, |inner| {
                format!("  inner: {}{}\n", inner.rule, text_share(&inner.boundaries))
            });
            format!("{file}: {detected} iterations of {marks}{share}\n  {rule}\n{inner}")
        }
    }
}

fn json_share(boundaries: &Boundaries) -> String {
    let share = boundaries.share();
    share.map_or_else(|| "null".to_owned(), |share| format!("{share:.3}"))
}

fn text_share(boundaries: &Boundaries) -> String {
    let share = boundaries.share();
    share.map_or_else(String::new, |share| format!(", share {share:.3}"))
}
