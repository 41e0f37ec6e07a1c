//! Tests of sampled stacks: with enough samples to divide the time in the ledger (time by cause) by function, and with
//! too few.

use std::fs;

use crate::common::{fits, json, process as process_of};
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    CallKind, ClockKind, Edge, Event, Info, StringId, SystemCall, Taken, ThreadState, Used, What,
};
use tllmprof_report::{Comparison, LedgerKind, LedgerRow, Process, Report};

const MAIN: u32 = 10;
const SAMPLER: u32 = 99;
const LAUNCH: u8 = 0;
const WAIT: u8 = 1;

const MS: u64 = 1_000_000;
/// Number of iterations in the record.
const ITERATIONS: u64 = 20;
/// Length of an iteration, in nanoseconds.
const LONG: u64 = 100 * MS;
/// Length of the wait at the end of an iteration, in nanoseconds.
const WAITS: u64 = 20 * MS;
/// Length of the launch before the wait, in nanoseconds.
const LAUNCHES: u64 = MS;

/// The contents of a sample of a stack, without its time and thread.
#[derive(Clone, Copy)]
struct SampleContents {
    taken: Taken,
    state: ThreadState,
    /// The ID of the innermost frame (see [`SampledLoop::frames`]); 0 if there is none.
    frame: u32,
}

const fn python(frame: u32) -> SampleContents {
    SampleContents {
        taken: Taken::Python,
        state: ThreadState::Running,
        frame,
    }
}

const STEP: u32 = 1;
const SCHEDULE: u32 = 2;
const SAMPLE: u32 = 3;
const SLEEP: u32 = 4;
const GEMM: u32 = 5;

/// A record of iterations with samples of the thread that runs them. No event explains the code before each launch, so
/// the samples divide the time of this code by function.
struct SampledLoop {
    builder: Builder,
    samples: u64,
}

impl SampledLoop {
    fn new() -> Self {
        Self::longer(0)
    }

    /// Returns a record in which the GPU work of the last iteration takes `more` nanoseconds
    /// longer.
    fn longer(more: u64) -> Self {
        let builder = Builder::new(7, ClockKind::Monotonic);
        let mut made = Self {
            builder,
            samples: 0,
        };
        for (row, kind, name) in [
            (LAUNCH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        ] {
            let name = made.builder.string(MAIN, name);
            let kind = Some(kind);
            made.put(MAIN, 0, 0, What::CallName { row, kind, name });
        }
        let key = Some(Info::StacksRate);
        made.put(MAIN, 0, 0, What::Info { key, value: 1000 });
        let last = ITERATIONS - 1;
        for (at, edge, iteration) in [(1, Edge::Open, 0), (ITERATIONS + 1, Edge::Close, last)] {
            made.put(MAIN, at * LONG + more, 0, What::Window { edge, iteration });
        }
        for n in 0..ITERATIONS {
            let start = (n + 1) * LONG;
            let more = if n == last { more } else { 0 };
            made.call(start + LONG - WAITS - LAUNCHES, LAUNCHES, LAUNCH);
            made.call(start + LONG - WAITS, WAITS + more, WAIT);
            let what = What::Iteration { n, excluded: false };
            made.put(MAIN, start, LONG + more, what);
            let (device, stream) = (0, 0);
            let what = What::GpuSpan {
                device,
                stream,
                iteration: n,
            };
            made.put(MAIN, start + LONG - WAITS, WAITS + more, what);
        }
        made
    }

    fn put(&mut self, thread: u32, at: u64, long: u64, what: What) {
        self.builder.push(thread, &Event::new(at, long, what));
    }

    fn call(&mut self, at: u64, long: u64, row: u8) {
        let (capturing, stream) = (false, 0);
        let what = What::Call {
            row,
            capturing,
            stream,
        };
        self.put(MAIN, at, long, what);
    }

    fn sample(&mut self, at: u64, thread: u32, shows: SampleContents) {
        let SampleContents {
            taken,
            state,
            frame,
        } = shows;
        let state = Some(state);
        let what = What::Sample {
            taken,
            state,
            thread,
            frame,
        };
        self.put(SAMPLER, at, 0, what);
        self.samples += 1;
    }

    /// Writes samples of iteration `n`: `many` samples at equal distances in the iteration's code, one sample in the
    /// launch, and one in the wait. `each` returns the contents of a sample in the code; its argument is the sample's
    /// index.
    fn samples(&mut self, n: u64, many: u64, each: impl Fn(u64) -> SampleContents) {
        let start = (n + 1) * LONG;
        let code = LONG - WAITS - LAUNCHES;
        for place in 0..many {
            self.sample(start + code * place / many + 10, MAIN, each(place));
        }
        self.sample(start + code + 10, MAIN, python(STEP));
        self.sample(start + code + LAUNCHES + 10, MAIN, python(STEP));
    }

    /// Writes the frames, which come after the samples in a record.
    fn frames(&mut self) {
        self.frame(STEP, 0, "Engine.step (/opt/engine/core.py:10)");
        self.frame(
            SCHEDULE,
            STEP,
            "Scheduler.schedule (/opt/engine/sched.py:211)",
        );
        self.frame(SAMPLE, STEP, "sample (/opt/engine/sample.py:7)");
        self.frame(SLEEP, STEP, "Lock.wait (/opt/engine/lock.py:3)");
        self.frame(GEMM, 0, "/opt/lib/libcpu.so+0x1a2b");
    }

    fn frame(&mut self, id: u32, parent: u32, name: &str) -> StringId {
        let name = self.builder.string(SAMPLER, name);
        self.put(SAMPLER, 0, 0, What::Frame { id, parent, name });
        name
    }

    fn process(mut self) -> Process {
        self.frames();
        process_of("made", &self.builder.bytes())
    }
}

fn rounded(rows: &[LedgerRow]) -> Vec<(&str, f64)> {
    let rounded = |share: f64| (share * 1e3).round() / 1e3;
    let rows = rows.iter();
    rows.map(|row| (&*row.cause, rounded(row.share))).collect()
}

fn sum(rows: &[LedgerRow]) -> u64 {
    rows.iter().map(|row| row.ns).sum()
}

/// Returns the sample with the index `place`: of 10 samples, 7 are in one function, 2 are in
/// another, and 1 is of a sleep in a third.
fn shares(place: u64) -> SampleContents {
    match place % 10 {
        0..7 => python(SCHEDULE),
        7 | 8 => python(SAMPLE),
        _ => SampleContents {
            state: ThreadState::Sleeping,
            ..python(SLEEP)
        },
    }
}

#[test]
fn code_is_divided_by_the_functions_that_ran() {
    let mut made = SampledLoop::new();
    for n in 0..ITERATIONS {
        made.samples(n, 20, shares);
    }
    // Samples of another thread, and samples outside iterations, must not be counted.
    made.sample(LONG + 5, MAIN + 1, python(SAMPLE));
    made.sample(LONG / 2, MAIN, python(SAMPLE));
    let process = made.process();
    // The code before the launches takes 79 % of the time. The samples divide this time into 70 %, 20 % and 10 %.
    let expected = [
        ("Python: Scheduler.schedule (sched.py:211)", 0.553),
        ("waiting for the GPU: cuStreamSynchronize", 0.2),
        ("Python: sample (sample.py:7)", 0.158),
        ("asleep or blocked in Lock.wait (lock.py:3)", 0.079),
        ("launching", 0.01),
    ];
    assert_eq!(rounded(&process.ledger.host), expected);
    assert_eq!(sum(&process.ledger.host), ITERATIONS * LONG);
    let kinds: Vec<_> = process.ledger.host.iter().map(|row| row.kind).collect();
    let python = LedgerKind::Python;
    let [wait, asleep, launch] = [LedgerKind::Wait, LedgerKind::Blocked, LedgerKind::Launch];
    assert_eq!(kinds, [python, wait, python, asleep, launch]);
    let places: Vec<_> = (process.ledger.host.iter())
        .map(|row| row.location.as_ref().map(|at| (&*at.function, at.line)))
        .collect();
    let lines = [("Scheduler.schedule", 211), ("sample", 7), ("Lock.wait", 3)];
    let [schedule, sample, lock] = lines.map(|(function, line)| Some((function, Some(line))));
    assert_eq!(places, [schedule, None, sample, lock, None]);
    // The GPU is idle during the code and the launch. Its idle time is divided in the same way as
    // the host's time.
    let gpu = [
        ("idle: Python: Scheduler.schedule (sched.py:211)", 0.553),
        ("from first work to last", 0.2),
        ("idle: Python: sample (sample.py:7)", 0.158),
        ("idle: asleep or blocked in Lock.wait (lock.py:3)", 0.079),
        ("idle: launching", 0.01),
    ];
    assert_eq!(rounded(&process.ledger.gpu), gpu);
    assert_eq!(process.ledger.details.windows[0].host, process.ledger.host);

    let stacks = &process.stacks;
    assert_eq!(stacks.counts.samples, ITERATIONS * 22);
    assert_eq!(stacks.windows, [stacks.counts]);
    assert_eq!(stacks.interval, Some(LONG / 22));
    let tree = stacks.python.iter();
    let tree: Vec<_> = tree
        .map(|node| {
            let of = &node.of;
            (&of.name[..6], node.parent, of.samples, of.asleep)
        })
        .collect();
    let expected = [
        ("Engine", None, 440, 40),
        ("Schedu", Some(0), 280, 0),
        ("sample", Some(0), 80, 0),
        ("Lock.w", Some(0), 40, 40),
    ];
    assert_eq!(tree, expected);
    let names = stacks.functions.iter();
    let names: Vec<_> = names.map(|one| (one.samples, one.asleep)).collect();
    assert_eq!(names, [(280, 0), (80, 0), (40, 0), (40, 40)]);

    let report = Report::new(vec![process]);
    let text = report.text();
    let line = "stacks: 440 samples at 222 Hz (1000 Hz asked for),\n      63.6 % in Scheduler.schedule (sched.py:211), …";
    assert!(text.contains(line), "{text}");
    fits(&text, 44);
    let found = &report.findings[0];
    assert_eq!(found.rule.name, "host-bound");
    assert!(
        found
            .evidence
            .ends_with("runs code, 77.8 % of that in Scheduler.schedule (sched.py:211)"),
        "{}",
        found.evidence
    );
    assert!(!found.advice.contains("--stacks"), "{}", found.advice);
    let json = json(&report);
    let stacks = &json["processes"][0]["stacks"];
    assert_eq!(stacks["rate"], 1000);
    assert_eq!(stacks["achieved"], 222);
    assert!(stacks["achieved_native"].is_null());
    assert_eq!(stacks["told_apart"], true);
    assert_eq!(stacks["windows"][0], stacks["counts"]);
    assert_eq!(stacks["tree"][1]["samples"], 280);
}

#[test]
fn few_samples_distinguish_no_functions() {
    let mut made = SampledLoop::new();
    // This gives 199 samples, one less than are needed to divide time by function.
    for n in 0..9 {
        made.samples(n, 20, shares);
    }
    made.sample((ITERATIONS + 1) * LONG - 5, MAIN, python(SAMPLE));
    let without = SampledLoop::new().process();
    let process = made.process();
    assert_eq!(process.stacks.counts.samples, 199);
    assert_eq!(process.ledger.host, without.ledger.host);
    assert_eq!(without.stacks.counts.samples, 0);
    let report = Report::new(vec![process]);
    let line = "stacks: 199 samples at 99 Hz (1000 Hz asked for),\n      too few samples to name functions (200 are needed)\n";
    let text = report.text();
    assert!(text.contains(line), "{text}");
    let found = &report.findings[0];
    assert_eq!(found.rule.name, "host-bound");
    // There are too few samples to divide time by function, but enough to name the function that
    // most samples have in common.
    assert!(
        found.evidence.contains(" of that in "),
        "{}",
        found.evidence
    );
    assert!(!found.advice.contains("--stacks"), "{}", found.advice);
}

#[test]
fn rejected_samples_divide_nothing_and_are_counted() {
    let mut made = SampledLoop::new();
    for n in 0..ITERATIONS {
        made.samples(n, 20, |place| match place % 4 {
            0 => SampleContents {
                taken: Taken::Torn,
                ..python(0)
            },
            // The record has no frame with this ID, so the sample counts as one in no Python
            // function.
            1 => python(4711),
            _ => python(SCHEDULE),
        });
    }
    let process = made.process();
    assert_eq!(process.stacks.counts.samples, ITERATIONS * 12);
    assert_eq!(process.stacks.counts.rejected, ITERATIONS * 10);
    let first = rounded(&process.ledger.host)[0];
    assert_eq!(first, ("Python: Scheduler.schedule (sched.py:211)", 0.79));
    let text = Report::new(vec![process]).text();
    let line = "stacks: 240 samples at 222 Hz (1000 Hz asked for), 45.5 % rejected,";
    assert!(text.lines().any(|other| other.starts_with(line)), "{text}");
}

/// 1000 samples per second were requested. Native stacks were sampled at only 250 Hz, because the timer of the
/// operating system's kernel ticks at this rate.
#[test]
fn the_rate_is_reported_that_was_achieved() {
    let mut made = SampledLoop::new();
    let native = SampleContents {
        taken: Taken::Native,
        ..python(GEMM)
    };
    for at in 0..ITERATIONS * LONG / MS {
        made.sample(LONG + at * MS, MAIN, python(SCHEDULE));
        if at % 4 == 0 {
            made.sample(LONG + at * MS + 1, MAIN, native);
        }
    }
    let report = Report::new(vec![made.process()]);
    let line = "stacks: 2000 samples at 1000 Hz and 500 native at 250 Hz (1000 Hz asked for),";
    let text = report.text();
    assert!(text.lines().any(|other| other.starts_with(line)), "{text}");
    let json = json(&report);
    let stacks = &json["processes"][0]["stacks"];
    let rates = ["rate", "achieved", "achieved_native"].map(|key| stacks[key].as_u64());
    assert_eq!(rates, [Some(1000), Some(1000), Some(250)]);
}

#[test]
fn off_the_processor_and_native_code_have_rows_of_their_own() {
    let mut made = SampledLoop::new();
    for n in 0..ITERATIONS {
        made.samples(n, 20, |place| match place % 10 {
            0..5 => python(SCHEDULE),
            5 | 6 => SampleContents {
                state: ThreadState::Runnable,
                ..python(SCHEDULE)
            },
            _ => SampleContents {
                taken: Taken::NoPython,
                ..python(0)
            },
        });
        // Samples of native stacks are counted separately from other samples.
        let native = SampleContents {
            taken: Taken::Native,
            ..python(GEMM)
        };
        made.sample((n + 1) * LONG + 100, MAIN, native);
    }
    let process = made.process();
    let expected = [
        ("Python: Scheduler.schedule (sched.py:211)", 0.395),
        ("native: libcpu.so+0x1a2b", 0.237),
        ("waiting for the GPU: cuStreamSynchronize", 0.2),
        ("waiting for a processor", 0.158),
        ("launching", 0.01),
    ];
    assert_eq!(rounded(&process.ledger.host), expected);
    assert_eq!(sum(&process.ledger.host), ITERATIONS * LONG);
    assert_eq!(process.stacks.counts.native, ITERATIONS);
    assert_eq!(process.stacks.native[0].of.samples, ITERATIONS);
    let outside = process.stacks.python.iter();
    let outside: Vec<_> = outside.filter(|node| node.parent.is_none()).collect();
    assert_eq!(outside[1].of.name, "in no Python function");
    // Time in which the thread waits for a processor is not counted as time in code.
    let report = Report::new(vec![process]);
    let found = &report.findings[0];
    let evidence = "the GPU has nothing to do 63.2 % of the time while the host runs code, \
                    62.5 % of that in Scheduler.schedule (sched.py:211)";
    assert_eq!(
        (found.rule.name, &*found.evidence),
        ("host-bound", evidence)
    );
    assert!((found.loss.unwrap() - 0.632).abs() < 1e-3, "{found:?}");
}

/// In half of the samples of the code, the thread sleeps in one of two system calls. For each of these samples, the
/// record has the system call and the native frame that made it.
#[test]
fn sleeps_are_named_by_their_functions_and_native_stacks_divide_what_ran() {
    let mut made = SampledLoop::new();
    made.frame(21, 0, "/opt/server+0x10");
    made.frame(22, 21, "/lib/libc.so.6+0x20");
    let outside = |state| SampleContents {
        taken: Taken::NoPython,
        state,
        frame: 0,
    };
    for n in 0..ITERATIONS {
        for place in 0..20 {
            let at = (n + 1) * LONG + place * 3 * MS;
            let sleep = match place % 10 {
                0..3 => Some((SystemCall::ClockNanosleep, 0)),
                3 | 4 => Some((SystemCall::Fsync, SCHEDULE)),
                _ => None,
            };
            let Some((call, caller)) = sleep else {
                made.sample(at, MAIN, outside(ThreadState::Running));
                let native = SampleContents {
                    taken: Taken::Native,
                    ..python(GEMM)
                };
                made.sample(at + 7, MAIN, native);
                continue;
            };
            let shows = match caller {
                0 => outside(ThreadState::Sleeping),
                frame => SampleContents {
                    state: ThreadState::Sleeping,
                    ..python(frame)
                },
            };
            made.sample(at, MAIN, shows);
            let what = What::Asleep {
                call: Some(call),
                has_timeout: false,
                has_short_timeout: false,
                continues: false,
                thread: MAIN,
                frame: 22,
            };
            made.put(SAMPLER, at, 0, what);
        }
    }
    let process = made.process();
    let expected = [
        ("native: libcpu.so+0x1a2b", 0.395),
        ("asleep in server+0x10: clock_nanosleep", 0.237),
        ("waiting for the GPU: cuStreamSynchronize", 0.2),
        (
            "waiting for a file in server+0x10, called by Scheduler.schedule (sched.py:211): fsync",
            0.158,
        ),
        ("launching", 0.01),
    ];
    assert_eq!(rounded(&process.ledger.host), expected);
    assert_eq!(sum(&process.ledger.host), ITERATIONS * LONG);
    let blocked = process.ledger.host_share(LedgerKind::Blocked);
    assert!((blocked - 0.395).abs() < 1e-3, "{blocked}");
}

/// The record has only samples of native stacks, and no native stack is sampled while a thread sleeps. The operating
/// system's kernel reports how long the thread ran.
#[test]
fn without_samples_of_sleeps_native_stacks_divide_what_the_kernel_says_ran() {
    let mut made = SampledLoop::new();
    let code = LONG - WAITS - LAUNCHES;
    for n in 0..ITERATIONS {
        // In this test the thread is on a processor for a quarter of the time in its code, and during the whole launch.
        let what = What::Used {
            what: Some(Used::Ran),
            iteration: n as u32,
            count: 1,
        };
        made.put(MAIN, (n + 2) * LONG - 1, code / 4 + LAUNCHES, what);
        for place in 0..20 {
            let native = SampleContents {
                taken: Taken::Native,
                ..python(GEMM)
            };
            made.sample((n + 1) * LONG + place * MS, MAIN, native);
        }
    }
    let process = made.process();
    let between = "asleep or blocked between cuStreamSynchronize and cuGraphLaunch";
    let found = rounded(&process.ledger.host);
    let share = |cause: &str| {
        let rows = found.iter().filter(|(known, _)| *known == cause);
        rows.map(|(_, share)| share).sum::<f64>()
    };
    // In the first iteration no call precedes the code, so its sleep has a row of its own.
    let asleep = share(between) + share("asleep or blocked before cuGraphLaunch");
    assert!((asleep - 0.79 * 0.75).abs() < 0.02, "{found:?}");
    let native = share("native: libcpu.so+0x1a2b");
    assert!((native - 0.79 * 0.25).abs() < 0.02, "{found:?}");
    assert_eq!(sum(&process.ledger.host), ITERATIONS * LONG);
}

#[test]
fn native_functions_have_their_names_where_the_files_are_here() {
    let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else {
        return crate::skipped::skipped("the kernel has no boot id");
    };
    let own = fs::read_link("/proc/self/exe").unwrap();
    let image = tllmprof_symbols::Image::open(&own).unwrap();
    let functions = image.functions();
    let known = functions.iter().find_map(|function| {
        let name = function.names.first()?;
        let name = tllmprof_symbols::demangle(name)?;
        let is_it = name.contains("tllmprof_report") && function.size > 1;
        is_it.then_some((function.address?, name))
    });
    let (address, name) = known.unwrap();
    let label = |boot: &str| {
        let mut made = SampledLoop::new();
        let key = Some(Info::Boot);
        let value = made.builder.string(MAIN, boot).into();
        made.put(MAIN, 0, 0, What::Info { key, value });
        made.frame(77, 0, &format!("{}+0x{:x}", own.display(), address + 1));
        let native = SampleContents {
            taken: Taken::Native,
            ..python(77)
        };
        for n in 0..ITERATIONS {
            (0..10).for_each(|at| made.sample((n + 1) * LONG + at * MS, MAIN, native));
        }
        made.process().stacks.native[0].of.name.clone()
    };
    let shown: String = name.chars().take(256).collect();
    assert_eq!(label(boot.trim()), shown);
    // This record is from another boot, that is, perhaps from another machine, on which a file of the same name may be
    // different. So the function is not looked up.
    let elsewhere = label("another-boot");
    assert!(elsewhere.contains("+0x"), "{elsewhere}");
}

#[test]
fn slow_iterations_differ_by_functions_where_both_have_enough_samples() {
    let (odd, more) = (ITERATIONS - 1, 1_000_000);
    let differences = |many| {
        let mut made = SampledLoop::longer(more);
        for n in 0..ITERATIONS {
            let function = if n == odd { SAMPLE } else { SCHEDULE };
            made.samples(n, many, |_| python(function));
        }
        let process = made.process();
        let slow = process.slowest.iter().find(|slow| slow.n == odd).unwrap();
        let causes = slow.causes.iter();
        let causes = causes.map(|cause| (cause.cause.clone(), cause.more));
        causes.collect::<Vec<_>>()
    };
    let code = (LONG - WAITS - LAUNCHES) as i64;
    let expected = [
        ("GPU work".to_owned(), more as i64),
        (
            "Python: Scheduler.schedule (sched.py:211)".to_owned(),
            -code,
        ),
        ("Python: sample (sample.py:7)".to_owned(), code),
    ];
    let mut found = differences(200);
    found.sort();
    assert_eq!(found, expected);
    let few = differences(100);
    assert!(
        few.iter().all(|(cause, _)| !cause.contains("Python")),
        "{few:?}"
    );
}

#[test]
fn runs_differ_by_functions_that_samples_distinguish() {
    let run = |schedules: u64| {
        let mut made = SampledLoop::new();
        for n in 0..ITERATIONS {
            made.samples(n, 100, |place| match place % 10 {
                at if at < schedules => python(SCHEDULE),
                _ => python(SAMPLE),
            });
        }
        made.process()
    };
    let [base, other] = [run(8), run(2)];
    let comparison = Comparison::compare(&[base], &[other]);
    let mut bytes = Vec::new();
    comparison.json(&mut bytes).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let functions = json["functions"].as_array().unwrap();
    let names: Vec<_> = functions.iter().map(|one| &one["name"]).collect();
    let expected = [
        "Python: Scheduler.schedule (sched.py:211)",
        "Python: sample (sample.py:7)",
    ];
    assert_eq!(names, expected);
    let base = functions[0]["base_ns"].as_f64().unwrap();
    let code = (LONG - WAITS - LAUNCHES) as f64;
    assert!((base - 0.8 * code).abs() < 0.01 * code, "{base}");
    let change = functions[0]["change"]["relative"].as_f64().unwrap();
    assert!((change + 0.75).abs() < 0.01, "{change}");
    let text = comparison.text();
    assert!(text.contains("host by samples, time a step"), "{text}");
    fits(&text, 44);
    // If a run is compared with itself, there are no differences.
    let same = Comparison::compare(&[run(8)], &[run(8)]).text();
    assert!(!same.contains("host by samples"), "{same}");
}
