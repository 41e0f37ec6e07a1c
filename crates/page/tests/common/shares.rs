//! Checks that a page, a report's text and its JSON contain the same shares of time by cause.

use serde_json::Value;
use tllmprof_report::{Rate, Share, Style, Time};

use crate::common::{TestPage, element};

/// Maximum difference between two sums of shares that should be equal, or between a sum of shares and 1.
const EXACT: f64 = 1e-3;

/// The style of a screen that is tall enough for all tables.
const TALL: Style = Style {
    is_whole: false,
    is_brief: false,
    is_coloured: false,
    width: 80,
    height: 400,
    top: None,
};

/// Returns the rows of the ledger, the table of time by cause, for the host or for the GPU.
pub(crate) fn rows<'a>(of: &'a Value, side: &str) -> &'a [Value] {
    of["ledger"][side].as_array().unwrap()
}

/// Returns the sum of the shares of the rows for which `is` returns true.
pub(crate) fn sum(rows: &[Value], is: impl Fn(&Value) -> bool) -> f64 {
    let rows = rows.iter().filter(|row| is(row));
    rows.map(|row| row["share"].as_f64().unwrap()).sum()
}

/// Checks that page, text and JSON contain the same shares for the first process, which must have iterations. Also
/// checks that each list of shares adds up to 1. Returns the JSON of the report.
pub(crate) fn are_the_same(shown: &TestPage) -> Value {
    let json = shown.json();
    let process = &json["processes"][0];
    let html = String::from_utf8(shown.html()).unwrap();
    let there: Value = serde_json::from_str(element(&html, "data")).unwrap();
    let in_page = &there["report"]["processes"][0];
    assert_eq!(in_page["ledger"], process["ledger"]);
    assert_eq!(there["report"]["findings"], json["findings"]);
    // The shares are part of the report in the page's data. The figures that the page has in addition to the report
    // must not contain the shares a second time.
    assert!(there["processes"][0].get("breakdown").is_none());
    let windows = process["windows"].as_array().unwrap();
    for of in windows.iter().chain([process]) {
        for side in ["host", "gpu"] {
            let rows = rows(of, side);
            let all = sum(rows, |_| true);
            assert!(rows.is_empty() || (all - 1.0).abs() < EXACT, "{rows:?}");
        }
    }
    let text = shown.report.styled(TALL);
    let lines: Vec<_> = text.lines().collect();
    let inside = &process["inside"];
    let share = |value: &Value| Share(value.as_f64().unwrap()).to_string();
    for (of, row, side, kind) in [
        (&process["gpu_span_share"], "GPU span", "gpu", "span"),
        (&process["gpu_busy_share"], "GPU busy", "gpu", "busy"),
        (&inside["wait_share"], "waits for the GPU", "host", "wait"),
    ] {
        if of.is_null() {
            continue;
        }
        let is_row = |line: &&&str| line.starts_with(' ') && line.trim_start().starts_with(row);
        let line = lines.iter().find(is_row);
        if line.is_none() && of.as_f64() == Some(0.0) {
            continue; // a share of 0 has no line
        }
        let line = line.unwrap_or_else(|| panic!("{row}\n{text}"));
        assert!(line.ends_with(&share(of)), "{line}: {of}");
        // The line shows the same share as the ledger (the table of time by cause) only if both come from the same
        // measurement: CUDA events or kernels. If there are waits for requests, the shares differ, because only the
        // ledger includes these waits in the time.
        let is_by_events = process["ledger"]["gpu_from"] == "events";
        let is_of_ledger = side == "host" || (kind == "span") == is_by_events;
        if !is_of_ledger || inside["idle"]["max_ns"] != 0 {
            continue;
        }
        // Waits in copies have a row of their own in the ledger, and are not part of the share.
        let is_in_copy = |row: &Value| {
            let cause = row["cause"].as_str().unwrap();
            cause.starts_with("waiting for the GPU in a copy")
        };
        let by_ledger = sum(rows(process, side), |row| {
            row["kind"] == kind && !is_in_copy(row)
        });
        let of = of.as_f64().unwrap();
        // In the ledger (the table of time by cause), waits that are too small for a row of their own are in the row
        // for other causes.
        let small = sum(rows(process, side), |row| {
            kind == "wait" && row["kind"] == "other"
        });
        let has_room = of > by_ledger - EXACT && of < by_ledger + small + EXACT;
        assert!(has_room, "{row}: {of} {by_ledger} {small}");
    }
    ledgers_are_the_same(process, &lines);
    layers_are_the_same(process, in_page, &lines);
    json
}

/// Checks that the text contains the largest rows of the ledgers, the tables of time by cause.
fn ledgers_are_the_same(process: &Value, lines: &[&str]) {
    for (side, heading) in [("host", "host"), ("gpu", "GPU")] {
        let rows = rows(process, side);
        if rows.is_empty() {
            continue;
        }
        // If a ledger (table of time by cause) is not based on all iterations, the text states the number of
        // iterations that it is based on.
        let ledger = &process["ledger"];
        let of = &ledger[format!("{side}_iterations")];
        let counted = match of == &ledger["iterations"] {
            true => String::new(),
            false => format!(" ({of} of {} iterations", ledger["iterations"]),
        };
        let start = format!("{:>8}{:>11}  {heading}{counted}", "of time", "a step");
        let first = lines.iter().position(|line| line.starts_with(&start));
        let first = first.unwrap_or_else(|| panic!("{start}\n{lines:#?}"));
        let mut said = 0;
        for (line, row) in lines[first + 1..].iter().zip(rows) {
            let share = Share(row["share"].as_f64().unwrap()).to_string();
            let a_step = row["ns"].as_u64().unwrap() / of.as_u64().unwrap();
            let start = format!("{share:>8}{:>11}  ", Time(a_step).to_string());
            let Some(named) = line.strip_prefix(&start) else {
                assert!(line.ends_with(" more"), "{start}: {line}");
                break;
            };
            let cause = row["cause"].as_str().unwrap();
            assert!(
                cause.starts_with(named.trim_end_matches('…')),
                "{line}: {row}"
            );
            said += 1;
        }
        assert!(said > 0, "{lines:#?}");
    }
}

/// Checks that known layers, kernels outside layers, and kernels of unknown layers add up to all of
/// the time. Also checks that page and text contain the same rows as the JSON.
fn layers_are_the_same(process: &Value, in_page: &Value, lines: &[&str]) {
    let lists = ["layers", "layer_patterns", "layer_tree", "layers_unknown"];
    for list in lists {
        assert_eq!(in_page[list], process[list], "{list}");
    }
    let [layers, patterns, tree, unknown] = lists.map(|list| process[list].as_array().unwrap());
    if layers.is_empty() && unknown.is_empty() {
        return;
    }
    let all = sum(layers, |_| true) + sum(unknown, |_| true);
    assert!((all - 1.0).abs() < EXACT, "{all}");
    let outside = sum(layers, |row| row["name"] == "");
    for rows in [patterns, tree] {
        // Add up only the rows of depth 0, the outermost layers, because they include the time of the layers inside
        // them.
        let outermost = sum(rows, |row| row["depth"] == 0);
        let known = 1.0 - outside - sum(unknown, |_| true);
        assert!((outermost - known).abs() < EXACT, "{outermost} {known}");
    }
    let mut table = lines.iter().skip_while(|line| !line.starts_with("layers"));
    assert!(table.next().is_some(), "{lines:#?}");
    let mut around: Vec<(usize, String)> = Vec::new();
    for line in table.take_while(|line| line.starts_with("  ")) {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<_> = line.split_whitespace().collect();
        around.retain(|(deep, _)| *deep < indent);
        let outer = around.last().map_or("", |(_, name)| name);
        let name = format!("{outer}{}", words[0]);
        // A long name is cut and ends with `…`, so compare only its beginning.
        let start = name.trim_end_matches('…').to_owned();
        let is_it = |row: &&Value| row["name"].as_str().unwrap().starts_with(&start);
        let figures = |row: &Value| {
            let ns = |key: &str| Time(row[key].as_u64().unwrap()).to_string();
            let kernels = Rate(row["kernels_a_step"].as_f64().unwrap());
            let share = Share(row["share"].as_f64().unwrap());
            let [step, each, gaps] = ["step_ns", "each_ns", "gap_ns"].map(ns);
            let layers = &row["layers"];
            format!("{layers} {kernels} {step} {each} {gaps} {share}")
        };
        let rows: Vec<_> = patterns.iter().filter(is_it).map(figures).collect();
        assert!(rows.contains(&words[1..].join(" ")), "{line}\n{rows:#?}");
        around.push((indent, name));
    }
    assert!(!around.is_empty(), "{lines:#?}");
}

/// Checks that text, page and JSON contain the same numbers of stack samples and of rejected
/// samples, for one process or for several.
pub(crate) fn samples_are_the_same(shown: &TestPage) {
    let json = shown.json();
    let html = String::from_utf8(shown.html()).unwrap();
    let there: Value = serde_json::from_str(element(&html, "data")).unwrap();
    let text = shown.report.styled(TALL);
    let lines = text.lines().skip_while(|line| !line.starts_with("stacks"));
    let said: String = lines.take(3).collect();
    assert!(!said.is_empty(), "{text}");
    let processes = json["processes"].as_array().unwrap();
    for (place, process) in processes.iter().enumerate() {
        let stacks = &process["stacks"];
        let there = &there["report"]["processes"][place]["stacks"];
        assert_eq!(there, stacks);
        let who = match processes.len() {
            1 => ": ",
            _ => &format!("rank {} ", process["rank"]),
        };
        let at = said.find(who).map(|at| at + who.len());
        let at = at.unwrap_or_else(|| panic!("{who}: {said}"));
        let samples = stacks["counts"]["samples"].to_string();
        let rest = said[at..].strip_prefix(&samples);
        let rest = rest.unwrap_or_else(|| panic!("{samples}: {said}"));
        let own = rest.split("rank").next().unwrap();
        let rejected = Share(stacks["rejected_share"].as_f64().unwrap());
        let is_said = own.contains(&rejected.to_string());
        let is_there = stacks["counts"]["rejected"] != 0;
        assert!(is_said || !is_there, "{own}: {rejected}");
        assert!(said.contains(&format!("{} Hz", stacks["rate"])), "{said}");
    }
}
