//! Tests of the causes of slow iterations. The causes add up to the time by which an iteration is slower.

use crate::common::{json, process};
use tllmprof_record::builder::Builder;
use tllmprof_record::{CallKind, ClockKind, Edge, Event, What};
use tllmprof_report::{Change, Report, Style};

const US: u64 = 1_000;
const LAUNCH: u8 = 0;
const WAIT: u8 = 1;
const CAPTURE: u8 = 2;
const MAIN: u32 = 10;

/// Returns the report on 60 iterations of 300 µs, each with one launch and 188 µs of GPU work. Kernels are recorded in
/// the first five, which take ten times as long. In iteration 41 a graph is captured again.
pub(crate) fn record() -> Report {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    let put = |builder: &mut Builder, at, long, what| {
        builder.push(MAIN, &Event::new(at, long, what));
    };
    for (row, kind, name) in [
        (LAUNCH, CallKind::GraphLaunch, "cuGraphLaunch"),
        (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        (CAPTURE, CallKind::Capture, "cuStreamEndCapture"),
    ] {
        let name = builder.string(MAIN, name);
        let kind = Some(kind);
        put(&mut builder, 0, 0, What::CallName { row, kind, name });
    }
    let call = |row| What::Call {
        row,
        capturing: false,
        stream: 7,
    };
    let mut now = 1_000 * US;
    let kernel = builder.string(MAIN, "kernel");
    for n in 0..60 {
        let edge = |edge| What::KernelWindow { edge, iteration: n };
        let window = |edge| What::Window { edge, iteration: n };
        let start = now;
        match n {
            0 => {
                put(&mut builder, now, 0, window(Edge::Open));
                put(&mut builder, now, 0, edge(Edge::Open));
            }
            41 => {
                put(&mut builder, now, 304 * US, call(CAPTURE));
                now += 304 * US;
            }
            _ => (),
        }
        let launches = if n == 41 { 65 } else { 1 };
        for _ in 0..launches {
            put(&mut builder, now, US, call(LAUNCH));
            now += US;
        }
        let gpu = if n == 41 { 696 * US } else { 188 * US };
        let what = What::GpuSpan {
            device: 0,
            stream: 0,
            iteration: n,
        };
        put(&mut builder, now, gpu, what);
        if n < 5 {
            let what = What::GpuKernel {
                device: 0,
                stream: 0,
                name: kernel,
                correlation: 0,
            };
            put(&mut builder, now, gpu, what);
        }
        put(&mut builder, now, gpu, call(WAIT));
        let after = if n < 5 { 2_811 * US } else { 111 * US };
        now += gpu + after;
        let excluded = false;
        put(
            &mut builder,
            start,
            now - start,
            What::Iteration { n, excluded },
        );
        match n {
            4 => put(&mut builder, now, 0, edge(Edge::Close)),
            59 => put(&mut builder, now, 0, window(Edge::Close)),
            _ => (),
        }
    }
    Report::new(vec![process("made", &builder.bytes())])
}

#[test]
fn a_graph_captured_anew_is_found_beside_iterations_with_kernels() {
    let report = record();
    let json = json(&report);
    let slowest = json["processes"][0]["slowest"].as_array().unwrap();
    let slow = &slowest[0];
    assert_eq!(
        (&slow["n"], &slow["dur_ns"]),
        (&41.into(), &(1_176 * US).into())
    );
    let more = slow["more_ns"].as_i64().unwrap();
    assert_eq!(more, 876 * US as i64);
    let causes = slow["causes"].as_array().unwrap();
    let found: Vec<_> = causes
        .iter()
        .map(|cause| {
            (
                cause["cause"].as_str().unwrap(),
                cause["more_ns"].as_i64().unwrap(),
            )
        })
        .collect();
    let us = US as i64;
    let [work, capture, launching] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(*work, ("GPU work", 508 * us));
    assert_eq!(*capture, ("graph capture", 304 * us));
    assert_eq!(*launching, ("launching", 64 * us));
    assert_eq!(
        causes[0]["detail"],
        "65 launches instead of 1.00, graph captured again"
    );
    for slow in slowest {
        let sum = slow["causes"].as_array().unwrap().iter();
        let sum: i64 = sum.map(|cause| cause["more_ns"].as_i64().unwrap()).sum();
        assert_eq!(slow["more_ns"], sum, "{slow}");
        // Iterations with recorded kernels are compared only with each other, so they do not appear slow.
        assert!(
            slow["n"] == 41 || slow["more_ns"].as_i64().unwrap().abs() < 30 * us,
            "{slow}"
        );
    }
    let text = report.styled(Style::whole());
    let said = "  41        1.18 ms  +876 µs: +508 µs GPU work (65 launches instead of 1.00, graph captured again),";
    assert!(text.contains(said), "{text}");
    assert_eq!(Change(-1_500).to_string(), "−1.50 µs");
}
