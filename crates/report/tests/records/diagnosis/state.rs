//! Tests of the rules on the state of the GPU and on NUMA nodes, with two simulated records: one of a loop of
//! iterations, and one of samples of the GPU's state.

use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Event, GpuOwner, Info, Metric, What};
use tllmprof_report::findings::FindingKind;
use tllmprof_report::{Comparison, Process, Report, Verdict};

use super::STATE_RULES;
use super::synthetic::{LENGTH, MAIN, MS, START, SyntheticLoop, US, WAIT, find_finding};
use crate::common::{json, process};

/// Time between two samples, in nanoseconds.
const SAMPLE: u64 = 100 * MS;
/// Process ID of the loop.
const LOOP: u32 = 100;
const MAX_CLOCK: u64 = 1980;

/// A process that the driver lists: its process ID, its owner, and its share of the SMs' time in percent (`None` if
/// the driver does not state it).
type ListedUse = (u32, GpuOwner, Option<u8>);

/// A record of samples of the GPU's state. The functions take the number of a sample and return a value of the sample.
struct StateRecord {
    samples: u64,
    clock: fn(u64) -> u64,
    /// Returns NVML's reasons for the clock in a sample, one bit each. `None` if the driver does not state reasons.
    reasons: Option<fn(u64) -> u64>,
    /// Returns the processes that use the GPU, each with its share of the SMs' time in percent.
    processes: fn(u64) -> Vec<ListedUse>,
    /// The NUMA nodes on which the loop's thread runs, as pairs of a sample's number and a node: the thread runs on
    /// the node from this sample on.
    nodes: Vec<(u64, u16)>,
    gpu_node: &'static str,
    /// The GPU's power limit and the board's default, as in [`Info::GpuPowerLimit`]; empty if they are not known.
    power_limit: &'static str,
    refused: &'static str,
}

impl Default for StateRecord {
    fn default() -> Self {
        Self {
            samples: 20,
            clock: |_| MAX_CLOCK,
            reasons: Some(|_| 0),
            processes: |_| vec![(LOOP, GpuOwner::Run, Some(80))],
            nodes: vec![(0, 1)],
            gpu_node: "0 1 0:21,1:10",
            power_limit: "0 700000 700000",
            refused: "",
        }
    }
}

impl StateRecord {
    fn bytes(&self) -> Vec<u8> {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        let facts = [
            (Info::Boot, "boot"),
            (Info::GpuNode, self.gpu_node),
            (Info::GpuPowerLimit, self.power_limit),
            (Info::Refused, self.refused),
        ];
        for (key, text) in facts.into_iter().filter(|(_, text)| !text.is_empty()) {
            let (key, value) = (Some(key), builder.string(1, text).into());
            builder.push(1, &Event::new(START, 0, What::Info { key, value }));
        }
        let name = builder.string(1, "trainer");
        for n in 0..self.samples {
            let start = START + n * SAMPLE;
            let mut metric = |metric, value: u64| {
                let what = What::GpuMetric {
                    device: 0,
                    metric: Some(metric),
                    thousandths: value * 1000,
                };
                builder.push(1, &Event::new(start, SAMPLE, what));
            };
            metric(Metric::SmClock, (self.clock)(n));
            metric(Metric::MaxSmClock, MAX_CLOCK);
            metric(Metric::Energy, 40);
            if let Some(reasons) = self.reasons {
                metric(Metric::ClockReasons, reasons(n));
            }
            for (pid, owner, sm) in (self.processes)(n) {
                let name = if owner == GpuOwner::Unknown { 0 } else { name };
                let what = What::GpuProcess {
                    device: 0,
                    owner,
                    sm,
                    name,
                    pid,
                };
                builder.push(1, &Event::new(start, SAMPLE, what));
            }
        }
        for (n, node) in &self.nodes {
            let (pid, tid) = (LOOP, MAIN);
            let what = What::ThreadNode {
                node: *node,
                pid,
                tid,
            };
            builder.push(1, &Event::new(START + n * SAMPLE, 0, what));
        }
        builder.bytes()
    }

    fn report(&self, of: &SyntheticLoop) -> Report {
        let samples = process("gpu", &self.bytes());
        Report::new(vec![of.process(), samples])
    }

    /// Asserts that this record of samples, together with a loop of equal iterations, gives this verdict and this
    /// evidence for the rule.
    #[track_caller]
    fn says(&self, rule: &str, verdict: Verdict, evidence: &str) {
        let report = self.report(&even());
        let finding = find_finding(&report, rule);
        assert_eq!(
            (finding.verdict, finding.loss),
            (verdict, None),
            "{finding:#?}"
        );
        assert!(finding.evidence.contains(evidence), "{finding:#?}");
    }
}

/// A loop of 100 equal iterations, which together last as long as ten samples.
fn even() -> SyntheticLoop {
    SyntheticLoop {
        iterations: 100,
        ..SyntheticLoop::default()
    }
}

#[test]
fn a_healthy_gpu_has_no_finding_and_its_energy() {
    let report = StateRecord::default().report(&SyntheticLoop {
        tokens: Some(|_| 8),
        ..even()
    });
    for rule in STATE_RULES {
        let finding = find_finding(&report, rule);
        assert_eq!(finding.verdict, Verdict::No, "{finding:#?}");
    }
    let json = json(&report);
    let state = &json["processes"][0]["gpu_state"][0];
    // Expected energy: ten samples of 40 J each, for 100 iterations of 8 tokens each.
    let close = |key: &str, joules: f64| {
        let found = state[key].as_f64().unwrap();
        assert!((found / joules - 1.0).abs() < 1e-6, "{key}: {found}");
    };
    close("energy_j", 400.0);
    close("joules_per_step", 4.0);
    close("joules_per_token", 0.5);
    assert!(
        report
            .text()
            .contains("GPU 0: 4.00 J a step, 500.000 mJ a token\n"),
        "{}",
        report.text()
    );
}

/// Returns the report on a GPU that reaches its power limit from sample 5 on. `power_limit` is the text about the limit
/// in the record. Iterations 50 to 99 take 15 ms instead of 10 ms. Iteration 50 begins at the time of sample 5.
fn at_the_power_limit(power_limit: &'static str) -> Report {
    let made = StateRecord {
        clock: |n| if n < 5 { MAX_CLOCK } else { 1320 },
        reasons: Some(|n| if n < 5 { 0 } else { 0x4 }),
        power_limit,
        ..StateRecord::default()
    };
    made.report(&SyntheticLoop {
        longer: |n| if n < 50 { 0 } else { LENGTH / 2 },
        ..even()
    })
}

#[test]
fn a_lowered_power_limit_costs_what_iterations_take_longer() {
    let report = at_the_power_limit("0 400000 700000");
    let finding = find_finding(&report, "throttled");
    assert_eq!(finding.verdict, Verdict::Yes, "{finding:#?}");
    assert_eq!(
        finding.evidence,
        "the SM clock of GPU 0 is lowered 60.0 % of the time by power (software power cap): 1320 MHz then, \
         1980 MHz in the rest; its power limit is 400 W, 700 W by default"
    );
    assert!((finding.loss.unwrap() - 0.2).abs() < 0.01, "{finding:#?}");
    let note = find_finding(&report, "power-limited");
    assert_eq!(note.verdict, Verdict::No, "{note:#?}");
    assert!(note.evidence.contains("is lowered: 400 W"), "{note:#?}");
}

#[test]
fn a_gpu_at_the_boards_own_power_limit_has_a_note_and_no_cause() {
    let report = at_the_power_limit("0 700000 700000");
    let note = find_finding(&report, "power-limited");
    assert_eq!(
        (note.verdict, note.rule.kind, note.evidence.as_str()),
        (
            Verdict::Yes,
            FindingKind::Note,
            "GPU 0 works at its power limit (700 W) 60.0 % of the time: the SM clock is 1320 MHz then, 1980 MHz in the rest"
        )
    );
    assert!((note.loss.unwrap() - 0.2).abs() < 0.01, "{note:#?}");
    let finding = find_finding(&report, "throttled");
    assert_eq!(finding.verdict, Verdict::No, "{finding:#?}");
    let always = StateRecord {
        clock: |_| 1567,
        reasons: Some(|_| 0x4),
        ..StateRecord::default()
    };
    let evidence =
        "(700 W) 100 % of the time: the SM clock is 1567 MHz then, its maximum is 1980 MHz";
    always.says("power-limited", Verdict::Yes, evidence);
    always.says("throttled", Verdict::No, "lowered 0.0 %");
    // With heat as another reason, the clock is lowered by a fault.
    let heat = StateRecord {
        reasons: Some(|_| 0x44),
        ..always
    };
    heat.says(
        "throttled",
        Verdict::Yes,
        "by heat (hardware thermal slowdown): 1567 MHz",
    );
    heat.says("power-limited", Verdict::No, "0.0 % of the time");
}

#[test]
fn an_unknown_power_limit_may_be_a_lowered_one() {
    for limit in ["0 400000 -", ""] {
        let report = at_the_power_limit(limit);
        let finding = find_finding(&report, "throttled");
        assert_eq!(finding.verdict, Verdict::Yes, "{finding:#?}");
        let unknown = "; it is not known if its power limit is the board's default";
        assert!(finding.evidence.ends_with(unknown), "{finding:#?}");
        let note = find_finding(&report, "power-limited");
        assert_eq!(note.verdict, Verdict::No, "{note:#?}");
    }
}

#[test]
fn clocks_that_are_low_in_the_whole_window_have_an_unknown_cost() {
    let made = |reasons| StateRecord {
        clock: |_| 1000,
        reasons,
        ..StateRecord::default()
    };
    let heat: Option<fn(u64) -> u64> = Some(|_| 0x40);
    made(heat).says("throttled", Verdict::Yes, "100 % of the time by heat (hardware thermal slowdown): 1000 MHz then, its maximum is 1980 MHz");
    // An idle GPU (reason 0x1) is not throttled.
    made(Some(|_| 0x1)).says("throttled", Verdict::No, "lowered 0.0 %");
    made(None).says("throttled", Verdict::Unknown, "does not state the reasons");
    // In this record the driver states a reason for a lower clock, but the clock is at its maximum.
    let full = StateRecord {
        reasons: Some(|_| 0x4),
        ..StateRecord::default()
    };
    full.says("throttled", Verdict::No, "");
}

#[test]
fn clocks_that_have_not_risen_at_the_start_of_the_window() {
    let made = StateRecord {
        clock: |n| if n < 2 { 1200 } else { MAX_CLOCK },
        ..StateRecord::default()
    };
    let report = made.report(&SyntheticLoop {
        longer: |n| if n < 10 { LENGTH } else { 0 },
        ..even()
    });
    let finding = find_finding(&report, "low-clocks");
    assert_eq!(finding.verdict, Verdict::Yes, "{finding:#?}");
    assert_eq!(
        finding.evidence,
        "the SM clock of GPU 0 is 1200 MHz in the first 200 ms of the window, and 1980 MHz later"
    );
    assert!(
        (finding.loss.unwrap() - 0.1 / 1.1).abs() < 0.01,
        "{finding:#?}"
    );
    let limited = StateRecord {
        reasons: Some(|n| if n < 2 { 0x4 } else { 0 }),
        ..made
    };
    limited.says("low-clocks", Verdict::No, "no rise of the clock");
}

#[test]
fn another_process_on_the_gpu() {
    let made = |processes| StateRecord {
        processes,
        ..StateRecord::default()
    };
    let busy = made(|n| {
        let share = if n < 5 { 0 } else { 45 };
        vec![
            (LOOP, GpuOwner::Run, Some(50)),
            (900, GpuOwner::Other, Some(share)),
        ]
    });
    let report = busy.report(&SyntheticLoop {
        longer: |n| if n < 50 { 0 } else { LENGTH },
        ..even()
    });
    let finding = find_finding(&report, "shared-gpu");
    assert_eq!(
        finding.evidence,
        "other processes use GPU 0: process 900 (trainer) of another run takes up to 45.0 % of the SMs' time"
    );
    assert!(
        (finding.loss.unwrap() - 1.0 / 3.0).abs() < 0.01,
        "{finding:#?}"
    );

    made(|_| vec![(LOOP, GpuOwner::Run, None), (900, GpuOwner::Other, Some(0))]).says(
        "shared-gpu",
        Verdict::No,
        "hardly use it: process 900 (trainer)",
    );
    made(|_| vec![(LOOP, GpuOwner::Run, None), (900, GpuOwner::Other, None)]).says(
        "shared-gpu",
        Verdict::Unknown,
        "its utilization is not known: process 900 (trainer)",
    );
    let of_host = made(|_| {
        vec![
            (5000, GpuOwner::Unknown, Some(50)),
            (5001, GpuOwner::Unknown, Some(50)),
        ]
    });
    of_host.says("shared-gpu", Verdict::Unknown, "as in a container");
    made(|_| vec![(5000, GpuOwner::Unknown, Some(50))]).says(
        "shared-gpu",
        Verdict::No,
        "no other process",
    );
    made(|_| Vec::new()).says("shared-gpu", Verdict::Unknown, "lists no processes");
}

#[test]
fn another_process_of_the_same_run_on_the_gpu() {
    let made = |processes| StateRecord {
        processes,
        ..StateRecord::default()
    };
    let both = made(|_| {
        vec![
            (LOOP, GpuOwner::Run, Some(50)),
            (300, GpuOwner::Run, Some(40)),
        ]
    });
    let report = both.report(&even());
    let finding = find_finding(&report, "shared-gpu");
    assert_eq!(
        finding.evidence,
        "other processes use GPU 0: process 300 (trainer) of this run (not recorded here) takes up to 40.0 % of the SMs' \
         time; what that costs is not known, as all iterations had it or too few; at most 40.0 %"
    );
    assert!((finding.loss.unwrap() - 0.4).abs() < 0.01, "{finding:#?}");
    let json = json(&report);
    let other = &json["processes"][0]["gpu_state"][0]["others"][0];
    assert_eq!(other["pid"], 300);
    assert_eq!(other["same_run"], true);

    // The other process is a rank of the run, and the report has its record, too.
    let ranks = made(|_| {
        vec![
            (LOOP, GpuOwner::Run, Some(40)),
            (LOOP + 1, GpuOwner::Run, Some(50)),
        ]
    });
    let second = SyntheticLoop { rank: 1, ..even() };
    let samples = process("gpu", &ranks.bytes());
    let report = Report::new(vec![even().process(), second.process(), samples]);
    let finding = find_finding(&report, "shared-gpu");
    assert!(
        finding
            .evidence
            .contains("process 101 (trainer) of this run (rank 1) takes up to 50.0 %"),
        "{finding:#?}"
    );

    // The driver lists a process of the run, but not the process ID of the loop. Either the loop does not use the GPU,
    // or the list has it under an ID of another PID namespace.
    let elsewhere = made(|_| vec![(300, GpuOwner::Run, Some(90))]);
    elsewhere.says(
        "shared-gpu",
        Verdict::No,
        "no process of another run uses the GPU",
    );
    // The loop only waits. The other process does the loop's GPU work.
    let idle = both.report(&SyntheticLoop {
        calls: vec![(WAIT, 10 * US, 9500 * US)],
        gpu: None,
        ..even()
    });
    let finding = find_finding(&idle, "shared-gpu");
    assert_eq!(finding.verdict, Verdict::No, "{finding:#?}");
}

#[test]
fn a_thread_far_from_its_gpu() {
    let made = |nodes| StateRecord {
        nodes,
        ..StateRecord::default()
    };
    made(vec![(0, 0)]).says(
        "far-from-gpu",
        Verdict::Yes,
        "100 % of the time on another NUMA node than GPU 0 (node 1), mostly on node 0 (distance 21)",
    );
    made(vec![(0, 1), (9, 0)]).says("far-from-gpu", Verdict::No, "10.0 % of the time");
    let moves = (0..10).map(|n| (n, u16::from(n % 9 != 4))).collect();
    made(moves).says("far-from-gpu", Verdict::No, "moves between nodes 2 times");
    made(Vec::new()).says("far-from-gpu", Verdict::Unknown, "was not sampled");
    let one = StateRecord {
        gpu_node: "0 0 0:10",
        nodes: Vec::new(),
        ..StateRecord::default()
    };
    one.says("far-from-gpu", Verdict::No, "one NUMA node");
    let unknown = StateRecord {
        gpu_node: "",
        ..StateRecord::default()
    };
    unknown.says(
        "far-from-gpu",
        Verdict::Unknown,
        "does not state the NUMA node",
    );
}

#[test]
fn without_samples_in_the_window_nothing_is_known_and_the_record_says_why() {
    let none = StateRecord {
        samples: 0,
        nodes: Vec::new(),
        ..StateRecord::default()
    };
    for rule in STATE_RULES {
        none.says(rule, Verdict::Unknown, "");
    }
    // On a GPU that is divided by MIG, samples would say nothing about the process, so the record has only the reason
    // why there are none.
    let divided = StateRecord {
        samples: 0,
        refused: "GPU 0 is divided (MIG)",
        nodes: Vec::new(),
        gpu_node: "",
        processes: |_| Vec::new(),
        ..StateRecord::default()
    };
    let report = divided.report(&even());
    assert_eq!(find_finding(&report, "throttled").verdict, Verdict::Unknown);
}

#[test]
fn a_comparison_says_that_steps_take_another_energy() {
    let report = |samples| {
        let made = StateRecord {
            samples,
            ..StateRecord::default()
        };
        made.report(&even()).processes
    };
    let is_said = |base: &[Process], other: &[Process], what: &str| {
        let mut bytes = Vec::new();
        let comparison = Comparison::compare(base, other);
        comparison.json(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap().contains(what)
    };
    // A record with half the number of samples covers too little of the window, so the energy of a step is not known.
    let (all, half) = (report(10), report(5));
    assert!(!is_said(&all, &all, "energy of a step"));
    assert!(!is_said(&all, &half, "energy of a step"));
    let slower = StateRecord::default().report(&SyntheticLoop {
        longer: |_| LENGTH,
        ..even()
    });
    let expected = "the energy of a step differs: 4.000 and 8.000 J";
    assert!(is_said(&all, &slower.processes, expected));
}
