//! Tests of comparisons of runs with known differences.

mod gpu;
mod phases;
mod planted;

use crate::common::process;
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{Batch, ClockKind, Edge, Event, Info, What};
use tllmprof_report::{Comparison, ComparisonOptions, Condition, Met, Outcome, Process};

/// A simulated run: iterations with a mean duration in nanoseconds and random variation.
#[derive(Clone)]
struct Run {
    seed: u64,
    rank: u64,
    iterations: u64,
    time: f64,
    /// `Some(n)` if one iteration in n takes ten times as long as the other iterations; `None` if no iteration does.
    outliers: Option<u64>,
    settings: &'static [&'static str],
    command: &'static str,
    /// Mean time of a kernel in nanoseconds; `None` if kernels are not recorded. Kernels are recorded in the first
    /// twenty iterations.
    kernel: Option<f64>,
    /// True if the run also launches a second kernel, `fresh`. The run that it is compared with lacks this kernel.
    new_kernel: bool,
    /// Returns the batch of an iteration; `None` if it is not known.
    batch: fn(u64) -> Option<Batch>,
    condition: &'static str,
    /// Returns the GPU time of an iteration; `None` if it was not measured.
    gpu: fn(u64) -> Option<u64>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            seed: 1,
            rank: 0,
            iterations: 200,
            time: 10e6,
            outliers: None,
            settings: &[],
            command: "",
            kernel: None,
            new_kernel: false,
            batch: |_| None,
            condition: "",
            gpu: |_| None,
        }
    }
}

impl Run {
    fn process(&self) -> Process {
        let mut builder = Builder::new(100 + self.rank as u32, ClockKind::Monotonic);
        let put =
            |builder: &mut Builder, at, long, what| builder.push(1, &Event::new(at, long, what));
        let info = |builder: &mut Builder, key, value| {
            put(
                builder,
                0,
                0,
                What::Info {
                    key: Some(key),
                    value,
                },
            );
        };
        info(&mut builder, Info::Rank, self.rank);
        for setting in self.settings {
            let id = builder.string(1, setting);
            info(&mut builder, Info::Setting, u64::from(id));
        }
        if !self.condition.is_empty() {
            let id = builder.string(1, self.condition);
            info(&mut builder, Info::Where, u64::from(id));
        }
        let command = builder.string(1, self.command);
        info(&mut builder, Info::CommandLine, u64::from(command));
        let names = ["gemm", "fresh"].map(|name| builder.string(1, name));
        let mut random = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut chance = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        let (mut at, mut state) = (1_000_000, 0.0);
        for n in 0..self.iterations {
            let is_taken = self.kernel.is_some() && n < 20;
            // Make each iteration's time similar to that of the previous iteration, as in real
            // runs.
            state = 0.5 * state + chance();
            let usual = self.time * (1.0 + 0.1 * state) * if is_taken { 2.0 } else { 1.0 };
            let is_outlier = self.outliers.is_some_and(|every| n % every == every - 1);
            let batch = (self.batch)(n);
            // Let each token add a microsecond to the iteration's time.
            let usual = usual + batch.map_or(0.0, |batch| f64::from(batch.tokens) * 1e3);
            let long = if is_outlier { usual * 10.0 } else { usual } as u64;
            if let Some(batch) = batch {
                let iteration = n as u16;
                put(&mut builder, at, 0, What::Batch { iteration, batch });
            }
            put(
                &mut builder,
                at,
                long,
                What::Iteration { n, excluded: false },
            );
            if let Some(long) = (self.gpu)(n) {
                let (device, stream, iteration) = (0, 0, n);
                let span = What::GpuSpan {
                    device,
                    stream,
                    iteration,
                };
                put(&mut builder, at, long, span);
            }
            if let Some(kernel) = self.kernel.filter(|_| is_taken) {
                let edge = if n == 0 {
                    Some(Edge::Open)
                } else {
                    (n == 19).then_some(Edge::Close)
                };
                if let Some(edge) = edge {
                    put(
                        &mut builder,
                        at,
                        0,
                        What::KernelWindow { edge, iteration: n },
                    );
                }
                let long = (kernel * (1.0 + 0.1 * chance())) as u64;
                for name in &names[..1 + usize::from(self.new_kernel)] {
                    let (device, stream, correlation) = (0, 0, 0);
                    let what = What::GpuKernel {
                        device,
                        stream,
                        name: *name,
                        correlation,
                    };
                    put(&mut builder, at + 1000, long, what);
                }
            }
            at += long;
        }
        process("record", &builder.bytes())
    }
}

fn compare(base: &Run, other: &Run) -> Comparison {
    Comparison::compare(&[base.process()], &[other.process()])
}

fn json(comparison: &Comparison) -> Value {
    let mut bytes = Vec::new();
    comparison.json(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Returns true if the verdict does not say that one of the runs is faster.
fn no_difference(comparison: &Comparison) -> bool {
    let verdict = comparison.verdict;
    matches!(verdict, Outcome::Equal { .. } | Outcome::CannotTell { .. })
}

fn fits(text: &str) {
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.lines().count() <= 40, "{text}");
}

#[test]
fn a_known_ratio_is_found_as_often_as_the_interval_says() {
    let mut held = 0;
    for seed in 1..=100 {
        let base = Run {
            seed,
            ..Run::default()
        };
        let other = Run {
            seed: seed + 1000,
            time: 10e6 / 1.124,
            ..base
        };
        let comparison = compare(&base, &other);
        let Outcome::Faster(part, (low, high)) = comparison.verdict else {
            panic!("{seed}: {}", comparison.text());
        };
        assert!((part - 0.124).abs() < 0.05 && low < part && part < high);
        held += u32::from((low..=high).contains(&0.124));
    }
    assert!((89..=99).contains(&held), "{held}");
}

#[test]
fn it_says_by_how_much_a_run_is_slower() {
    let other = Run {
        seed: 2,
        time: 12.5e6,
        ..Run::default()
    };
    let comparison = compare(&Run::default(), &other);
    let Outcome::Slower(part, (low, high)) = comparison.verdict else {
        panic!("{}", comparison.text());
    };
    assert!(
        (part - 0.2).abs() < 0.02 && low < part && part < high,
        "{part}"
    );
    let text = comparison.text();
    let mut lines = text.lines().rev().take(2);
    let last = lines.next();
    assert!(
        last.is_some_and(|last| last.starts_with("of one run a side: ")),
        "{text}"
    );
    let verdict = lines.next().unwrap();
    assert!(
        verdict.starts_with("slower by ") && verdict.ends_with(']') && verdict.contains(" % ["),
        "{text}"
    );
}

#[test]
fn runs_of_the_same_speed_do_not_differ() {
    let mut wrong = 0;
    for seed in 1..=200 {
        let base = Run {
            seed,
            ..Run::default()
        };
        let comparison = compare(
            &base,
            &Run {
                seed: seed + 500,
                ..base.clone()
            },
        );
        wrong += u32::from(!no_difference(&comparison));
    }
    assert!(wrong <= 2, "{wrong} of 200");
    let steady = Run {
        iterations: 2000,
        ..Run::default()
    };
    let same = compare(&steady, &steady);
    assert!(matches!(same.verdict, Outcome::Equal { change: 0.0, .. }));
    assert!(
        same.text().contains("\nequal within 2 %: +0.0 % ["),
        "{}",
        same.text()
    );
}

#[test]
fn outliers_make_the_interval_wide_and_leave_the_median_alone() {
    let plain = Run {
        iterations: 400,
        ..Run::default()
    };
    let outliers = Run {
        seed: 7,
        outliers: Some(100),
        ..plain.clone()
    };
    let wide = json(&compare(&plain, &outliers));
    let narrow = json(&compare(&plain, &Run { seed: 7, ..plain }));
    let width = |json: &Value, place: usize| {
        let interval = &json["measures"][place]["change"]["interval"];
        interval[1].as_f64().unwrap() - interval[0].as_f64().unwrap()
    };
    assert!(width(&wide, 0) > 2.0 * width(&narrow, 0));
    assert_eq!(wide["measures"][2]["name"], "iteration, p50");
    let median = wide["measures"][2]["change"]["relative"].as_f64().unwrap();
    assert!(median.abs() < 0.02, "{median}");
    assert!(width(&wide, 2) < 2.0 * width(&narrow, 2));
}

#[test]
fn a_median_that_contradicts_the_whole_is_named() {
    let base = Run {
        iterations: 400,
        outliers: Some(100),
        ..Run::default()
    };
    let other = |time| Run {
        seed: 7,
        time,
        ..base.clone()
    };
    // In these runs, one in a hundred iterations takes ten times as long, which makes the mean
    // uncertain.
    let slower = compare(&base, &other(10.7e6));
    let text = slower.text();
    assert!(no_difference(&slower), "{text}");
    let last = text.lines().last().unwrap();
    let start = "but most iterations are slower: p50 +";
    assert!(last.starts_with(start) && last.ends_with(']'), "{text}");
    assert_eq!(json(&slower)["but"], last);
    fits(&text);
    // If one run has more of these long iterations than the other, its mean may even be slower although most of its
    // iterations are faster.
    let many = Run {
        iterations: 4000,
        ..other(10e6)
    };
    let few = Run {
        outliers: Some(20),
        time: 9e6,
        ..many.clone()
    };
    let text = compare(&many, &few).text();
    assert!(
        text.contains("\nslower by ") && text.contains("but most iterations are faster: p50 -"),
        "{text}"
    );
    // If the mean and the median change in the same way, there is no line about the median (`but` in the JSON).
    for time in [10e6, 20e6] {
        let one = compare(
            &Run::default(),
            &Run {
                seed: 3,
                time,
                ..Run::default()
            },
        );
        assert_eq!(json(&one)["but"], Value::Null, "{}", one.text());
    }
}

#[test]
fn unlike_commands_are_named_where_they_differ() {
    let command = |command| Run {
        command,
        ..Run::default()
    };
    let note = |base, other| {
        let comparison = compare(&command(base), &command(other));
        fits(&comparison.text());
        json(&comparison)["notes"][0].as_str().map(str::to_owned)
    };
    for (base, other, differ) in [
        (
            "serve --batch 8 --port 1",
            "serve --batch 16 --port 1",
            "--batch 8 and --batch 16",
        ),
        ("serve m", "serve m --eager", "nothing there and --eager"),
        ("a", "b c", "a and b c"),
        ("x x", "x", "x and nothing there"),
        ("serve --tp 2 m", "serve --tp=2 m", "--tp 2 and --tp=2"),
    ] {
        let line = format!("the commands differ: {differ}");
        assert_eq!(note(base, other), Some(line));
    }
    assert_eq!(note("serve m", "serve m"), None);
    assert_eq!(note("serve m", ""), None, "not known");
    assert!(
        note(
            "a",
            "a/very/long/command/of/more/than/will/fit into the line"
        )
        .is_some()
    );
}

#[test]
fn a_few_iterations_say_nothing() {
    let few = Run {
        iterations: 7,
        time: 5e6,
        ..Run::default()
    };
    let comparison = compare(&Run::default(), &few);
    assert_eq!(comparison.verdict, Outcome::TooFew(200, 7));
    assert!(
        comparison
            .text()
            .contains("too few iterations to say: 200 and 7 (wanted: 8 or more)\n")
    );
    let none = Comparison::compare(&[Run::default().process()], &[]);
    assert_eq!(none.verdict, Outcome::TooFew(200, 0));
    fits(&none.text());
    assert_eq!(json(&none)["verdict"], "too few");
    // 30 iterations are enough for a confidence interval of the mean, but not for an interval of each percentile.
    let some = Run {
        iterations: 30,
        ..Run::default()
    };
    let json = json(&compare(&some, &some));
    assert!(json["change"]["interval"].is_array());
    assert_eq!(json["measures"][4]["change"]["interval"], Value::Null);
}

#[test]
fn the_slowest_rank_stands_for_all() {
    let rank = |rank: u64, time: f64| {
        Run {
            seed: rank + 1,
            rank,
            time,
            ..Run::default()
        }
        .process()
    };
    let base = [rank(0, 10e6), rank(1, 11e6)];
    let other = [rank(1, 8e6), rank(0, 10e6)];
    let comparison = Comparison::compare(&base, &other);
    let found = json(&comparison);
    assert_eq!(
        (&found["base"]["rank"], &found["other"]["rank"]),
        (&1.into(), &0.into())
    );
    let change = found["change"]["relative"].as_f64().unwrap();
    assert!((change - 0.1).abs() < 0.03, "{change}");
    let ranks = found["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    let second = ranks[1]["change"]["relative"].as_f64().unwrap();
    assert!((second - 0.375).abs() < 0.05, "{second}");
    fits(&comparison.text());
    let others = Comparison::compare(&base, &[rank(1, 8e6), rank(2, 9e6)]);
    let note = "not the same ranks: BASE has ranks 0 1, OTHER has ranks 1 2";
    assert_eq!(json(&others)["notes"][0], note);
    let one = Comparison::compare(&[rank(0, 8e6)], &[rank(2, 9e6)]);
    let note = "not the same ranks: BASE has no rank, OTHER has rank 2";
    assert_eq!(json(&one)["notes"][0], note);
    for (runs, note) in [
        ([&base[..0], &base[..]], "BASE has no iterations to compare"),
        (
            [&base[..], &base[..0]],
            "OTHER has no iterations to compare",
        ),
        (
            [&base[..0], &base[..0]],
            "BASE and OTHER have no iterations to compare",
        ),
    ] {
        let none = Comparison::compare(runs[0], runs[1]);
        let notes = json(&none)["notes"].clone();
        assert!(notes.as_array().unwrap().contains(&note.into()), "{notes}");
        fits(&none.text());
    }
}

/// In one run several ranks share the work that one rank does in the other run. Then the times of iterations do not
/// show which run is faster, so the runs are not compared.
#[test]
fn runs_of_more_and_fewer_ranks_are_not_compared() {
    let rank = |rank: u64| {
        Run {
            seed: rank + 1,
            rank,
            ..Run::default()
        }
        .process()
    };
    let four: Vec<_> = (0..4).map(rank).collect();
    let comparison = Comparison::compare(&four, &[rank(0)]);
    assert_eq!(comparison.verdict, Outcome::NotComparable(4, 1));
    let text = comparison.text();
    assert!(text.ends_with("not comparable: 4 and 1 ranks\n"), "{text}");
    assert!(!text.contains('%'), "{text}");
    let found = json(&comparison);
    assert_eq!(found["verdict"], "not comparable");
    for figures in ["measures", "kernels", "ranks"] {
        assert_eq!(found[figures].as_array().map(Vec::len), Some(0));
    }
    assert!(found["change"].is_null() && found["routing"].is_null());
}

#[test]
fn kernels_are_compared_and_their_iterations_left_out() {
    let base = Run {
        kernel: Some(1e6),
        ..Run::default()
    };
    let other = Run {
        seed: 3,
        kernel: Some(0.8e6),
        new_kernel: true,
        ..Run::default()
    };
    let comparison = compare(&base, &other);
    // The 20 iterations with recorded kernels take twice as long, and affect the next iteration. So
    // these 21 iterations are left out.
    assert!(no_difference(&comparison), "{}", comparison.text());
    let found = json(&comparison);
    assert_eq!(found["base"]["iterations"], 179);
    let kernels = found["kernels"].as_array().unwrap();
    assert_eq!(
        (&kernels[0]["name"], &kernels[0]["base_ns"]),
        (&"fresh".into(), &0.0.into())
    );
    assert_eq!(kernels[0]["change"], Value::Null);
    let change = &kernels[1]["change"];
    let part = |value: &Value| value.as_f64().unwrap();
    assert!((part(&change["relative"]) + 0.2).abs() < 0.03);
    assert!(part(&change["interval"][0]) < -0.2 + 0.03 && part(&change["interval"][1]) < -0.15);
    let text = comparison.text();
    fits(&text);
    assert!(
        text.contains("iterations in which kernels were taken are left out"),
        "{text}"
    );
    let busy = found["measures"].as_array().unwrap().last().unwrap();
    assert_eq!(busy["name"], "GPU busy, mean");
}

#[test]
fn balanced_routing_shows_what_imbalance_costs() {
    let learned = Run {
        settings: &["TLLMPROF_GIL=1"],
        ..Run::default()
    };
    let balanced = |time: f64| Run {
        seed: 2,
        time,
        settings: &["ENABLE_PERFECT_ROUTER=window"],
        ..Run::default()
    };
    let off = Run {
        seed: 3,
        settings: &["TLLMPROF_PERFECT_ROUTER=0"],
        ..Run::default()
    };
    for (base, other, significant) in [
        (&learned, &balanced(8e6), Some(true)),
        (&balanced(8e6), &learned, Some(true)),
        (&learned, &balanced(9.5e6), Some(false)),
        (&learned, &off, None),
        (&balanced(8e6), &balanced(10e6), None),
    ] {
        let comparison = compare(base, other);
        let found = json(&comparison);
        let is_significant = found["routing"]["significant"].as_bool();
        assert_eq!(is_significant, significant, "{}", comparison.text());
        let said = comparison
            .text()
            .contains("routing imbalance is significant: +2");
        assert_eq!(said, significant == Some(true), "{}", comparison.text());
        if let Some(gain) = found["routing"]["change"]["relative"].as_f64() {
            assert!(gain > 0.0, "{gain}");
        }
    }
}

#[test]
fn windows_of_other_iterations_are_named() {
    let base = Run {
        condition: "phase=decode",
        ..Run::default()
    };
    let text = compare(&base, &Run::default()).text();
    let note = "not the same iterations: phase=decode, and all";
    assert!(text.lines().any(|line| line == note), "{text}");
    assert!(!compare(&base, &base).text().contains("not the same"));
}

/// Returns `count` runs of the same program, whose times vary randomly.
fn runs(seed: u64, time: f64, count: u64) -> Vec<Vec<Process>> {
    let run = |n: u64| Run {
        seed: seed + n,
        // Let whole runs vary by about 2 %.
        time: time * [1.0, 1.02, 0.99, 1.01, 0.98][((seed + n) % 5) as usize],
        ..Run::default()
    };
    (0..count).map(|n| vec![run(n).process()]).collect()
}

#[test]
fn what_differs_from_run_to_run_counts_where_there_are_several() {
    let base = runs(1, 10e6, 5);
    let [same, slower] = [10e6, 11e6].map(|time| runs(13, time, 5));
    let asked = |within| ComparisonOptions {
        within,
        ..ComparisonOptions::default()
    };
    let of = |other: &[Vec<Process>]| Comparison::of_runs(&base, other, &asked(0.05));
    assert!(no_difference(&of(&same)), "{}", of(&same).text());
    let Outcome::Slower(part, (low, high)) = of(&slower).verdict else {
        panic!("{}", of(&slower).text());
    };
    assert!((part - 0.091).abs() < 0.02 && low < part && part < high);
    assert!(
        of(&slower)
            .text()
            .contains("5 runs; of the middle one: 200 iterations")
    );
    assert!(!of(&slower).text().contains("of one run a side"));
    // Within each run the times vary little, but from run to run they vary by as much as the two
    // sides differ.
    let few = Comparison::of_runs(&base[..2], &runs(13, 10.3e6, 2), &asked(0.02));
    let Outcome::CannotTell { effort, .. } = few.verdict else {
        panic!("{}", few.text());
    };
    assert!(effort.needed > 2 && effort.smallest > 0.02, "{effort:?}");
    assert!(few.text().contains(" runs of each\n"), "{}", few.text());
}

#[test]
fn runs_without_iterations_are_left_out() {
    let base = runs(1, 10e6, 3);
    let mut other = vec![Vec::new(), Vec::new()];
    other.extend(runs(13, 20e6, 1));
    let comparison = Comparison::of_runs(&base, &other, &ComparisonOptions::default());
    let text = comparison.text();
    assert!(matches!(comparison.verdict, Outcome::Slower(..)), "{text}");
    assert!(
        text.contains("OTHER: left out: 2 runs without iterations\n"),
        "{text}"
    );
}

#[test]
fn a_condition_is_exceeded_kept_or_undecided() {
    let slower = Run {
        seed: 2,
        time: 11e6,
        kernel: Some(1e6),
        ..Run::default()
    };
    let base = Run {
        kernel: Some(0.5e6),
        ..Run::default()
    };
    let rows = [
        ("p50 > +2%", Met::Exceeded),
        ("mean > +5%", Met::Exceeded),
        ("rate < -2%", Met::Exceeded),
        ("mean > +20%", Met::Kept),
        ("mean < -2%", Met::Kept),
        ("mean > +10%", Met::CannotTell),
        ("gpu > +2%", Met::Exceeded),
        ("kernel:gemm > +50%", Met::Exceeded),
        ("kernel:gemm > +150%", Met::Kept),
        ("kernel:none > +50%", Met::CannotTell),
        ("layer:model > +50%", Met::CannotTell),
    ];
    let conditions = rows.map(|(condition, _)| Condition::parse(condition).unwrap());
    let asked = ComparisonOptions {
        conditions: conditions.into(),
        ..ComparisonOptions::default()
    };
    let of = |run: &Run| vec![vec![run.process()]];
    let comparison = Comparison::of_runs(&of(&base), &of(&slower), &asked);
    assert_eq!(comparison.conditions.len(), rows.len());
    for ((condition, met), checked) in rows.iter().zip(&comparison.conditions) {
        assert_eq!(checked.result, *met, "{checked}\n{}", comparison.text());
        assert_eq!(checked.why.is_empty(), *met != Met::CannotTell, "{checked}");
        assert!(checked.to_string().contains(condition));
    }
}

#[test]
fn percentiles_are_compared_where_both_runs_have_enough_iterations() {
    let percentiles = |iterations| {
        let run = |iterations| Run {
            iterations,
            ..Run::default()
        };
        let compared = json(&compare(&run(iterations), &run(400)));
        let measures = compared["measures"].as_array().unwrap().iter();
        let names = measures.map(|measure| measure["name"].as_str().unwrap().to_owned());
        names
            .filter(|name| name.starts_with("iteration, p"))
            .collect::<Vec<_>>()
    };
    let names = ["iteration, p50", "iteration, p90", "iteration, p99"];
    for (iterations, known) in [(19, 1), (20, 2), (199, 2), (200, 3)] {
        assert_eq!(percentiles(iterations), names[..known], "{iterations}");
    }
}
