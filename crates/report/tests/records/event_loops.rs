//! Tests of the findings on event loops (asyncio, uvloop): one that is blocked in a callback while the steps wait or do
//! not, one that runs many short callbacks, one that mostly waits, and one that runs the steps itself.

use crate::common::process as process_of;
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    CallKind, ClockKind, Edge, Event, Info, SystemCall, Taken, ThreadState, What,
};
use tllmprof_report::findings::Finding;
use tllmprof_report::{Process, Report, Verdict};

/// The thread that makes the steps.
const STEPS: u32 = 10;
/// The thread that runs the event loop.
const LOOP: u32 = 11;
const SAMPLER: u32 = 99;
const WAIT: u8 = 1;

const MS: u64 = 1_000_000;
const ITERATIONS: u64 = 40;
/// Length of an iteration, in nanoseconds.
const LONG: u64 = 100 * MS;
/// Time between two samples of a thread, in nanoseconds.
const PERIOD: u64 = 5 * MS;
/// Number of samples of each thread.
const SAMPLES: u64 = ITERATIONS * LONG / PERIOD;

/// The frames of the stacks: their ID, the ID of the caller, and the name.
const FRAMES: [(u32, u32, &str); 16] = [
    (
        1,
        0,
        "Runner.run (/usr/lib/python3.12/asyncio/runners.py:86)",
    ),
    (
        2,
        1,
        "BaseEventLoop.run_forever (/usr/lib/python3.12/asyncio/base_events.py:629)",
    ),
    (
        3,
        2,
        "BaseEventLoop._run_once (/usr/lib/python3.12/asyncio/base_events.py:1910)",
    ),
    (
        SELECT,
        3,
        "EpollSelector.select (/usr/lib/python3.12/selectors.py:435)",
    ),
    (
        5,
        3,
        "Handle._run (/usr/lib/python3.12/asyncio/events.py:82)",
    ),
    (6, 5, "generate (/opt/server/api.py:30)"),
    (TOKENISE, 6, "encode (/opt/server/tokenizer.py:12)"),
    (8, TOKENISE, "split (/opt/server/tokenizer.py:40)"),
    (OTHER, 5, "write_log (/opt/server/log.py:3)"),
    (GET, 0, "Engine.next_batch (/opt/server/engine.py:9)"),
    (STEP, 0, "Engine.step (/opt/server/engine.py:20)"),
    (
        POLL,
        7,
        "PollSelector.select (/usr/lib/python3.12/selectors.py:400)",
    ),
    (
        UV_BASE,
        0,
        "Thread.run (/usr/lib/python3.12/threading.py:982)",
    ),
    (UV_TOKENISE, UV_BASE, "encode (/opt/server/tokenizer.py:12)"),
    (UV_NATIVE, 0, "/opt/uvloop/loop.so+0x70"),
    (LIBC, UV_NATIVE, "/lib/libc.so.6+0x20"),
];
const SELECT: u32 = 4;
const TOKENISE: u32 = 7;
const SPLIT: u32 = 8;
const OTHER: u32 = 9;
const GET: u32 = 10;
const STEP: u32 = 11;
const POLL: u32 = 12;
const UV_BASE: u32 = 13;
const UV_TOKENISE: u32 = 14;
const UV_NATIVE: u32 = 15;
const LIBC: u32 = 16;

/// The activity of a thread at a sample.
#[derive(Clone, Copy)]
enum Does {
    Runs(u32),
    /// The thread sleeps in a system call, which a Python function has made. The fields are the frame of this function,
    /// the call, and the innermost native frame (0 if it is not known).
    Sleeps(u32, SystemCall, u32),
}

const WAITS: Does = Does::Sleeps(SELECT, SystemCall::EpollWait, 0);
const WAITS_IN_UVLOOP: Does = Does::Sleeps(UV_BASE, SystemCall::EpollWait, LIBC);
const WAITS_FOR_WORK: Does = Does::Sleeps(GET, SystemCall::ReadStream, 0);

/// A server with a thread that makes steps, and one with an event loop. Each function returns what the thread does at
/// the sample whose index is the argument.
struct LoopServer {
    steps: fn(u64) -> Does,
    event_loop: fn(u64) -> Does,
    /// The thread of the event loop.
    thread: u32,
    /// True if the record has the system calls of threads that sleep.
    has_calls: bool,
    /// Additional length of an iteration, in nanoseconds.
    longer: fn(u64) -> u64,
}

impl Default for LoopServer {
    fn default() -> Self {
        Self {
            steps: |_| WAITS_FOR_WORK,
            event_loop: |_| WAITS,
            thread: LOOP,
            has_calls: true,
            longer: |_| 0,
        }
    }
}

impl LoopServer {
    fn process(&self) -> Process {
        let mut builder = Builder::new(7, ClockKind::Monotonic);
        let put = |builder: &mut Builder, thread, at, long, what| {
            builder.push(thread, &Event::new(at, long, what));
        };
        let name = builder.string(STEPS, "cuStreamSynchronize");
        let (row, kind) = (WAIT, Some(CallKind::Wait));
        put(
            &mut builder,
            STEPS,
            0,
            0,
            What::CallName { row, kind, name },
        );
        for (key, value) in [(Info::Python, "3.12.1"), (Info::Version, "0.1.0")] {
            let (key, value) = (Some(key), builder.string(STEPS, value).into());
            put(&mut builder, STEPS, 0, 0, What::Info { key, value });
        }
        let (key, value) = (Some(Info::StacksRate), 200);
        put(&mut builder, STEPS, 0, 0, What::Info { key, value });
        let name = builder.string(SAMPLER, "uvicorn");
        put(&mut builder, LOOP, 0, 0, What::ThreadName { name });
        let mut at = LONG;
        for n in 0..ITERATIONS {
            let long = LONG + (self.longer)(n);
            if n == 0 {
                let (edge, iteration) = (Edge::Open, n);
                put(&mut builder, STEPS, at, 0, What::Window { edge, iteration });
            }
            let what = What::Iteration { n, excluded: false };
            put(&mut builder, STEPS, at, long, what);
            at += long;
        }
        let (edge, iteration) = (Edge::Close, ITERATIONS - 1);
        put(&mut builder, STEPS, at, 0, What::Window { edge, iteration });
        for place in 0..SAMPLES {
            let at = LONG + place * PERIOD + MS;
            let threads = [
                (STEPS, (self.steps)(place)),
                (self.thread, (self.event_loop)(place)),
            ];
            let threads = match self.thread {
                STEPS => &threads[..1],
                _ => &threads[..],
            };
            for (thread, does) in threads {
                self.sample(&mut builder, at + u64::from(*thread), *thread, *does);
            }
        }
        for (id, parent, name) in FRAMES {
            let name = builder.string(SAMPLER, name);
            put(
                &mut builder,
                SAMPLER,
                0,
                0,
                What::Frame { id, parent, name },
            );
        }
        process_of("made", &builder.bytes())
    }

    fn sample(&self, builder: &mut Builder, at: u64, thread: u32, does: Does) {
        let (state, frame) = match does {
            Does::Runs(frame) => (ThreadState::Running, frame),
            Does::Sleeps(frame, ..) => (ThreadState::Sleeping, frame),
        };
        let what = What::Sample {
            taken: Taken::Python,
            state: Some(state),
            thread,
            frame,
        };
        builder.push(SAMPLER, &Event::new(at, 0, what));
        if let Does::Sleeps(_, call, native) = does {
            let what = What::Asleep {
                call: Some(call),
                has_timeout: false,
                has_short_timeout: false,
                continues: false,
                thread,
                frame: native,
            };
            if self.has_calls {
                builder.push(SAMPLER, &Event::new(at, 0, what));
            }
        }
    }

    /// Returns the findings `event-loop` and `late-answers`.
    fn findings(&self) -> [Finding; 2] {
        let report = Report::new(vec![self.process()]);
        ["event-loop", "late-answers"].map(|name| {
            let mut found = report.findings.iter();
            found.find(|one| one.rule.name == name).unwrap().clone()
        })
    }

    #[track_caller]
    fn is_judged(&self, expected: [Verdict; 2]) -> [String; 2] {
        let found = self.findings();
        let verdicts = found.each_ref().map(|one| one.verdict);
        assert_eq!(verdicts, expected, "{found:#?}");
        found.map(|one| one.evidence)
    }
}

/// In each second sample of a callback, the thread is in another function that the common function calls.
const fn tokenises(place: u64) -> Does {
    Does::Runs(if place.is_multiple_of(2) {
        TOKENISE
    } else {
        SPLIT
    })
}

/// For 200 ms of each second, the loop runs one callback.
fn is_blocked_at_times(place: u64) -> Does {
    match place % 200 {
        0..40 => tokenises(place),
        _ => WAITS,
    }
}

#[test]
fn a_callback_that_runs_for_long_while_the_steps_wait() {
    let made = LoopServer {
        event_loop: is_blocked_at_times,
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::Yes, Verdict::No]);
    assert_eq!(
        evidence,
        "the event loop of thread uvicorn goes up to 195 ms without a wait for events, 4 times over 50.0 ms: 19.5 % of its time, \
         100 % of that in encode (tokenizer.py:12); meanwhile the step's thread waits for work or another event in 100 % of the \
         samples, in 8 steps (0, 1, 10, 11, …)"
    );
    assert!(made.findings()[0].loss.is_none());
    assert!(made.findings()[0].advice.contains("asyncio.to_thread"));
}

#[test]
fn steps_that_wait_for_the_event_loop_take_longer() {
    // A longer iteration does not delay the samples, so the additional time has to be short.
    let made = LoopServer {
        event_loop: is_blocked_at_times,
        longer: |n| if n < 2 { 2 * MS } else { 0 },
        ..LoopServer::default()
    };
    let [found, _] = made.findings();
    assert_eq!(found.loss, None, "{found:#?}");
    let made = LoopServer {
        longer: |n| if n % 10 < 2 { 4 * MS } else { 0 },
        ..made
    };
    let [found, _] = made.findings();
    let loss = found.loss.unwrap_or(0.0);
    assert!((0.005..0.01).contains(&loss), "{found:#?}");
    assert!(
        found.evidence.ends_with(" longer each than the others"),
        "{}",
        found.evidence
    );
}

#[test]
fn a_callback_that_runs_for_long_while_the_steps_run() {
    let made = LoopServer {
        steps: |_| Does::Runs(STEP),
        event_loop: is_blocked_at_times,
        ..LoopServer::default()
    };
    let [_, evidence] = made.is_judged([Verdict::No, Verdict::Yes]);
    let end = "the steps do not wait for it, but answers of 8 steps are late (0, 1, 10, 11, …)";
    assert!(evidence.ends_with(end), "{evidence}");
}

#[test]
fn a_callback_that_sleeps_or_waits_in_a_selector_of_its_own_is_blocked() {
    for sleep in [
        Does::Sleeps(TOKENISE, SystemCall::ClockNanosleep, 0),
        Does::Sleeps(POLL, SystemCall::Poll, 0),
    ] {
        let does: fn(u64) -> Does = match sleep {
            Does::Sleeps(POLL, ..) => |place| match place % 200 {
                0..40 => Does::Sleeps(POLL, SystemCall::Poll, 0),
                _ => WAITS,
            },
            _ => |place| match place % 200 {
                0..40 => Does::Sleeps(TOKENISE, SystemCall::ClockNanosleep, 0),
                _ => WAITS,
            },
        };
        let made = LoopServer {
            event_loop: does,
            ..LoopServer::default()
        };
        let [evidence, _] = made.is_judged([Verdict::Yes, Verdict::No]);
        assert!(evidence.contains("4 times over 50.0 ms"), "{evidence}");
    }
}

#[test]
fn uvloop_is_recognized_by_its_native_functions() {
    let made = LoopServer {
        event_loop: |place| match place % 200 {
            0..40 => Does::Runs(UV_TOKENISE),
            _ => WAITS_IN_UVLOOP,
        },
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::Yes, Verdict::No]);
    assert!(
        evidence.contains("in encode (tokenizer.py:12)"),
        "{evidence}"
    );
}

/// Returns a number that looks random.
const fn random(place: u64) -> u64 {
    let mixed = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
}

#[test]
fn a_healthy_event_loop_is_not_blocked() {
    // The loop mostly waits.
    LoopServer::default().is_judged([Verdict::No; 2]);
    // The loop runs many short callbacks for 80 % of the time. By chance, some samples in a row are all in callbacks.
    let busy = LoopServer {
        event_loop: |place| match random(place) % 10 {
            0 | 1 => WAITS,
            _ => tokenises(place),
        },
        ..LoopServer::default()
    };
    let [evidence, _] = busy.is_judged([Verdict::No; 2]);
    assert!(evidence.contains("never goes over"), "{evidence}");
    // The loop runs different callbacks, one after the other, for longer than a block.
    let different = LoopServer {
        event_loop: |place| match (place % 200, place % 8) {
            (40.., _) => WAITS,
            (_, 0..4) => Does::Runs(TOKENISE),
            _ => Does::Runs(OTHER),
        },
        ..LoopServer::default()
    };
    different.is_judged([Verdict::No; 2]);
}

#[test]
fn an_event_loop_without_waits_is_saturated() {
    let made = LoopServer {
        event_loop: |place| match place % 50 {
            0 => WAITS,
            _ if place % 8 < 4 => Does::Runs(TOKENISE),
            _ => Does::Runs(OTHER),
        },
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::Yes, Verdict::No]);
    let says = "it is saturated: it runs callbacks 98.0 % of the time";
    assert!(evidence.contains(says), "{evidence}");
}

#[test]
fn a_program_that_does_all_its_work_in_one_callback_serves_no_requests() {
    let made = LoopServer {
        event_loop: tokenises,
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::No; 2]);
    assert!(
        evidence.contains("hardly ever ends a callback"),
        "{evidence}"
    );
}

#[test]
fn steps_within_the_event_loop_are_left_to_other_findings() {
    let made = LoopServer {
        steps: is_blocked_at_times,
        event_loop: is_blocked_at_times,
        thread: STEPS,
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::No; 2]);
    assert!(
        evidence.contains("runs the steps in its event loop"),
        "{evidence}"
    );
}

#[test]
fn without_system_calls_it_is_unknown() {
    let made = LoopServer {
        event_loop: is_blocked_at_times,
        has_calls: false,
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::Unknown; 2]);
    assert!(
        evidence.contains("does not state the system calls"),
        "{evidence}"
    );
    assert!(made.findings()[0].advice.contains("--stacks"));
}

#[test]
fn a_thread_that_waits_in_a_poll_is_no_event_loop() {
    let made = LoopServer {
        event_loop: |_| Does::Sleeps(STEP, SystemCall::Poll, 0),
        ..LoopServer::default()
    };
    let [evidence, _] = made.is_judged([Verdict::No; 2]);
    assert!(evidence.starts_with("no sampled thread runs"), "{evidence}");
}
