//! Page, text and JSON have one figure for each share.

use serde_json::Value;
use tllmprof_report::{Rate, Share, Time};

use crate::common::{Shown, element};

/// A sum of shares is all, to a tenth of a per cent.
const EXACT: f64 = 1e-3;

/// The rows of a side of a ledger.
pub fn rows<'a>(of: &'a Value, side: &str) -> &'a [Value] {
    of["ledger"][side].as_array().unwrap()
}

/// How much of the time rows take that are so.
pub fn sum(rows: &[Value], is: impl Fn(&Value) -> bool) -> f64 {
    let rows = rows.iter().filter(|row| is(row));
    rows.map(|row| row["share"].as_f64().unwrap()).sum()
}

/// What is shown of one process with iterations has one figure for each share, in the page, the text and the JSON, and all
/// lists of shares add up. Returns the JSON.
pub fn are_the_same(shown: &Shown) -> Value {
    let json = shown.json();
    let process = &json["processes"][0];
    let html = String::from_utf8(shown.html()).unwrap();
    let there: Value = serde_json::from_str(element(&html, "data")).unwrap();
    let in_page = &there["report"]["processes"][0];
    assert_eq!(in_page["ledger"], process["ledger"]);
    assert_eq!(there["report"]["findings"], json["findings"]);
    // All that the page has of shares is the report's.
    assert!(there["processes"][0].get("breakdown").is_none());
    let windows = process["windows"].as_array().unwrap();
    for of in windows.iter().chain([process]) {
        for side in ["host", "gpu"] {
            let rows = rows(of, side);
            let all = sum(rows, |_| true);
            assert!(rows.is_empty() || (all - 1.0).abs() < EXACT, "{rows:?}");
        }
    }
    let text = shown.report.text();
    let lines: Vec<_> = text.lines().collect();
    let inside = &process["inside"];
    let share = |value: &Value| Share(value.as_f64().unwrap()).to_string();
    for (of, row, side, kind) in [
        (&inside["gpu_share"], "  GPU ", "gpu", "busy"),
        (&inside["wait_share"], "  waits for the GPU", "host", "wait"),
    ] {
        if of.is_null() {
            continue;
        }
        let line = lines.iter().find(|line| line.starts_with(row));
        if line.is_none() && of.as_f64() == Some(0.0) {
            continue; // nothing to show
        }
        let line = line.unwrap_or_else(|| panic!("{row}\n{text}"));
        assert!(line.ends_with(&share(of)), "{line}: {of}");
        // It is what the ledger says.
        let by_ledger = sum(rows(process, side), |row| row["kind"] == kind);
        let of = of.as_f64().unwrap();
        assert!((of - by_ledger).abs() < EXACT, "{row}: {of} {by_ledger}");
    }
    for (side, heading) in [("host", "host"), ("gpu", "GPU")] {
        let rows = rows(process, side);
        if rows.is_empty() {
            continue;
        }
        // Of how many iterations it is, unless of all.
        let ledger = &process["ledger"];
        let of = &ledger[format!("{side}_iterations")];
        let counted = match of == &ledger["iterations"] {
            true => String::new(),
            false => format!(" ({of})"),
        };
        let starts = [
            format!("{heading}{counted}: "),
            format!("{heading}{counted}, stretched: "),
        ];
        let is_it = |line: &&str| starts.iter().any(|start| line.starts_with(start));
        let first = lines.iter().position(is_it);
        let first = first.unwrap_or_else(|| panic!("{starts:?}\n{text}"));
        let (_, said) = lines[first].split_once(": ").unwrap();
        let mut said = said.to_owned();
        for more in &lines[first + 1..] {
            if !said.ends_with(',') {
                break;
            }
            said += &format!(" {}", more.trim_start());
        }
        for (one, row) in said.trim_end_matches(", …").split(", ").zip(rows) {
            let cause = row["cause"].as_str().unwrap();
            let Some((percent, named)) = one.split_once(" % ") else {
                panic!("{one}: {row}\n{text}")
            };
            assert_eq!(format!("{percent} %"), share(&row["share"]), "{said}");
            assert!(
                cause.starts_with(named.trim_end_matches('…')),
                "{said}: {row}"
            );
        }
    }
    layers_are_the_same(process, in_page, &lines);
    json
}

/// Layers, what is in none and what is not known are all of the time; page and text have the rows of the JSON.
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
        // Those that are in no other one.
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
        // A long name is cut.
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

/// Of the samples of stacks, text, page and JSON say how many there are and how much was rejected, of one process or of
/// several.
pub fn samples_are_the_same(shown: &Shown) {
    let json = shown.json();
    let html = String::from_utf8(shown.html()).unwrap();
    let there: Value = serde_json::from_str(element(&html, "data")).unwrap();
    let text = shown.report.text();
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
