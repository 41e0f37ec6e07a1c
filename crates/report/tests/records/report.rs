//! Tests of reports on a server whose times are known exactly.

use crate::common::server::{MS, Server, Truth, UNIX};
use crate::common::{fits, json, process, ranks};
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Counter, Edge, Event, Info, Metric, RangeKind, What};
use tllmprof_report::{Report, Style, Verdict};

/// Checks that a text is the same as a file in `tests/golden`. With `BLESS=1`, writes the text to
/// the file first.
fn golden(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/").to_owned() + name;
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "{name} is not what it was:\n{text}");
}

#[test]
fn one_process_in_a_screenful() {
    let text = ranks(&[0]).text();
    fits(&text, 44);
    golden("one.txt", &text);
}

#[test]
fn calls_that_are_too_few_for_a_figure_are_counted() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let mut put = |at, long, what| builder.push(7, &Event::new(at, long, what));
    for n in 0..1000 {
        put(1000 * n, 900, What::Iteration { n, excluded: false });
        if n == 10 || n == 700 {
            put(
                1000 * n + 5,
                100,
                What::Call {
                    row: 3,
                    capturing: false,
                    stream: 0,
                },
            );
        }
    }
    let text = Report::new(vec![process("a", &builder.bytes())]).text();
    assert!(text.contains("   2 in all    100 ns "), "{text}");
}

#[test]
fn ranks_in_a_screenful() {
    let text = ranks(&[2, 0, 1]).text();
    fits(&text, 44);
    golden("ranks.txt", &text);
    let many: Vec<_> = (0..100).collect();
    fits(&ranks(&many).text(), 44);
}

#[test]
fn json_has_every_iteration_as_it_was() {
    let (builder, truths) = Server::rank(1).record();
    let json = json(&Report::new(vec![process("a", &builder.bytes())]));
    let process = &json["processes"][0];
    assert_eq!(process["pid"], 4001);
    assert_eq!(process["host"], "gpu7");
    assert_eq!(process["rank"], 1);
    assert_eq!(
        process["command"],
        "python -m server --model tiny --port 8000"
    );
    assert_eq!(process["rule"], "cudaGraphLaunch");
    assert_eq!(process["dropped"], 0);
    assert_eq!(process["damage"], Value::Null);
    assert_eq!(process["state"], "whole");
    assert_eq!(process["clock_tied_ns"], Value::Null);
    assert_eq!(process["unix_minus_monotonic_ns"], UNIX);
    let windows = process["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 1);
    assert_eq!(
        (&windows[0]["first"], &windows[0]["last"]),
        (&100.into(), &150.into())
    );
    let found: Vec<_> = windows[0]["iterations"]
        .as_array()
        .unwrap()
        .iter()
        .map(truth)
        .collect();
    assert_eq!(found, truths);
    assert!(windows[0]["iterations"][0]["thread"] == 4001);
    assert_eq!(json["findings"][0]["rule"], "host-bound");
    assert_eq!(json["skew"], Value::Null);
}

fn truth(iteration: &Value) -> Truth {
    let number = |name: &str| iteration[name].as_u64().unwrap();
    Truth {
        n: number("n"),
        start: number("start_ns"),
        duration: number("dur_ns"),
        gpu: number("gpu_ns"),
        launches: number("launches"),
        wait: number("wait_ns"),
        gil_wait: number("gil_wait_ns"),
        gc: number("gc_ns"),
        busy: iteration["gpu_busy_ns"].as_u64(),
    }
}

#[test]
fn json_adds_up() {
    let (builder, truths) = Server::rank(0).record();
    let json = json(&Report::new(vec![process("a", &builder.bytes())]));
    let process = &json["processes"][0];
    let inside = &process["inside"];
    assert_eq!(inside["iterations"], 51);
    let wall: u64 = truths.iter().map(|truth| truth.duration).sum();
    assert_eq!(inside["wall_ns"], wall);
    let mut durations: Vec<_> = truths.iter().map(|truth| truth.duration).collect();
    durations.sort_unstable();
    assert_eq!(inside["time"]["p50_ns"], durations[25]);
    assert_eq!(inside["time"]["p90_ns"], durations[45]);
    // A 99th percentile needs more iterations than the 51 in the window and the 100 outside.
    assert!(inside["time"]["p99_ns"].is_null());
    assert_eq!(inside["launches"], 4.0);
    // Recording kernels makes GPU times longer, so GPU times are computed from iterations without
    // recorded kernels.
    let plain = truths.iter().filter(|truth| truth.busy.is_none());
    let (gpu, took) = plain.fold((0, 0), |(gpu, took), truth| {
        (gpu + truth.gpu, took + truth.duration)
    });
    let share = inside["gpu_share"].as_f64().unwrap();
    assert!((share - gpu as f64 / took as f64).abs() < 1e-6);
    let outside = &process["outside"];
    assert_eq!(outside["iterations"], 100);
    for (name, exact) in [("p50_ns", 10_400_000), ("p90_ns", 10_800_000)] {
        let found = outside[name].as_u64().unwrap();
        assert!(found.abs_diff(exact) <= exact / 64, "{name}: {found}");
    }
    assert!(outside["p99_ns"].is_null());
    assert_eq!(outside["max_ns"], 10_900_000);
    let total = |list: &str, name: &str| {
        let list = process[list].as_array().unwrap();
        let one = list.iter().find(|one| one["name"] == name).unwrap();
        (
            one["count"].as_u64().unwrap(),
            one["total_ns"].as_u64().unwrap(),
        )
    };
    assert_eq!(total("functions", "Scheduler.step"), (51, wall - 510));
    assert_eq!(total("ranges", "forward@engine"), (51, 51 * 5 * MS));
    assert_eq!(
        process["ranges"].as_array().unwrap().len(),
        1,
        "ours is none of the program's"
    );
    assert_eq!(total("calls", "cuStreamSynchronize"), (102, 51 * 7 * MS));
    assert_eq!(total("gc", "gen0"), (6, 1_200_000));
    assert_eq!(
        process["gil_wait"]["count"], 12,
        "the long one is none of every fifth"
    );
    assert_eq!(process["gil_forced"], 51);
    assert_eq!(process["own_cost_ns"], 50_000);
    assert_eq!(process["threads"][1]["name"], "sampler");
    assert_eq!(
        process["threads"][1]["gil_hold_ns"],
        process["gil_hold"]["total_ns"]
    );
    assert_eq!(process["calls_counted"][0]["outside"], 100);
}

#[test]
fn slow_iterations_have_their_cause() {
    let json = json(&ranks(&[0, 1]));
    for (place, n, kind, name, ns) in [
        (0, 112, "gil_wait", "GIL wait", 12 * MS),
        (0, 112, "gil_hold", "sampler", 12_005_000),
        (1, 107, "gc", "GC gen2", 30 * MS),
    ] {
        let slowest = &json["processes"][place]["slowest"][0];
        assert_eq!(slowest["n"], n);
        let cause = slowest["overlaps"]
            .as_array()
            .unwrap()
            .iter()
            .find(|cause| cause["kind"] == kind)
            .unwrap();
        assert_eq!((&cause["name"], &cause["ns"]), (&name.into(), &ns.into()));
    }
}

#[test]
fn ranks_are_compared_iteration_by_iteration() {
    let json = json(&ranks(&[2, 0, 1]));
    let rank = |place: usize| json["processes"][place]["rank"].as_u64().unwrap();
    assert_eq!([rank(0), rank(1), rank(2)], [0, 1, 2]);
    let skew = &json["skew"];
    assert_eq!(skew["slowest"], serde_json::json!([1, 1, 49]));
    let steps = skew["iterations"].as_array().unwrap();
    assert_eq!(steps.len(), 51);
    assert_eq!(steps[7]["n"], 107);
    assert_eq!(steps[7]["slowest"], 1);
    assert_eq!(steps[7]["spread_ns"], 30 * MS);
    assert_eq!(steps[8]["slowest"], 2);
    assert_eq!(steps[8]["spread_ns"], MS);
    assert_eq!(skew["spread"]["p50_ns"], MS);
}

/// The record in this test has many entries for each part of the report.
#[test]
fn a_full_report_fits_a_screen() {
    let (mut builder, _) = Server::rank(0).record();
    let main = Server::rank(0).pid();
    let put =
        |builder: &mut Builder, at, long, what| builder.push(main, &Event::new(at, long, what));
    for n in 0..20_u64 {
        // These events are later than all others in the record. `at` is in ticks of the simulated counter.
        let (at, first) = (1_000_000 * n + 10_000 * MS, 1000 + 10 * n);
        put(
            &mut builder,
            at,
            0,
            What::Window {
                edge: Edge::Open,
                iteration: first,
            },
        );
        put(
            &mut builder,
            at,
            500_000,
            What::Iteration {
                n: first,
                excluded: false,
            },
        );
        put(
            &mut builder,
            at + 500_000,
            0,
            What::Window {
                edge: Edge::Close,
                iteration: first,
            },
        );
        let name = builder.string(main, &format!("a_function_with_a_long_name_{n}").repeat(3));
        put(&mut builder, at, 1000, What::Function { name });
        let range = What::Range {
            kind: RangeKind::PushPop,
            domain: name,
            name,
        };
        put(&mut builder, at, 1000, range);
        put(
            &mut builder,
            at,
            1000,
            What::Call {
                row: 20 + n as u8,
                capturing: false,
                stream: 1,
            },
        );
        let key = Some(Info::Refused);
        put(
            &mut builder,
            at,
            0,
            What::Info {
                key,
                value: u64::from(name),
            },
        );
        put(&mut builder, at, 0, What::Dropped { events: 1 });
        let what = What::GpuMetric {
            device: n as u8 & 15,
            metric: Some(Metric::Power),
            thousandths: 700_000,
        };
        put(&mut builder, at, 500_000, what);
    }
    builder.header().add(Counter::GpuSpansLost, 5);
    let bytes = builder.bytes();
    let report = Report::new(vec![process("x", &bytes[..bytes.len() - 1])]);
    let text = report.text();
    fits(&text, 44);
    let last = [
        "GPU times that could not be read: 5",
        "damaged: ",
        "warned (19 more): a_function",
    ];
    for said in last.iter().chain(&[
        "and 18 more windows",
        "  60.6 %    3.92 ms  Scheduler.step: its own code",
    ]) {
        assert!(text.contains(said), "{said}: {text}");
    }
    // The text of findings must not be cut.
    for finding in report
        .findings
        .iter()
        .filter(|one| one.verdict == Verdict::Yes)
    {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [&finding.evidence, &finding.advice] {
            assert!(words.contains(&**said), "{said}: {text}");
        }
    }
    // If the text is not for a screen, it contains all rows, and no row is cut.
    let whole = report.styled(Style::whole());
    for n in 0..20 {
        let name = format!("a_function_with_a_long_name_{n}").repeat(3);
        // A function, a range and a warning in the record have this name, so it occurs at least three times.
        assert!(whole.matches(&name).count() >= 3, "{name}: {whole}");
    }
    for said in [
        "  112       22.2 ms  +11.",
        "GPU 15: power 700 W",
        "window 1190: ",
        "kernels of 20 steps: ",
        "copies, in all: 20 DtoH of ",
    ] {
        assert!(whole.contains(said), "{said}: {whole}");
    }
    assert!(!whole.contains('…') && !whole.contains(" more)"), "{whole}");
}

/// In this test the process was killed while its window was open. Its record has only iterations, a warning, and
/// counts of data that were lost.
#[test]
fn what_is_missing_is_said() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let put = |builder: &mut Builder, at, long, what| builder.push(7, &Event::new(at, long, what));
    let open = What::Window {
        edge: Edge::Open,
        iteration: 5,
    };
    put(&mut builder, 1000, 0, open);
    put(&mut builder, 1000, 0, What::Past { iteration: 5 });
    for n in 5..8 {
        put(
            &mut builder,
            1000 * n,
            900,
            What::Iteration { n, excluded: false },
        );
    }
    put(&mut builder, 9000, 0, What::Dropped { events: 3 });
    let why = builder.string(7, "GIL: no CPython\u{1b}[2J was found");
    put(
        &mut builder,
        1,
        0,
        What::Info {
            key: Some(Info::Refused),
            value: u64::from(why),
        },
    );
    builder.header().add(Counter::GpuSpansLost, 2);
    builder.header().add(Counter::EventsDropped, 7);
    builder.header().add(Counter::IterationsPassed, 4);
    builder.header().set(Counter::WindowsDropped, 12);
    builder.header().set(Counter::Keep, 2 << 30);
    let mut bytes = builder.bytes();
    bytes.truncate(bytes.len() - 1000);
    let report = Report::new(vec![process("x", &bytes)]);
    let json = json(&report);
    let process = &json["processes"][0];
    assert_eq!(process["windows"][0]["last"], 7);
    assert_eq!(process["windows"][0]["closed"], false);
    assert_eq!(
        process["windows"][0]["iterations"][2]["gpu_ns"],
        Value::Null
    );
    assert_eq!(process["dropped"], 7);
    assert_eq!(process["windows_dropped"], 12);
    assert_eq!(process["windows"][0]["past"], true);
    assert_eq!(process["outside"]["p50_ns"], Value::Null);
    assert_eq!(process["ended"], "not");
    assert_eq!(process["state"], "unfinished");
    let text = report.text();
    for said in [
        "window 5-7 (flight recorder): 3 iterations",
        "never closed",
        "12 older windows made room for later ones: the record could take 2.00 GiB",
        "4 iterations are missing: later ones began while a window was being switched",
        "3 events were dropped: the record or its disk was full",
        "GPU times that could not be read: 2",
        "warned: GIL: no CPython\\u{1b}[2J was found",
        "unfinished: its process was killed or still runs",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn an_empty_record_has_a_report() {
    let bytes = Builder::new(7, ClockKind::Counter).bytes();
    let report = Report::new(vec![process("x", &bytes)]);
    assert!(report.text().contains("no iteration was recorded"));
    let json = json(&report);
    assert_eq!(json["processes"][0]["windows"], Value::Array(Vec::new()));
    assert_eq!(json["processes"][0]["outside"]["iterations"], 0);
    assert_eq!(json["processes"][0]["clock_tied_ns"], 0);
    assert!(report.text().contains("times are unsure"));
}

/// A record that is cut off at any point after its header of 64 KiB, as after a crash, can still be read into a report.
#[test]
fn any_prefix_has_a_report() {
    let (builder, truths) = Server::rank(1).record();
    let whole = builder.bytes();
    let mut most = 0;
    for length in (64 * 1024..=whole.len()).step_by(997) {
        let report = Report::new(vec![process("x", &whole[..length])]);
        let count = report.processes[0]
            .sum
            .as_ref()
            .map_or(0, |sum| sum.iterations);
        assert!(
            count >= most && count <= truths.len() as u64,
            "{length}: {count}"
        );
        most = count;
        fits(&report.text(), 44);
        json(&report);
    }
    assert!(most > 40);
}

#[test]
fn the_recorders_share_is_of_all_windows_or_not_known() {
    let shown = |windows| {
        let (builder, _) = Server::rank(0).record();
        builder.header().set(Counter::Windows, windows);
        let report = Report::new(vec![process("x", &builder.bytes())]);
        let share = json(&report)["processes"][0]["recorder_share"].clone();
        (share, report.styled(Style::whole()))
    };
    let (share, text) = shown(1);
    assert!(share.as_f64().unwrap() < 0.01, "{share}");
    assert!(text.contains("the recorder took "), "{text}");
    // The measured time of the recorder covers three windows, but two of them are no longer in the record. So the
    // recorder's share of the time is not known.
    let (share, text) = shown(3);
    assert_eq!(share, Value::Null);
    assert!(!text.contains("the recorder took "), "{text}");
}

#[test]
fn kernels_that_no_window_could_take_are_explained() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let value = builder.string(7, "TLLMPROF_KERNELS=20").into();
    let key = Some(Info::Setting);
    builder.push(7, &Event::new(0, 0, What::Info { key, value }));
    let why = "kernels were asked for, and are recorded in windows, none of which opened";
    let text = Report::new(vec![process("x", &builder.bytes())]).text();
    assert!(text.contains(why), "{text}");
    builder.header().set(Counter::Windows, 1);
    let text = Report::new(vec![process("x", &builder.bytes())]).text();
    assert!(!text.contains(why), "{text}");
}
