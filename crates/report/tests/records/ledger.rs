//! Tests of the ledger (time by cause), and of the names of processes, on records whose times are known exactly.

use crate::common::process as process_of;
use tllmprof_record::builder::Builder;
use tllmprof_record::{CallKind, ClockKind, Edge, Event, Info, What};
use tllmprof_report::{LedgerRow, Process, Report};

const LAUNCH: u8 = 0;
const WAIT: u8 = 1;
const MAIN: u32 = 10;
const OTHER: u32 = 11;

/// A record of two iterations of 1000 ns. Kernels are recorded in the second one.
struct TwoIterations(Builder);

impl TwoIterations {
    fn new(pid: u32, rank: u64) -> Self {
        let mut made = Self(Builder::new(pid, ClockKind::Monotonic));
        let key = Some(Info::Rank);
        made.put(MAIN, 0, 0, What::Info { key, value: rank });
        for (row, kind, name) in [
            (LAUNCH, CallKind::KernelLaunch, "cuLaunchKernel"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        ] {
            let name = made.0.string(MAIN, name);
            let kind = Some(kind);
            made.put(MAIN, 0, 0, What::CallName { row, kind, name });
        }
        for (at, edge, iteration) in [(1000, Edge::Open, 5), (3000, Edge::Close, 6)] {
            made.put(MAIN, at, 0, What::Window { edge, iteration });
        }
        for n in [5, 6] {
            made.put(
                MAIN,
                1000 * (n - 4),
                1000,
                What::Iteration { n, excluded: false },
            );
        }
        made
    }

    fn put(&mut self, thread: u32, at: u64, long: u64, what: What) {
        self.0.push(thread, &Event::new(at, long, what));
    }

    fn call(&mut self, thread: u32, at: u64, long: u64, row: u8) {
        let (capturing, stream) = (false, 0);
        let what = What::Call {
            row,
            capturing,
            stream,
        };
        self.put(thread, at, long, what);
    }

    fn gpu_span(&mut self, at: u64, long: u64, iteration: u64) {
        let (device, stream) = (0, 0);
        let what = What::GpuSpan {
            device,
            stream,
            iteration,
        };
        self.put(MAIN, at, long, what);
    }

    /// Writes the kernels of the second iteration. `times` contains their starts and lengths.
    fn kernels(&mut self, times: &[(u64, u64)]) {
        for (at, edge) in [(2000, Edge::Open), (3000, Edge::Close)] {
            let iteration = 6;
            self.put(MAIN, at, 0, What::KernelWindow { edge, iteration });
        }
        let name = self.0.string(MAIN, "kernel");
        for (at, long) in times {
            let (device, stream, correlation) = (0, 0, 0);
            let what = What::GpuKernel {
                device,
                stream,
                name,
                correlation,
            };
            self.put(MAIN, *at, *long, what);
        }
    }

    fn process(&self) -> Process {
        process_of("made", &self.0.bytes())
    }
}

fn shares(rows: &[LedgerRow]) -> Vec<(&str, f64)> {
    let rounded = |share: f64| (share * 1e6).round() / 1e6;
    let rows = rows.iter();
    rows.map(|row| (&*row.cause, rounded(row.share))).collect()
}

#[test]
fn the_gpus_time_is_of_iterations_that_nothing_stretched() {
    let mut made = TwoIterations::new(1, 0);
    made.call(MAIN, 1100, 100, LAUNCH);
    made.call(MAIN, 1300, 400, WAIT);
    // Calls of another thread, and time after the end of the last iteration, must not be counted.
    made.call(OTHER, 1100, 300, LAUNCH);
    made.call(OTHER, 2100, 300, LAUNCH);
    made.call(MAIN, 2900, 200, LAUNCH);
    made.gpu_span(1200, 600, 5);
    made.gpu_span(2000, 900, 6);
    made.kernels(&[(2000, 100), (2200, 200)]);
    let process = made.process();
    assert_eq!(process.sum.unwrap().gpu_share, Some(0.6));
    // Both iterations launch the same work. So in the first, the GPU is assumed to work for as long
    // as in the second. In the second, the GPU is idle for 600 of the 900 ns of code before the
    // launch, and during the whole launch: for 700 of 1000 ns in total.
    let gpu = shares(&process.ledger.gpu);
    let share = |cause: &str| {
        gpu.iter()
            .find(|(known, _)| *known == cause)
            .map(|(_, share)| *share)
    };
    assert_eq!(share("busy: kernel"), Some(0.3), "{gpu:?}");
    let launch = share("idle: launching");
    assert!(
        launch.is_some_and(|launch| (launch - 0.1).abs() < 0.01),
        "{gpu:?}"
    );
    assert_eq!(share("from first work to last"), None, "{gpu:?}");
    let wait = share("idle: waiting for the GPU: cuStreamSynchronize");
    assert!(
        wait.is_some_and(|wait| (wait - 0.28).abs() < 0.02),
        "{gpu:?}"
    );
    assert!(
        (gpu.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-5,
        "{gpu:?}"
    );
    assert_eq!(process.ledger.gpu_iterations, 1);
    let wait = ("waiting for the GPU: cuStreamSynchronize", 0.4);
    assert!(shares(&process.ledger.host).contains(&wait));
    assert!(!process.ledger.stretched);
}

#[test]
fn if_only_kernels_were_recorded_they_are_the_gpus_time() {
    let mut made = TwoIterations::new(1, 0);
    made.kernels(&[(2000, 100), (2050, 100), (2300, 100)]);
    made.call(MAIN, 2010, 20, LAUNCH);
    made.call(MAIN, 2120, 130, WAIT);
    made.call(MAIN, 2290, 10, LAUNCH);
    made.call(MAIN, 2310, 490, WAIT);
    let gpu = [
        ("idle: waiting for the GPU: cuStreamSynchronize", 0.5),
        ("busy: kernel", 0.25),
        ("idle: code after cuStreamSynchronize", 0.2),
        ("idle: code after waits for the GPU", 0.04),
        ("idle: launching", 0.01),
    ];
    let process = made.process();
    assert_eq!(shares(&process.ledger.gpu), gpu);
    let nothing = process_of("empty", &Builder::new(1, ClockKind::Monotonic).bytes());
    assert!(nothing.ledger.gpu.is_empty() && nothing.ledger.host.is_empty());
}

#[test]
fn each_window_has_a_ledger_of_its_own() {
    let mut made = TwoIterations::new(1, 0);
    for (at, edge, iteration) in [(4000, Edge::Open, 8), (5000, Edge::Close, 8)] {
        made.put(MAIN, at, 0, What::Window { edge, iteration });
    }
    made.put(
        MAIN,
        4000,
        1000,
        What::Iteration {
            n: 8,
            excluded: false,
        },
    );
    made.call(MAIN, 1000, 2000, WAIT);
    made.call(MAIN, 4000, 1000, LAUNCH);
    made.gpu_span(1000, 1000, 5);
    made.gpu_span(2000, 1000, 6);
    made.gpu_span(4400, 600, 8);
    let process = made.process();
    let [first, second] = &process.ledger.details.windows[..] else {
        panic!("{:?}", process.windows)
    };
    let wait = "waiting for the GPU: cuStreamSynchronize";
    assert_eq!(shares(&first.host), [(wait, 1.0)]);
    assert_eq!(shares(&second.host), [("launching", 1.0)]);
    let work = "from first work to last";
    assert_eq!(shares(&first.gpu), [(work, 1.0)]);
    assert_eq!(shares(&second.gpu), [(work, 0.6), ("idle: launching", 0.4)]);
    let whole = [(wait, 0.666667), ("launching", 0.333333)];
    assert_eq!(shares(&process.ledger.host), whole);
    let ns = |rows: &[LedgerRow]| rows.iter().map(|row| row.ns).sum::<u64>();
    assert_eq!(ns(&first.host) + ns(&second.host), ns(&process.ledger.host));
    let text = Report::new(vec![process]).text();
    assert!(
        text.contains("\nhost in window 8: 100 % launching\n"),
        "{text}"
    );
}

#[test]
fn processes_are_named_by_rank_where_ranks_differ() {
    let report = |ranks: &[u64]| {
        let made = (1..).zip(ranks);
        let made = made.map(|(pid, rank)| TwoIterations::new(pid, *rank).process());
        Report::new(made.collect())
    };
    assert_eq!(report(&[1, 0]).names, ["rank 0", "rank 1"]);
    assert_eq!(report(&[0, 0]).names, ["pid 1", "pid 2"]);
    // If all ranks take equally long, none of them counts as the slowest.
    let report = report(&[0, 1, 2]);
    let skew = report.skew.as_ref().unwrap();
    assert_eq!((skew.most_often(), &skew.slowest[..]), (None, &[0; 3][..]));
    let text = report.text();
    assert!(text.contains("\nskew over 2 iterations, "), "{text}");
    assert!(!text.contains("was the slowest"), "{text}");
    assert!(!text.contains("furthest apart"), "{text}");
}
