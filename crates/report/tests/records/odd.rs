//! Tests with unusual records. No figure may be given for data that were not measured. A figure
//! that is not based on all iterations must say on how many it is based.

use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Batch, CallKind, ClockKind, CopyKind, Edge, Event, HEADER_BYTES, Info, What,
};
use tllmprof_report::{Comparison, Process, Report};

use crate::common::{fits, json, process};

const MS: u64 = 1_000_000;
const LAUNCH: u8 = 1;
const WAIT: u8 = 8;

/// A loop of steps of 1 ms, each with a launch and a wait.
#[derive(Clone)]
struct OddRecord {
    rank: u64,
    first: u64,
    steps: u64,
    /// Returns the GPU time of a step in nanoseconds; `None` if it was not measured.
    gpu: fn(u64) -> Option<u64>,
    /// Number of steps with recorded kernels, at the beginning of the record.
    kernels: u64,
    /// Time of a kernel in nanoseconds; 0 if the driver does not report it.
    kernel: u64,
    excluded: fn(u64) -> bool,
    /// Returns the additional time of a step, in nanoseconds.
    longer: fn(u64) -> u64,
    batch: Option<Batch>,
    /// Returns true for steps that are missing from the record.
    missing: fn(u64) -> bool,
    command: &'static str,
    /// Number of ranks that a launcher such as `torchrun` sets; `None` if there is no launcher. If it is set, the
    /// record also names the environment variable from which the rank was read (`RANK`).
    world: Option<u64>,
}

impl Default for OddRecord {
    fn default() -> Self {
        Self {
            rank: 0,
            first: 0,
            steps: 10,
            gpu: |_| None,
            kernels: 0,
            kernel: 0,
            excluded: |_| false,
            longer: |_| 0,
            batch: None,
            missing: |_| false,
            command: "",
            world: None,
        }
    }
}

impl OddRecord {
    fn process(&self) -> Process {
        self.process_of(100 + self.rank as u32)
    }

    fn process_of(&self, pid: u32) -> Process {
        let mut builder = Builder::new(pid, ClockKind::Monotonic);
        let names = [
            "cuLaunchKernel",
            "cuStreamSynchronize",
            "gemm",
            self.command,
            "RANK",
        ];
        let [launch, wait, gemm, command, source] = names.map(|name| builder.string(1, name));
        let mut put = |at, long, what| builder.push(1, &Event::new(at, long, what));
        let (key, value) = (Some(Info::Rank), self.rank);
        put(0, 0, What::Info { key, value });
        let (key, value) = (Some(Info::CommandLine), u64::from(command));
        put(0, 0, What::Info { key, value });
        if let Some(size) = self.world {
            for (key, value) in [
                (Info::WorldSize, size),
                (Info::RankSource, u64::from(source)),
            ] {
                let key = Some(key);
                put(0, 0, What::Info { key, value });
            }
        }
        for (row, kind, name) in [
            (LAUNCH, CallKind::KernelLaunch, launch),
            (WAIT, CallKind::Wait, wait),
        ] {
            let kind = Some(kind);
            put(0, 0, What::CallName { row, kind, name });
        }
        let mut at = MS;
        for n in self.first..self.first + self.steps {
            let long = MS - 10 + (self.longer)(n);
            if n == self.first {
                let (edge, iteration) = (Edge::Open, n);
                put(at, 0, What::Window { edge, iteration });
            }
            let place = n - self.first;
            for (edge, of) in [(Edge::Open, 0), (Edge::Close, self.kernels.wrapping_sub(1))] {
                if self.kernels > 0 && place == of {
                    let iteration = n;
                    put(at, 0, What::KernelWindow { edge, iteration });
                }
            }
            if (self.missing)(n) {
                at += long + 10;
                continue;
            }
            let excluded = (self.excluded)(n);
            put(at, long, What::Iteration { n, excluded });
            for (row, from, took) in [(LAUNCH, 10, 1000), (WAIT, MS / 2, MS / 4)] {
                let (capturing, stream) = (false, 7);
                let call = What::Call {
                    row,
                    capturing,
                    stream,
                };
                put(at + from, took, call);
            }
            let (device, stream) = (0, 0);
            if let Some(busy) = (self.gpu)(n) {
                let iteration = n;
                let span = What::GpuSpan {
                    device,
                    stream,
                    iteration,
                };
                put(at + 20, busy, span);
            }
            if place < self.kernels {
                let (name, correlation) = (gemm, 0);
                let kernel = What::GpuKernel {
                    device,
                    stream,
                    name,
                    correlation,
                };
                put(at + 50, self.kernel, kernel);
                let (kind, bytes) = (CopyKind::HostToDevice, 4096);
                let copy = What::GpuCopy {
                    device,
                    stream,
                    kind,
                    bytes,
                };
                put(at + 60, 0, copy);
            }
            if let Some(batch) = self.batch {
                let iteration = n as u16;
                put(at, 0, What::Batch { iteration, batch });
            }
            at += long + 10;
        }
        let (edge, iteration) = (Edge::Close, self.first + self.steps - 1);
        put(at, 0, What::Window { edge, iteration });
        process("odd", &builder.bytes())
    }

    fn report(&self) -> (String, Value) {
        let report = Report::new(vec![self.process()]);
        let text = report.text();
        fits(&text, 44);
        (text, json(&report)["processes"][0].clone())
    }
}

/// Returns the text of the report on some ranks, and the part `skew` of the report's JSON.
fn ranks(ranks: &[OddRecord]) -> (String, Value) {
    let report = Report::new(ranks.iter().map(OddRecord::process).collect());
    let text = report.text();
    fits(&text, 44);
    (text, json(&report)["skew"].clone())
}

#[test]
fn times_of_kernels_that_the_driver_does_not_say_are_none() {
    let odd = OddRecord {
        gpu: |_| Some(MS / 2),
        kernels: 3,
        ..OddRecord::default()
    };
    let (text, json) = odd.report();
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<_> = lines.collect();
    for line in ["1.00 – – – gemm", "copies, in all: 3 HtoD of 12.0 KiB"] {
        assert!(lines.iter().any(|found| found == line), "{line}\n{text}");
    }
    // If the times of kernels are not known, the GPU's busy time is not known, either.
    assert!(!text.contains("GPU busy"), "{text}");
    assert_eq!(json["gpu_busy_share"], Value::Null);
    let kernel = &json["kernels"][0];
    assert_eq!(
        (&kernel["count"], &kernel["total_ns"]),
        (&3.into(), &Value::Null)
    );
    assert_eq!(json["copies"][0]["total_ns"], Value::Null);
    let taken = &json["kernel_window"];
    assert_eq!(
        (&taken["kernels"], &taken["busy_ns"]),
        (&3.into(), &Value::Null)
    );
    // Kernels whose times are not known are left out of comparisons.
    let text = Comparison::compare(&[odd.process()], &[odd.process()]).text();
    assert!(!text.contains("kernel, time"), "{text}");
    assert!(!text.contains("GPU busy, mean"), "{text}");
}

#[test]
fn kernels_of_iterations_that_do_not_count_are_no_kernels_of_those_that_do() {
    let odd = OddRecord {
        kernels: 3,
        kernel: 1000,
        excluded: |n| n < 3,
        ..OddRecord::default()
    };
    let (text, _) = odd.report();
    assert!(
        text.contains("\nkernels were taken in no iteration that counts\n"),
        "{text}"
    );
    assert!(!text.contains("kernels of 0 steps"), "{text}");
}

#[test]
fn where_no_iteration_takes_longer_none_is_slow() {
    let (text, json) = OddRecord::default().report();
    assert!(!text.contains("slowest iterations"), "{text}");
    assert_eq!(json["slowest"], serde_json::json!([]));
    let one = OddRecord {
        longer: |n| if n == 4 { MS } else { 0 },
        ..OddRecord::default()
    };
    let (text, json) = one.report();
    assert!(text.contains("slowest iterations"), "{text}");
    assert_eq!(json["slowest"][0]["n"], 4);
}

#[test]
fn batches_without_tokens_have_no_part_that_is_prefill() {
    let odd = OddRecord {
        batch: Batch::new(0, 0, 0),
        ..OddRecord::default()
    };
    let (text, _) = odd.report();
    assert!(
        text.contains("\n0.00 requests and 0.00 tokens a step\n"),
        "{text}"
    );
}

#[test]
fn a_rank_that_was_not_compared_was_not_the_slowest_in_none() {
    let rank = |rank, first, longer| OddRecord {
        rank,
        first,
        longer,
        ..OddRecord::default()
    };
    let (text, skew) = ranks(&[rank(0, 0, |_| 0), rank(1, 0, |_| 500), rank(2, 200, |_| 0)]);
    assert_eq!(skew["common"], serde_json::json!([10, 10, 0]));
    assert_eq!(skew["slowest"], serde_json::json!([0, 10, 0]));
    let last = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().last().unwrap()
    };
    assert_eq!((last("   0 "), last("   1 ")), ("0", "10"), "{text}");
    assert!(
        last("   2 ").ends_with('%') || last("   2 ") == "%",
        "{text}"
    );
}

#[test]
fn ranks_say_of_how_many_iterations_their_gpu_times_are() {
    let rank = |rank, gpu| OddRecord {
        rank,
        gpu,
        steps: 24,
        ..OddRecord::default()
    };
    let some = |n: u64| (n < 8).then_some(MS / 2);
    let (text, _) = ranks(&[rank(0, some), rank(1, |_| Some(MS / 2))]);
    for line in [
        "   0               100    24  1000 1.00 ms 1.00 ms      – 50.0 %  25.0 %       0\n",
        "   1               101    24  1000 1.00 ms 1.00 ms      – 50.0 %  25.0 %       0\n",
        "GPU span: of the time of the iterations in which it was measured\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // If all iterations have a GPU time, there is no note about the iterations in which it was measured.
    let (text, _) = ranks(&[rank(0, |_| Some(MS / 2)), rank(1, |_| Some(MS / 2))]);
    assert!(!text.contains("in which it was measured"), "{text}");
}

#[test]
fn findings_say_of_how_many_iterations_gpu_times_are() {
    let odd = OddRecord {
        gpu: |n| (n < 8).then_some(MS / 10),
        steps: 24,
        ..OddRecord::default()
    };
    let report = Report::new(vec![odd.process()]);
    let json = json(&report);
    let findings = json["findings"].as_array().unwrap();
    let finding = |rule: &str| {
        let found = findings.iter().find(|finding| finding["rule"] == rule);
        found.unwrap()["evidence"].as_str().unwrap()
    };
    let idle = "the GPU has nothing to do 90.0 % of the time (measured in 8 of 24)";
    assert!(finding("gpu-idle").starts_with(idle), "{json}");
    assert!(
        finding("host-bound").contains("(measured in 8 of 24): "),
        "{json}"
    );
    // The ledgers (time by cause) of single windows must be based on the same numbers of iterations as the ledger of
    // all windows.
    let ledger = &json["processes"][0]["windows"][0]["ledger"];
    let counts = ["iterations", "host_iterations", "gpu_iterations"].map(|of| &ledger[of]);
    assert_eq!(counts, [24, 24, 8].map(Value::from).each_ref());
}

#[test]
fn findings_by_kernels_say_of_how_many_iterations_they_are() {
    let odd = OddRecord {
        kernels: 3,
        kernel: MS / 10,
        ..OddRecord::default()
    };
    let (text, _) = odd.report();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "the GPU is busy 10.0 % of the time (measured in 3 of 10)";
    assert!(text.contains(said), "{text}");
}

#[test]
fn iterations_that_are_missing_make_the_others_no_slower() {
    let odd = OddRecord {
        missing: |n| (3..8).contains(&n),
        ..OddRecord::default()
    };
    let (text, json) = odd.report();
    let line = "window 0-9: 5 iterations in 5.00 ms, 1000 a second; 5 are missing\n";
    assert!(text.contains(line), "{text}");
    assert_eq!(json["windows"][0]["missing"], 5);
    let rate = json["inside"]["per_second"].as_f64().unwrap();
    assert!((rate - 1000.0).abs() < 1.0, "{rate}");
}

#[test]
fn a_damaged_record_without_iterations_does_not_say_that_none_was_recorded() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let report = |bytes: &[u8]| Report::new(vec![process("odd", bytes)]).text();
    assert!(report(&builder.bytes()).contains("\nno iteration was recorded\n"));
    let excluded = false;
    builder.push(1, &Event::new(0, 5, What::Iteration { n: 0, excluded }));
    let mut bytes = builder.bytes();
    bytes.truncate(HEADER_BYTES);
    let said = report(&bytes);
    assert!(
        said.contains("\nno iteration is left of a damaged record\n"),
        "{said}"
    );
}

#[test]
fn a_comparison_names_what_one_run_lacks() {
    let with = OddRecord {
        gpu: |_| Some(MS / 2),
        ..OddRecord::default()
    };
    let without = OddRecord::default();
    let text = |base: &OddRecord, other: &OddRecord| {
        Comparison::compare(&[base.process()], &[other.process()]).text()
    };
    let said = text(&with, &without);
    assert!(
        said.contains("\nGPU times: BASE alone has them\n"),
        "{said}"
    );
    let said = text(&without, &with);
    assert!(
        said.contains("\nGPU times: OTHER alone has them\n"),
        "{said}"
    );
    // A process without iterations is shown with its name, too.
    let nothing = process("nothing", &Builder::new(7, ClockKind::Monotonic).bytes());
    let said = Comparison::compare(&[with.process()], &[nothing]).text();
    assert!(said.contains("\nother  nothing\n"), "{said}");
}

#[test]
fn other_ranks_are_asked_for_where_there_are_some() {
    for (world, verdict, header) in [
        (None, "no", "pid 100\n"),
        (Some(1), "no", "pid 100, rank 0 of 1 by RANK\n"),
        (Some(8), "unknown", "pid 100, rank 0 of 8 by RANK\n"),
    ] {
        let report = Report::new(vec![
            OddRecord {
                world,
                ..OddRecord::default()
            }
            .process(),
        ]);
        let text = report.text();
        let found = report
            .findings
            .iter()
            .find(|one| one.rule.name == "slow-rank");
        let found = serde_json::to_value(found.unwrap().verdict).unwrap();
        assert_eq!(found, verdict, "{world:?}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let are_asked_for = words.contains("the other ranks' records");
        assert_eq!(are_asked_for, verdict == "unknown", "{text}");
        assert!(text.contains(header), "{header}{text}");
    }
}

#[test]
fn unlike_programs_are_listed_and_not_compared() {
    let commands = [
        "/opt/bin/engine --steps 8",
        "python3 /srv/generate.py 7",
        "./loop",
    ];
    let read = |commands: &[&'static str]| {
        let processes = commands.iter().zip(100..).map(|(command, pid)| {
            OddRecord {
                command,
                ..OddRecord::default()
            }
            .process_of(pid)
        });
        Report::new(processes.collect())
    };
    let report = read(&commands);
    let text = report.text();
    fits(&text, 44);
    assert!(
        text.starts_with("3 processes of several programs, with no run in common: "),
        "{text}"
    );
    for (program, pid) in ["engine", "generate.py", "loop"].iter().zip(100..) {
        assert!(text.contains(&format!("{program:<14}{pid:>8}")), "{text}");
        assert!(
            report.names.contains(&format!("pid {pid} ({program})")),
            "{:?}",
            report.names
        );
    }
    assert!(
        json(&report)["skew"].is_null() && !text.contains("skew"),
        "{text}"
    );
    assert!(!text.contains("rank"), "{text}");
    // If processes run the same program, they are compared with each other.
    let same = read(&[commands[0]; 3]);
    assert!(!json(&same)["skew"].is_null());
    assert!(
        same.text().starts_with("3 processes: /opt/bin/engine"),
        "{}",
        same.text()
    );
}
