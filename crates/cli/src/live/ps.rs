//! `tllmprof ps`: what runs under the library here.

use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tllmprof_config::printable;
use tllmprof_control::Status;
use tllmprof_control::json::Object;

use super::sockets;
use crate::output;

/// How long steps are counted for their rate.
const BETWEEN: Duration = Duration::from_millis(300);

#[derive(clap::Args)]
pub struct Arguments {
    /// As JSON: a list of processes
    #[arg(long)]
    json: bool,
}

/// A process, twice.
struct Seen {
    status: Status,
    rate: Option<f64>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let listening = sockets::listening();
    if !listening.is_empty() {
        thread::sleep(BETWEEN);
    }
    let again = |mut process: sockets::Process| {
        // One that ends meanwhile is not there.
        let status = process.connection.status().ok()?;
        let rate = rate(&process.status, &status);
        Some(Seen { status, rate })
    };
    let seen: Vec<_> = listening.into_iter().filter_map(again).collect();
    if arguments.json {
        let lines: Vec<_> = seen
            .iter()
            .map(|seen| format!("  {}", json(seen).to_line().trim_end()))
            .collect();
        let list = match lines.is_empty() {
            true => "[]\n".to_owned(),
            false => format!("[\n{}\n]\n", lines.join(",\n")),
        };
        output::print(list.as_bytes())?;
    } else if seen.is_empty() {
        output::say(format_args!(
            "no process listens: one does that was started by tllmprof run, or with TLLMPROF_CONTROL=1, and uses CUDA"
        ));
    } else {
        output::print(table(&seen).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Steps a second.
pub fn rate(before: &Status, now: &Status) -> Option<f64> {
    let nanoseconds = now
        .at_ns
        .checked_sub(before.at_ns)
        .filter(|time| *time > 0)?;
    let steps = now.iterations.checked_sub(before.iterations)?;
    Some(steps as f64 * 1e9 / nanoseconds as f64)
}

fn json(seen: &Seen) -> Object {
    let Seen { status, rate } = seen;
    Object::default()
        .with("pid", status.pid)
        .with("host", status.host.as_str())
        .with("run", status.run.as_deref())
        .with("rank", status.rank)
        .with("engine", status.engine.as_deref())
        .with("rule", status.rule.as_str())
        .with("iterations", status.iterations)
        .with("iterations_per_s", *rate)
        .with("state", status.phase.name())
        .with("first", status.first)
        .with("last", status.last)
        .with("record", status.record.as_deref())
}

fn table(all: &[Seen]) -> String {
    let mut rows = vec![
        [
            "PID", "RANK", "ENGINE", "RULE", "STEPS", "STEPS/S", "STATE", "RECORD",
        ]
        .map(str::to_owned),
    ];
    for Seen { status, rate } in all {
        let text = |text: &Option<String>| {
            text.as_ref()
                .map_or("-".to_owned(), |text| printable(text).to_string())
        };
        rows.push([
            status.pid.to_string(),
            status.rank.map_or("-".to_owned(), |rank| rank.to_string()),
            text(&status.engine),
            printable(&status.rule).to_string(),
            status.iterations.to_string(),
            rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            status.phase.name().to_owned(),
            text(&status.record),
        ]);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut table = Vec::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                // Numbers end, and words begin, below each other.
                match column {
                    0 | 1 | 4 | 5 => format!("{cell:>width$}"),
                    _ => format!("{cell:<width$}"),
                }
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        // A vector takes all that is written to it.
        let _ = writeln!(table, "{}", line.trim_end());
    }
    String::from_utf8(table).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_row_and_an_object() {
        let before = Status::default();
        let status = Status {
            pid: 7,
            rank: Some(3),
            rule: "auto".to_owned(),
            iterations: 50,
            at_ns: 500_000_000,
            ..Status::default()
        };
        let rate = rate(&before, &status);
        assert_eq!(rate, Some(100.0));
        assert_eq!(super::rate(&status, &before), None);
        let seen = [Seen { status, rate }];
        assert_eq!(
            table(&seen),
            "PID  RANK  ENGINE  RULE  STEPS  STEPS/S  STATE  RECORD\n  7     3  -       auto     50    100.0  armed  -\n"
        );
        assert!(
            json(&seen[0])
                .to_line()
                .contains("\"pid\":7,\"host\":\"\",\"run\":null,\"rank\":3")
        );
    }
}
