//! Exports sampled stacks in two formats: speedscope's JSON, and folded stacks, with one line for each stack and its
//! count.
//!
//! Both formats separate the threads of each process. Native stacks are sampled separately and are kept apart from
//! Python stacks. If a thread did not run, the thread's state is appended as the innermost part of the stack. A sample
//! is rejected if the stack changed while it was read. Rejected samples are left out.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde_json::json;
use tllmprof_config::printable;
use tllmprof_engines::PythonFunction;
use tllmprof_record::{Taken, ThreadState};
use tllmprof_report::{StackSample, write_json};

use crate::exported::Exported;
use crate::record::Record;
use crate::sink;

/// The sampled stacks of one thread. A stack is a list of indices into [`Functions`].
struct ThreadStacks {
    process: String,
    name: String,
    /// The requested time between two samples, in nanoseconds. `None` if the record does not contain it.
    interval: Option<u64>,
    samples: Vec<Vec<usize>>,
}

/// A table of function names without duplicates. Stacks refer to a function by its index in the table.
#[derive(Default)]
struct Functions {
    all: Vec<String>,
    known: HashMap<String, usize>,
}

impl Functions {
    fn place(&mut self, name: &str) -> usize {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let printable = printable(name);
        self.all.push(printable);
        self.known.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }
}

/// Writes the JSON that <https://www.speedscope.app> reads, with a sampled profile for each thread. The output is
/// compressed if `gzip` is true.
///
/// # Errors
/// Returns an error if `to` cannot be written.
pub fn speedscope(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    let mut functions = Functions::default();
    let threads = threads(records, &mut functions);
    let profiles = threads.iter().map(|thread| {
        let (unit, weight) = match thread.interval {
            Some(interval) => ("nanoseconds", interval),
            None => ("none", 1),
        };
        let many = thread.samples.len() as u64;
        json!({
            "type": "sampled",
            "name": format!("{}, {}", thread.process, thread.name),
            "unit": unit,
            "startValue": 0,
            "endValue": many * weight,
            "samples": thread.samples,
            "weights": vec![weight; thread.samples.len()],
        })
    });
    let profiles: Vec<_> = profiles.collect();
    let frames = functions.all.iter().map(|name| frame(name));
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "tllmprof",
        "name": threads.first().map_or("", |thread| &thread.process),
        "activeProfileIndex": 0,
        "shared": { "frames": frames.collect::<Vec<_>>() },
        "profiles": profiles,
    });
    sink::through(to, gzip, |sink| write_json(&file, sink.bytes()))?;
    Ok(exported(&threads))
}

/// Writes one line `PROCESS;THREAD;FUNCTION;… COUNT` for each different stack, with the outermost function first. The
/// output is compressed if `gzip` is true.
///
/// # Errors
/// Returns an error if `to` cannot be written.
pub fn collapsed(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    let mut functions = Functions::default();
    let threads = threads(records, &mut functions);
    sink::through(to, gzip, |sink| {
        for thread in &threads {
            let mut counts: BTreeMap<&[usize], u64> = BTreeMap::new();
            for stack in &thread.samples {
                *counts.entry(stack).or_default() += 1;
            }
            for (stack, count) in counts {
                let parts = [&thread.process, &thread.name].into_iter();
                let parts = parts.chain(stack.iter().map(|place| &functions.all[*place]));
                // The semicolon separates the parts of a line, so no part may contain a semicolon.
                let parts: Vec<_> = parts.map(|part| part.replace(';', ":")).collect();
                writeln!(sink.bytes(), "{} {count}", parts.join(";"))?;
                sink.ready()?;
            }
        }
        Ok(())
    })?;
    Ok(exported(&threads))
}

fn exported(threads: &[ThreadStacks]) -> Exported {
    let samples = threads.iter().map(|thread| thread.samples.len() as u64);
    Exported {
        events: samples.sum(),
        left_out: 0,
    }
}

/// Returns a stack frame in speedscope's format. If the name ends in `(FILE:LINE)`, file and line become separate
/// fields.
fn frame(name: &str) -> serde_json::Value {
    match PythonFunction::parse(name) {
        Some(PythonFunction {
            qualified,
            file,
            line: Some(line),
        }) => json!({ "name": qualified, "file": file, "line": line }),
        _ => json!({ "name": name }),
    }
}

fn threads(records: &[Record], functions: &mut Functions) -> Vec<ThreadStacks> {
    let mut threads = Vec::new();
    for record in records {
        let stacks = &record.process.stacks;
        let mut found: BTreeMap<(u32, bool), Vec<Vec<usize>>> = BTreeMap::new();
        let kept = stacks.sampled.samples.iter();
        for sample in kept.filter(|sample| stacks.sampled.seen(sample).is_some()) {
            let is_native = sample.taken == Taken::Native;
            let samples = found.entry((sample.thread, is_native)).or_default();
            samples.push(stack(record, sample, functions));
        }
        let facts = &record.process.facts;
        let rate = stacks.rate.filter(|rate| *rate > 0);
        threads.extend(
            found
                .into_iter()
                .map(|((tid, is_native), samples)| ThreadStacks {
                    process: format!("{} (pid {})", facts.rank_name(), record.process.pid),
                    name: printable(facts.thread(tid)) + if is_native { " (native)" } else { "" },
                    interval: rate.map(|rate| 1_000_000_000 / rate),
                    samples,
                }),
        );
    }
    threads
}

fn stack(record: &Record, sample: &StackSample, functions: &mut Functions) -> Vec<usize> {
    let frames = &record.process.stacks.sampled.frames;
    let stack = frames.stack(sample.frame);
    let names = stack.iter().map(|function| frames.name(*function));
    let mut stack: Vec<_> = names.map(|name| functions.place(name)).collect();
    if stack.is_empty() {
        stack.push(functions.place("[in no Python function]"));
    }
    match sample.state {
        Some(ThreadState::Sleeping) => stack.push(functions.place("[asleep]")),
        Some(ThreadState::Runnable) => stack.push(functions.place("[waiting for a processor]")),
        Some(ThreadState::Running) | None => (),
    }
    stack
}
