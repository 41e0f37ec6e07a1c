//! Helpers for the tests of exports: test records with events of most kinds, the items that an export of these records
//! must contain, and programs that read an export.

#![allow(dead_code)] // each test file uses only some of these helpers

pub(crate) mod scene;
#[path = "../../../../tests/common/skipped.rs"]
mod skipped;

#[path = "../../../../tests/common/signals.rs"]
mod signals;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use skipped::skipped;
use tempfile::TempDir;
use tllmprof_export::Record;
use tllmprof_record::Source;

/// A record in memory, as the source for a reader.
pub(crate) struct Bytes(pub Vec<u8>);

impl Source for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (&self.0[..]).read_at(buffer, offset)
    }
}

pub(crate) fn record(name: &str, bytes: Vec<u8>) -> Record {
    Record::new(name.into(), Box::new(Bytes(bytes)), Arc::new(|_| Ok(()))).unwrap()
}

/// An item, such as a call or a kernel, in the form in which an export must contain it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Seen {
    pub host: String,
    pub track: String,
    pub name: String,
    pub category: String,
    pub start: u64,
    /// The duration in nanoseconds. `None` for an item that is only a moment.
    pub duration: Option<u64>,
    /// The arguments as `key=value`, in the order of their keys.
    pub args: String,
}

/// Returns the arguments of an event as one text: `key=value` pairs with a space between them.
pub(crate) fn args(all: &BTreeMap<String, String>) -> String {
    let all: Vec<_> = all
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(" ")
}

#[track_caller]
pub(crate) fn assert_same(mut found: Vec<Seen>, mut expected: Vec<Seen>) {
    found.sort();
    expected.sort();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// Returns a new temporary folder. It is removed when the returned value is dropped.
pub(crate) fn scratch() -> TempDir {
    TempDir::with_prefix("tllmprof-").unwrap()
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Runs a command and returns its standard output. If the command exits with a failure, the error is its standard
/// error. If it cannot be started, or is killed because it takes longer than `limit`, the error is a message that says
/// so.
fn output(command: &mut Command, limit: Duration) -> Result<String, String> {
    let mut child = signals::end_with_test(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let reader = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text)
                .map(|_| text)
                .unwrap_or_default()
        })
    };
    let out = reader(Box::new(child.stdout.take().unwrap()));
    let err = reader(Box::new(child.stderr.take().unwrap()));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{command:?} did not end"));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    if status.success() { Ok(out) } else { Err(err) }
}

/// Runs one of the scripts in `readers` on an export, and returns the JSON that it prints. Returns `None`,
/// and reports that the test is skipped, if something that the script needs is not available.
pub(crate) fn read_by(script: &str, export: &Path) -> Option<Value> {
    let python = match script {
        _ if script.starts_with("spark") => with_spark(),
        _ => output(
            &mut Command::new(here("../../scripts/get-readers")),
            Duration::from_secs(900),
        ),
    };
    let python = match (python, Command::new("node").arg("-v").output()) {
        (Ok(_), Err(_)) if script == "timeline.py" => Err("there is no node".to_owned()),
        (python, _) => python,
    };
    match python {
        Ok(python) => {
            let mut read = Command::new(python.trim());
            let script = here("tests/readers").join(script);
            read.arg("-B").arg(script).arg(export);
            let said = output(&mut read, Duration::from_secs(240)).unwrap();
            Some(serde_json::from_str(&said).unwrap())
        }
        Err(why) => {
            skipped(why.lines().last().unwrap_or_default());
            None
        }
    }
}

/// Returns a Python interpreter that has Spark: `TLLMPROF_SPARK_PYTHON`, or else `python3`. Only `scripts/test-spark`
/// installs Spark, because Spark and the required Java take 900 MB.
fn with_spark() -> Result<String, String> {
    let python = std::env::var("TLLMPROF_SPARK_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    for mut command in [Command::new(&python), Command::new("java")] {
        let arguments: &[&str] = match command.get_program() == "java" {
            true => &["-version"],
            false => &["-c", "import pyspark"],
        };
        output(command.args(arguments), Duration::from_secs(60))?;
    }
    Ok(python)
}
