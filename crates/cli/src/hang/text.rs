//! Prints the verdict of `tllmprof hang` and the states of the ranks, as text or as JSON.

use std::fmt::Write;

use serde_json::{Value, json};
use tllmprof_config::printable;
use tllmprof_report::Time;

use super::cause::StuckCause;
use super::device_fault::DeviceFault;
use super::state::{Life, ProcessThread, RankState};
use super::verdict::{Answer, HangVerdict};
use super::wording;

/// Returns the verdict of `tllmprof hang` as text: a line with the answer and the reason, and a line for each rank.
pub(crate) fn text(verdict: &HangVerdict, ranks: &[RankState]) -> String {
    let answer = match verdict.answer {
        Answer::Stuck => "stuck",
        Answer::NotStuck => "not stuck",
        Answer::CannotTell => "cannot tell",
    };
    let mut text = format!("{answer}: {}\n", printable(&verdict.text));
    for rank in ranks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}", printable(line(rank)));
    }
    text
}

fn line(rank: &RankState) -> String {
    let mut parts = vec![format!("{} (process {})", rank.name(), rank.pid)];
    let life = match rank.life {
        Life::Runs => None,
        Life::Stopped => Some("is stopped"),
        Life::Held => Some("is held by a debugger or tracer"),
        Life::Gone if rank.ring.has_ended => Some("has ended by itself"),
        Life::Gone => Some("is gone"),
        // The time is known only of ring files of this machine.
        Life::Elsewhere if rank.quiet_ns.is_some() => Some("is not visible here"),
        Life::Elsewhere => Some("is on another machine"),
    };
    parts.extend(life.map(str::to_owned));
    if let Some(step) = rank.ring.steps.last() {
        let what = if step.end_ns.is_some() { "ended" } else { "in" };
        parts.push(format!("{what} step {}", step.number));
    }
    if let Some(call) = rank.ring.collectives.last() {
        let what = match (call.end_ns, rank.life) {
            (None, Life::Runs | Life::Stopped | Life::Held) => "in the call of",
            _ => "last called",
        };
        parts.push(format!("{what} {}", wording::collective(rank, call)));
    }
    let captured: u64 = rank.ring.captured.iter().map(|one| one.times).sum();
    if captured > 0 {
        parts.push(format!("{captured} collectives in CUDA graphs"));
    }
    if rank.ring.is_late {
        parts.push("collectives before the attach are not known".to_owned());
    }
    if let Some(cause) = StuckCause::find(rank).filter(|_| rank.life == Life::Runs) {
        parts.push(cause.text);
    }
    if let Some(quiet) = rank.quiet_ns {
        parts.push(format!("nothing new for {}", Time(quiet)));
    }
    parts.join("; ")
}

fn thread(thread: &ProcessThread) -> Value {
    let native = thread.native.iter();
    let native: Vec<_> = native
        .map(|(function, module)| json!({"function": function, "module": module}))
        .collect();
    json!({
        "id": thread.id,
        "name": thread.name,
        "state": thread.state.to_string(),
        "ran": thread.ran,
        "call": thread.call,
        "python": thread.python,
        "native": native,
        "mutex_owner": thread.mutex_owner,
        "waits_for_gil": thread.waits_for_gil,
    })
}

fn fault(fault: &DeviceFault) -> Value {
    json!({
        "xid": fault.code,
        "gpu": fault.device,
        "pid": fault.pid,
        "time_ns": fault.time_ns,
    })
}

fn rank(rank: &RankState) -> Value {
    let ring = &rank.ring;
    let life = match rank.life {
        Life::Runs => "runs",
        Life::Stopped | Life::Held => "stopped",
        Life::Gone => "gone",
        Life::Elsewhere => "elsewhere",
    };
    let step = ring.steps.last().map(
        |step| json!({"number": step.number, "begin_ns": step.begin_ns, "end_ns": step.end_ns}),
    );
    let call = |call: &tllmprof_record::Called| {
        json!({
            "communicator": format!("{:016x}", call.communicator),
            "sequence": call.sequence,
            "operation": call.operation.collective.to_string(),
            "count": call.operation.count,
            "type": call.operation.type_name(),
            "bytes": call.operation.bytes(),
            "begin_ns": call.begin_ns,
            "end_ns": call.end_ns,
        })
    };
    let communicators = ring.communicators.iter().map(|one| {
        json!({
            "id": format!("{:016x}", one.id),
            "rank": one.place.map(|place| place.0),
            "size": one.place.map(|place| place.1),
            "collectives": one.sequence,
        })
    });
    // Stacks are read only of threads that may explain why the rank is stuck. The JSON shows only the threads with
    // stacks.
    let threads = rank.threads.iter();
    let threads = threads.filter(|one| !one.native.is_empty() || !one.python.is_empty());
    json!({
        "rank": rank.number(),
        "pid": rank.pid,
        "host": ring.host,
        "run": ring.run,
        "life": life,
        "late": ring.is_late,
        "quiet_ns": rank.quiet_ns,
        "step": step,
        "collective": ring.collectives.last().map(call),
        "communicators": communicators.collect::<Vec<_>>(),
        "captured": ring.captured.iter().map(|one| one.times).sum::<u64>(),
        "gil_holder": rank.gil_holder,
        "fault": rank.fault.as_ref().map(fault),
        "threads": threads.map(thread).collect::<Vec<_>>(),
    })
}

/// Returns the verdict and the state of the ranks as JSON.
pub(crate) fn json(verdict: &HangVerdict, ranks: &[RankState]) -> Value {
    let about = verdict.ranks.iter().map(|index| ranks[*index].number());
    json!({
        "verdict": {
            "answer": verdict.answer,
            "kind": verdict.kind,
            "ranks": about.collect::<Vec<_>>(),
            "text": verdict.text,
        },
        "ranks": ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}
