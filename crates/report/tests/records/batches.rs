//! Tests of the report's figures on batches, in text and JSON.

use crate::common::server::{Server, Truth, ticks};
use crate::common::{fits, json, process};
use serde_json::{Value, json};
use tllmprof_record::{Batch, Event, Info, What};
use tllmprof_report::Report;

/// A condition of the user (`TLLMPROF_WHERE`), and a function that returns true for iterations that
/// the record marks as not satisfying it.
type Condition = (&'static str, fn(u64) -> bool);

/// Returns a server's record and the true figures of its iterations. `batch` returns the batch of an iteration. If
/// `condition` is given, the record states it as the condition of all windows.
fn with_batches(
    condition: Option<Condition>,
    batch: impl Fn(&Truth) -> Option<Batch>,
) -> (Vec<u8>, Vec<Truth>) {
    let excluded = condition.map_or((|_| false) as fn(u64) -> bool, |(_, excluded)| excluded);
    let server = Server {
        excluded,
        ..Server::rank(0)
    };
    with_batches_of(&server, condition.map(|(condition, _)| condition), batch)
}

/// Returns the same as [`with_batches`], for the given server instead of the default server.
fn with_batches_of(
    server: &Server,
    condition: Option<&str>,
    batch: impl Fn(&Truth) -> Option<Batch>,
) -> (Vec<u8>, Vec<Truth>) {
    let (mut builder, truths) = server.record();
    for truth in &truths {
        if let Some(batch) = batch(truth) {
            let iteration = truth.n as u16;
            let what = What::Batch { iteration, batch };
            builder.push(server.pid(), &Event::new(ticks(truth.start), 0, what));
        }
    }
    if let Some(condition) = condition {
        let value = u64::from(builder.string(server.pid(), condition));
        let key = Some(Info::Where);
        let start = ticks(truths[0].start);
        builder.push(
            server.pid(),
            &Event::new(start, 0, What::Info { key, value }),
        );
    }
    (builder.bytes(), truths)
}

/// Returns a server's record, and the number of iterations with a known batch. The batches of the last two iterations
/// are not known. The first batch has only a prompt, the next three batches have prompts and decodes, and the
/// remaining batches have only decodes.
pub(crate) fn record() -> (Vec<u8>, usize) {
    let (bytes, truths) = with_batches(None, |truth| match truth.n {
        100 => Batch::new(1, 900, 900),
        101..104 => Batch::new(3, 102, 100),
        149.. => None,
        _ => Batch::new(4, 4, 0),
    });
    (bytes, truths.len() - 2)
}

#[test]
fn each_iteration_has_its_batch() {
    let (bytes, known) = record();
    let json = json(&Report::new(vec![process("a", &bytes)]));
    let process = &json["processes"][0];
    let iterations = process["windows"][0]["iterations"].as_array().unwrap();
    let batch = |place: usize| &iterations[place]["batch"];
    let prefill = json!({
        "requests": 1, "tokens": 900, "prefill_tokens": 900, "decode_tokens": 0, "phase": "prefill"
    });
    let mixed = json!({
        "requests": 3, "tokens": 102, "prefill_tokens": 100, "decode_tokens": 2, "phase": "mixed"
    });
    let decode = json!({
        "requests": 4, "tokens": 4, "prefill_tokens": 0, "decode_tokens": 4, "phase": "decode"
    });
    assert_eq!((batch(0), batch(3)), (&prefill, &mixed));
    assert_eq!(
        (batch(4), batch(known - 1), batch(known)),
        (&decode, &decode, &Value::Null)
    );
    let phases = process["phases"].as_array().unwrap();
    let counts: Vec<_> = phases
        .iter()
        .map(|phase| {
            (
                phase["phase"].as_str().unwrap(),
                phase["iterations"].as_u64(),
            )
        })
        .collect();
    let decodes = (known - 4) as u64;
    assert_eq!(
        counts,
        [
            ("prefill", Some(1)),
            ("decode", Some(decodes)),
            ("mixed", Some(3))
        ]
    );
    assert_eq!(phases[2]["prefill_tokens"], 300);
    assert_eq!(phases[1]["tokens"], 4 * decodes);
    assert_eq!(phases[0]["time"]["p50_ns"], iterations[0]["dur_ns"]);
}

#[test]
fn phases_have_lines() {
    let (bytes, known) = record();
    let text = Report::new(vec![process("a", &bytes)]).text();
    fits(&text, 44);
    let decodes = format!("  decode ({})", known - 4);
    for start in ["  prefill (1) ", "  mixed (3) ", &decodes] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
    // The 49 batches have (1 + 3 × 3 + 45 × 4) requests and (900 + 3 × 102 + 45 × 4) tokens, of
    // which 1200 belong to prompts.
    let batches = "3.88 requests and 28.3 tokens a step, 86.6 % of these prefill";
    assert!(text.lines().any(|line| line == batches), "{text}");
}

#[test]
fn a_record_without_batches_reports_none() {
    let bytes = Server::rank(0).record().0.bytes();
    let report = Report::new(vec![process("a", &bytes)]);
    assert!(!report.text().contains("a step, "), "{}", report.text());
    let json = json(&report);
    let process = &json["processes"][0];
    assert_eq!(process["phases"], json!([]));
    assert_eq!(process["windows"][0]["iterations"][0]["batch"], Value::Null);
}

/// Returns true for iterations that these tests make idle: the slowest one, the first and the last of the window, and
/// every seventh. Kernels are recorded in some of the idle iterations, and not in others.
fn is_idle(n: u64) -> bool {
    n == 112 || n == 100 || n == 150 || n.is_multiple_of(7)
}

/// Checks that the report's figures do not include idle iterations.
fn assert_left_out(process: &Value, truths: &[Truth]) {
    let counted: Vec<_> = truths.iter().filter(|truth| !is_idle(truth.n)).collect();
    let count = counted.len() as u64;
    assert!(count > 35 && count < truths.len() as u64);
    let iterations = process["windows"][0]["iterations"].as_array().unwrap();
    assert_eq!(iterations.len(), truths.len());
    for (iteration, truth) in iterations.iter().zip(truths) {
        assert_eq!(iteration["qualifies"], !is_idle(truth.n), "{}", truth.n);
        // The list of single iterations includes idle iterations with their figures.
        assert_eq!(
            (&iteration["wait_ns"], &iteration["launches"]),
            (&json!(truth.wait), &json!(truth.launches))
        );
        assert_eq!(iteration["gpu_busy_ns"], json!(truth.busy));
    }
    let inside = &process["inside"];
    let mut times: Vec<_> = counted.iter().map(|truth| truth.duration).collect();
    times.sort_unstable();
    let total: u64 = times.iter().sum();
    assert_eq!(inside["iterations"], count);
    assert_eq!(inside["time"]["max_ns"], times[times.len() - 1]);
    assert_eq!(inside["time"]["p50_ns"], times[times.len().div_ceil(2) - 1]);
    assert_eq!(inside["wall_ns"], total);
    assert_eq!(
        (inside["launches"].as_f64(), inside["calls"].as_f64()),
        (Some(4.0), Some(8.0))
    );
    // The share of waits is computed from iterations without recorded kernels, because recording
    // kernels makes iterations longer.
    let plain = counted.iter().filter(|truth| truth.busy.is_none());
    let (waits, all) = plain.fold((0, 0), |(waits, all), truth| {
        (waits + truth.wait, all + truth.duration)
    });
    let waits = waits as f64 / all as f64;
    assert!((inside["wait_share"].as_f64().unwrap() - waits).abs() < 1e-6);
    // Totals by name must not include the events of idle iterations.
    let of = |list: &str, name: &str| {
        let list = process[list].as_array().unwrap();
        list.iter().find(|one| one["name"] == name).unwrap().clone()
    };
    assert_eq!(of("calls", "cuGraphLaunch")["count"], count);
    assert_eq!(of("calls", "cuStreamSynchronize")["count"], 2 * count);
    assert_eq!(of("functions", "Scheduler.step")["count"], count);
    assert_eq!(of("ranges", "forward@engine")["count"], count);
    let collections = counted.iter().filter(|truth| truth.gc > 0).count();
    assert_eq!(process["gc"][0]["count"], collections);
    let waits = counted.iter().filter(|truth| truth.gil_wait > 0).count();
    assert_eq!(process["gil_wait"]["count"], waits);
    let taken = counted.iter().filter(|truth| truth.busy.is_some());
    let busy: u64 = taken.clone().filter_map(|truth| truth.busy).sum();
    let taken = taken.count() as u64;
    assert!(taken < 17);
    assert_eq!(process["kernel_window"]["iterations"], taken);
    assert_eq!(process["kernel_window"]["busy_ns"], busy);
    assert_eq!(process["copies"][0]["count"], taken);
    let kernels = process["kernels"].as_array().unwrap().iter();
    let kernels: u64 = kernels
        .map(|kernel| kernel["count"].as_u64().unwrap())
        .sum();
    assert_eq!(kernels, 4 * taken);
    let host = process["ledger"]["host"].as_array().unwrap().iter();
    let host: u64 = host.map(|row| row["ns"].as_u64().unwrap()).sum();
    let plain: u64 = counted
        .iter()
        .filter(|truth| truth.busy.is_none())
        .map(|truth| truth.duration)
        .sum();
    assert!(host.abs_diff(plain) < 100, "{host} {plain}");
    let slowest = process["slowest"].as_array().unwrap();
    assert!(
        slowest
            .iter()
            .all(|slow| !is_idle(slow["n"].as_u64().unwrap()))
    );
    assert_eq!(slowest[0]["dur_ns"], times[times.len() - 1]);
}

#[test]
fn idle_iterations_are_in_no_figure_of_windows() {
    let (bytes, truths) = with_batches(None, |truth| match is_idle(truth.n) {
        true => Batch::new(0, 0, 0),
        false => Batch::new(4, 4, 0),
    });
    let report = Report::new(vec![process("a", &bytes)]);
    let json = json(&report);
    let process = &json["processes"][0];
    assert_left_out(process, &truths);
    let idle = truths.iter().filter(|truth| is_idle(truth.n));
    let took: Vec<_> = idle.map(|truth| truth.duration).collect();
    let [unqualified] = &process["unqualified"].as_array().unwrap()[..] else {
        panic!("{process}");
    };
    assert_eq!(
        (
            &unqualified["why"],
            &unqualified["iterations"],
            &unqualified["total_ns"]
        ),
        (
            &json!("idle"),
            &json!(took.len()),
            &json!(took.iter().sum::<u64>())
        )
    );
    assert_eq!(unqualified["time"]["max_ns"], json!(took.iter().max()));
    assert_eq!(process["where"], Value::Null);
    assert_eq!(process["phases"].as_array().unwrap().len(), 1);
    // The long wait for the GIL is in an idle iteration. If that iteration counted, there would be
    // a finding.
    let gil = json["findings"].as_array().unwrap().iter();
    let gil: Vec<_> = gil.filter(|finding| finding["rule"] == "gil").collect();
    assert_eq!(gil[0]["verdict"], "no");
    let text = report.text();
    fits(&text, 44);
    let counted = truths.len() - took.len();
    let window = format!("window 100-150: {counted} of 51 iterations in ");
    assert!(text.lines().any(|line| line.starts_with(&window)), "{text}");
    let note = format!("left out: {} idle iterations", took.len());
    assert!(text.lines().any(|line| line == note), "{text}");
}

#[test]
fn iterations_that_do_not_fulfil_the_condition_are_in_no_figure_of_windows() {
    let (bytes, truths) =
        with_batches(
            Some(("tokens>=4 and phase=decode", is_idle)),
            |truth| match truth.n {
                100 => None,
                112 => Batch::new(0, 0, 0),
                n if is_idle(n) => Batch::new(2, 2, 0),
                _ => Batch::new(4, 4, 0),
            },
        );
    let report = Report::new(vec![process("a", &bytes)]);
    let json = json(&report);
    let process = &json["processes"][0];
    assert_left_out(process, &truths);
    assert_eq!(process["where"], "tokens>=4 and phase=decode");
    let unqualified = process["unqualified"].as_array().unwrap().iter();
    let unqualified: Vec<_> = unqualified
        .map(|sum| (&sum["why"], sum["iterations"].as_u64().unwrap()))
        .collect();
    let without = truths.iter().filter(|truth| is_idle(truth.n)).count() as u64 - 1;
    assert_eq!(
        unqualified,
        [(&json!("unknown"), 1), (&json!("where"), without)]
    );
    let text = report.text();
    let note = format!(
        "left out: 1 iteration of an unknown batch, {without} without tokens>=4 and phase=decode"
    );
    assert!(text.lines().any(|line| line == note), "{text}");
}

#[test]
fn where_the_condition_asks_for_idle_iterations_they_count() {
    let (bytes, _) = with_batches(
        Some(("phase=idle", |n| !is_idle(n))),
        |truth| match is_idle(truth.n) {
            true => Batch::new(0, 0, 0),
            false => Batch::new(4, 4, 0),
        },
    );
    let json = json(&Report::new(vec![process("a", &bytes)]));
    let iterations = json["processes"][0]["windows"][0]["iterations"]
        .as_array()
        .unwrap();
    for iteration in iterations {
        assert_eq!(
            iteration["qualifies"],
            iteration["batch"]["phase"] == "idle"
        );
    }
}

#[test]
fn where_all_are_idle_all_count() {
    let idle = |_: &Truth| Batch::new(0, 0, 0);
    let (bytes, truths) = with_batches(None, idle);
    let json = json(&Report::new(vec![process("a", &bytes)]));
    let process = &json["processes"][0];
    assert_eq!(process["inside"]["iterations"], truths.len());
    assert_eq!(process["unqualified"], json!([]));
}

#[test]
fn where_no_iteration_fulfils_the_condition_that_is_said() {
    let (bytes, truths) = with_batches(Some(("tokens>9", |_| true)), |_| Batch::new(4, 4, 0));
    let report = Report::new(vec![process("a", &bytes)]);
    let json = json(&report);
    assert_eq!(json["processes"][0]["inside"], Value::Null);
    assert_eq!(json["findings"], json!([]));
    let text = report.text();
    let all = truths.len();
    for line in [
        format!("window 100-150: 0 of {all} iterations count"),
        format!("left out: {all} iterations without tokens>9"),
    ] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
    let both = Report::new(vec![
        process("a", &bytes),
        process("b", &Server::rank(1).record().0.bytes()),
    ]);
    assert!(
        both.text().contains("   no iteration counts\n"),
        "{}",
        both.text()
    );
}

#[test]
fn phases_have_classes_of_sizes() {
    // Three iterations have prompts of 700 tokens, and all other iterations are decodes. A decode has 300 tokens if
    // its iteration number is divisible by ten, 64 tokens if the number is another multiple of three, and otherwise
    // 2 tokens.
    let (bytes, truths) = with_batches(None, |truth| match truth.n {
        100..103 => Batch::new(1, 700, 700),
        n if n.is_multiple_of(10) => Batch::new(300, 300, 0),
        n if n.is_multiple_of(3) => Batch::new(64, 64, 0),
        _ => Batch::new(2, 2, 0),
    });
    let report = Report::new(vec![process("a", &bytes)]);
    let json = json(&report);
    let phases = json["processes"][0]["phases"].as_array().unwrap();
    let classes = |place: usize| -> Vec<_> {
        let sizes = phases[place]["sizes"].as_array().unwrap().iter();
        sizes
            .map(|size| {
                let of = |key: &str| size[key].as_u64();
                (of("min_tokens"), of("max_tokens"), of("iterations"))
            })
            .collect()
    };
    let class = |least, most, count| (Some(least), Some(most), Some(count));
    assert_eq!(classes(0), [class(257, 1024, 3)]);
    // The expected numbers of iterations: 5 have 300 tokens (110, 120, … 150), 14 have 64 tokens (105 to 147 without
    // 120), and the other 29 have 2 tokens.
    let decodes = [(2, 4, 29), (17, 64, 14), (257, 1024, 5)];
    assert_eq!(
        classes(1),
        decodes.map(|(least, most, count)| class(least, most, count))
    );
    let large = truths
        .iter()
        .filter(|truth| truth.n > 102 && truth.n.is_multiple_of(10));
    let mut large: Vec<_> = large.map(|truth| truth.duration).collect();
    large.sort_unstable();
    let size = &phases[1]["sizes"][2];
    assert_eq!(
        (&size["time"]["p50_ns"], &size["time"]["max_ns"]),
        (&json!(large[2]), &json!(large[4]))
    );
    assert_eq!(size["total_ns"], large.iter().sum::<u64>());
    assert_eq!(
        (&size["requests"], &size["tokens"]),
        (&json!(1500), &json!(1500))
    );
    let text = report.text();
    fits(&text, 44);
    let line = "decode, p50: 2-4 tokens 10.6 ms (29), 17-64 10.5 ms (14), 257-1024 10.2 ms (5)";
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(!text.contains("prefill, p50"), "{text}");
}

#[test]
fn a_line_has_the_classes_that_most_time_goes_to() {
    let (bytes, _) = with_batches(None, |truth| match truth.n {
        n @ 100..107 => Batch::new(1, 4_i64.pow((n - 100) as u32), 0),
        n if n.is_multiple_of(2) => Batch::new(1, 16_000, 0),
        _ => Batch::new(1, 2, 0),
    });
    let text = Report::new(vec![process("a", &bytes)]).text();
    fits(&text, 44);
    let line = text.lines().find(|line| line.starts_with("decode, p50: "));
    let line = line.unwrap();
    assert!(
        line.contains(" 2-4 tokens ") || line.contains(", 2-4 "),
        "{line}"
    );
    assert!(
        line.contains(", 4097+ ") && line.ends_with("(22)"),
        "{line}"
    );
}

#[test]
fn one_phase_of_one_size_has_no_line_of_its_own() {
    let (bytes, _) = with_batches(None, |_| Batch::new(4, 4, 0));
    let text = Report::new(vec![process("a", &bytes)]).text();
    assert!(!text.contains("decode"), "{text}");
    assert!(
        text.contains("4.00 requests and 4.00 tokens a step"),
        "{text}"
    );
}

#[test]
fn a_slow_rank_that_has_larger_batches_is_said_to_have_them() {
    let evidence = |tokens: [i64; 3]| {
        let ranks = [0, 1, 2].map(|rank| {
            let batch = |_: &Truth| Batch::new(1, tokens[rank as usize], 0);
            let (bytes, _) = with_batches_of(&Server::rank(rank), None, batch);
            process("a", &bytes)
        });
        let json = json(&Report::new(ranks.into()));
        let findings = json["findings"].as_array().unwrap().iter();
        let mut slow = findings.filter(|finding| finding["rule"] == "slow-rank");
        let slow = slow.next().unwrap();
        assert_eq!(slow["verdict"], "yes");
        slow["evidence"].as_str().unwrap().to_owned()
    };
    let larger = evidence([4, 6, 8]);
    assert!(
        larger.contains(" of the iterations; its batches have 8.00 tokens, the others' 5.00; if "),
        "{larger}"
    );
    let same = evidence([8, 8, 8]);
    assert!(same.contains(" of the iterations; if "), "{same}");
}

#[test]
fn slow_iterations_have_their_batches() {
    let (bytes, _) = with_batches(None, |truth| match truth.n {
        112 => Batch::new(1, 900, 900),
        109 => None,
        _ => Batch::new(4, 4, 0),
    });
    let report = Report::new(vec![process("a", &bytes)]);
    let json = json(&report);
    let slowest = json["processes"][0]["slowest"].as_array().unwrap();
    let batch = |n: u64| {
        let mut slowest = slowest.iter();
        &slowest.find(|slow| slow["n"] == n).unwrap()["batch"]
    };
    assert_eq!(batch(112)["prefill_tokens"], 900);
    assert_eq!(batch(109), &Value::Null);
    assert_eq!(batch(129)["phase"], "decode");
    // The batch of iteration 112 is large, but the GPU did no more work than in other iterations, so the
    // batch must not be named as the cause.
    assert!(!report.text().contains("prefill of"), "{}", report.text());
}
