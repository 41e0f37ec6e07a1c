//! `tllmprof ps`: lists the processes on this machine that have loaded the tllmprof library and can be captured.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tllmprof_config::printable;
use tllmprof_control::Status;
use tllmprof_control::json::Object;
use tllmprof_report::Time;

use super::record::Figures;
use super::shown::{self, or_dash};
use super::sockets;
use crate::output;

/// Time between two readings of the step counts, from which the rate of steps is computed.
const BETWEEN: Duration = Duration::from_millis(300);

/// The message if no process listens on a control socket.
pub(crate) const NONE: &str = "no process listens: one does that was started by tllmprof run, or with TLLMPROF_CONTROL=1, and uses CUDA";

#[derive(clap::Args)]
pub(crate) struct PsArguments {
    /// Print a JSON list of processes
    #[arg(long)]
    json: bool,
}

/// A process that listens on a control socket, with its rate in steps per second and its median step time in
/// nanoseconds. Rate and median are `None` if they are not known.
pub(crate) struct SeenProcess {
    status: Status,
    rate: Option<f64>,
    p50: Option<u64>,
}

/// Reads the status of all processes that can be captured. Each status is read twice, to compute the rate of steps.
pub(crate) fn look() -> Vec<SeenProcess> {
    let listening = sockets::listening();
    if !listening.is_empty() {
        thread::sleep(BETWEEN);
    }
    let again = |mut process: sockets::ListeningProcess| {
        // A process that has ended between the two readings has no status any more, and is left out.
        let status = process.connection.status().ok()?;
        let rate = rate(&process.status, &status);
        let p50 = status
            .p50_ns
            .or_else(|| Figures::from_status(&status)?.p50());
        Some(SeenProcess { status, rate, p50 })
    };
    listening.into_iter().filter_map(again).collect()
}

pub(crate) fn run(arguments: &PsArguments) -> Result<ExitCode> {
    let seen = look();
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
        output::say(format_args!("{NONE}"));
    } else {
        output::text(&table(&seen))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the steps per second between two readings. `None` if no time passed between the readings, or the second one
/// counts fewer steps than the first.
pub(crate) fn rate(before: &Status, now: &Status) -> Option<f64> {
    let nanoseconds = now
        .at_ns
        .checked_sub(before.at_ns)
        .filter(|time| *time > 0)?;
    let steps = now.iterations.checked_sub(before.iterations)?;
    Some(steps as f64 * 1e9 / nanoseconds as f64)
}

/// Returns the status of a process, its rate and its median step time as a JSON object.
pub(crate) fn json(seen: &SeenProcess) -> Object {
    let SeenProcess { status, rate, p50 } = seen;
    Object::default()
        .with("pid", status.pid)
        .with("host", status.host.as_str())
        .with("run", status.run.as_deref())
        .with("rank", status.rank)
        .with("engine", status.engine.as_deref())
        .with("rule", status.rule.as_str())
        .with("iterations", status.iterations)
        .with("iterations_per_s", *rate)
        .with("p50_ns", *p50)
        .with("state", status.phase.name())
        .with("first", status.first)
        .with("last", status.last)
        .with("record", status.record.as_deref())
}

fn table(all: &[SeenProcess]) -> String {
    let mut rows = vec![
        [
            "PID", "RANK", "ENGINE", "RULE", "STEPS", "STEPS/S", "P50", "STATE", "RECORD",
        ]
        .map(str::to_owned),
    ];
    for SeenProcess { status, rate, p50 } in all {
        let text = |text: &Option<String>| or_dash(text.as_ref().map(printable));
        rows.push([
            status.pid.to_string(),
            or_dash(status.rank),
            text(&status.engine),
            printable(&status.rule).to_string(),
            status.iterations.to_string(),
            or_dash(rate.map(|rate| format!("{rate:.1}"))),
            or_dash(p50.map(Time)),
            status.phase.name().to_owned(),
            text(&status.record),
        ]);
    }
    // These are the indices of the columns that contain numbers. Numbers are aligned to the right.
    shown::table(&rows, &[0, 1, 4, 5, 6])
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
        let seen = [SeenProcess {
            status,
            rate,
            p50: Some(1_234_567),
        }];
        assert_eq!(
            table(&seen),
            "PID  RANK  ENGINE  RULE  STEPS  STEPS/S      P50  STATE  RECORD\n  7     3  -       auto     50    100.0  1.23 ms  armed  -\n"
        );
        assert!(
            json(&seen[0])
                .to_line()
                .contains("\"pid\":7,\"host\":\"\",\"run\":null,\"rank\":3")
        );
    }
}
