//! Tests that waits for requests count neither as work nor as a fault.

use crate::common::{json, process};
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{CallKind, ClockKind, Edge, Event, What};
use tllmprof_report::Report;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const LAUNCH: u8 = 0;
const WAIT: u8 = 1;
const MAIN: u32 = 10;
const OTHER: u32 = 11;

/// The activity of the thread while it waits for requests in iteration 7: a CUDA call, or a marked function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    Call,
    Function(&'static str),
}

/// A loop of 20 iterations of 4 ms. In iteration 7, the eighth, the thread also waits for requests
/// for 25 ms.
struct IdleLoop {
    idle: Idle,
    gpu: bool,
    other_works: bool,
}

impl IdleLoop {
    fn report(&self) -> Report {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        let put = |builder: &mut Builder, thread, at, long, what| {
            builder.push(thread, &Event::new(at, long, what));
        };
        for (row, kind, name) in [
            (LAUNCH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        ] {
            let name = builder.string(MAIN, name);
            let kind = Some(kind);
            put(&mut builder, MAIN, 0, 0, What::CallName { row, kind, name });
        }
        let call = |row| What::Call {
            row,
            capturing: false,
            stream: 7,
        };
        let (mut now, iteration) = (MS, 0);
        let edge = Edge::Open;
        put(&mut builder, MAIN, now, 0, What::Window { edge, iteration });
        for n in 0..20 {
            let start = now;
            if n == 7 {
                let long = 25 * MS;
                match self.idle {
                    Idle::Call => put(&mut builder, MAIN, now, long, call(WAIT)),
                    Idle::Function(name) => {
                        let name = builder.string(MAIN, name);
                        put(&mut builder, MAIN, now, long, What::Function { name });
                    }
                }
                if self.other_works {
                    put(&mut builder, OTHER, now, 5 * US, call(LAUNCH));
                }
                now += long;
            }
            // The last iteration takes 1 ms longer, so it is the slowest if waits for requests are
            // not counted.
            let more = if n == 19 { MS } else { 0 };
            put(&mut builder, MAIN, now + 100 * US, 10 * US, call(LAUNCH));
            put(
                &mut builder,
                MAIN,
                now + 200 * US,
                3 * MS + more,
                call(WAIT),
            );
            if self.gpu {
                let what = What::GpuSpan {
                    device: 0,
                    stream: 0,
                    iteration: n,
                };
                put(&mut builder, MAIN, now + 110 * US, 3090 * US + more, what);
            }
            now += 4 * MS + more;
            put(
                &mut builder,
                MAIN,
                start,
                now - start,
                What::Iteration { n, excluded: false },
            );
        }
        let (edge, iteration) = (Edge::Close, 19);
        put(&mut builder, MAIN, now, 0, What::Window { edge, iteration });
        Report::new(vec![process("made", &builder.bytes())])
    }

    #[track_caller]
    fn idle(&self) -> u64 {
        let json = json(&self.report());
        let process = &json["processes"][0];
        let iterations = process["windows"][0]["iterations"].as_array().unwrap();
        let idle = |at: usize| iterations[at]["idle_ns"].as_u64().unwrap();
        assert!((0..20).all(|at| at == 7 || idle(at) == 0), "{iterations:?}");
        idle(7)
    }
}

const ENGINE: Idle = Idle::Function("EngineCoreProc._process_input_queue");

fn idle_loop(idle: Idle) -> IdleLoop {
    IdleLoop {
        idle,
        gpu: true,
        other_works: false,
    }
}

#[test]
fn it_is_apart_from_work() {
    for made in [idle_loop(Idle::Call), idle_loop(ENGINE)] {
        assert_eq!(made.idle(), 25 * MS);
        let report = made.report();
        let json = json(&report);
        let process = &json["processes"][0];
        let iteration = &process["windows"][0]["iterations"][7];
        assert_eq!(iteration["dur_ns"], 29 * MS);
        let inside = &process["inside"];
        assert_eq!(inside["time"]["max_ns"], 5 * MS);
        assert_eq!(inside["time"]["p50_ns"], 4 * MS);
        assert_eq!(inside["idle"]["max_ns"], 25 * MS);
        assert_eq!(inside["wait"]["max_ns"], 4 * MS);
        assert_eq!(process["slowest"][0]["n"], 19);
        let rows = process["ledger"]["host"].as_array().unwrap();
        let ns = |rows: &[Value], cause: &str| {
            let row = rows.iter().find(|row| row["cause"] == cause);
            row.unwrap_or_else(|| panic!("{rows:?}"))["ns"].clone()
        };
        assert_eq!(ns(rows, "waiting for requests"), 25 * MS);
        let gpu = process["ledger"]["gpu"].as_array().unwrap();
        assert_eq!(ns(gpu, "idle: waiting for requests"), 25 * MS);
        let yes = json["findings"].as_array().unwrap().iter();
        let yes: Vec<_> = yes.filter(|finding| finding["verdict"] == "yes").collect();
        // If the waits for requests are left out, the GPU waits for the host's code in about a fifth of the remaining
        // time.
        let [code, note] = yes[..] else {
            panic!("{yes:?}")
        };
        assert_eq!(code["rule"], "host-bound");
        let said = "the GPU has nothing to do 22.2 % of the time without waits for requests while the host runs code: ";
        assert!(
            code["evidence"].as_str().unwrap().starts_with(said),
            "{code}"
        );
        assert_eq!(
            (&note["rule"], &note["kind"]),
            (&"no-requests".into(), &"note".into())
        );
        assert_eq!(
            note["evidence"],
            "it waits for requests or other work 23.6 % of the time, 25.0 ms at the longest; other findings are about the rest"
        );
        let text = report.text();
        assert!(text.contains("\n  waits for requests "), "{text}");
        assert!(!text.contains("29.0 ms"), "{text}");
    }
}

#[test]
fn a_wait_for_work_of_another_thread_is_none() {
    let without = |other_works| IdleLoop {
        gpu: false,
        other_works,
        ..idle_loop(Idle::Call)
    };
    assert_eq!(without(false).idle(), 25 * MS);
    assert_eq!(without(true).idle(), 0);
}

#[test]
fn a_function_of_another_name_is_work() {
    assert_eq!(idle_loop(Idle::Function("Scheduler.schedule")).idle(), 0);
}
