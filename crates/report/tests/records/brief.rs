//! Tests of the brief report: it is short, and each number in it comes from the report's JSON.

use std::collections::BTreeSet;

use serde_json::Value;
use tllmprof_report::{Rate, Report, Share, Style, Time};

use crate::common::{json, process};
use crate::stored::{corpus, job};

/// Maximum length of a brief report in characters.
const LONGEST: usize = 8000;
/// Maximum number of rows of a ledger (time by cause) in a brief report, not counting the line with the sum of the
/// remaining rows.
const ROWS: usize = 6;
/// Units that a number in a report's text may have.
const UNITS: [&str; 5] = ["%", "ns", "µs", "ms", "s"];

fn brief(report: &Report) -> String {
    report.styled(Style {
        is_brief: true,
        ..Style::whole()
    })
}

/// The numbers and texts of a report's JSON, in the form in which a text may show them.
#[derive(Default)]
struct Known {
    /// Numbers as text, with their units.
    figures: BTreeSet<String>,
    texts: BTreeSet<String>,
}

impl Known {
    fn new(json: &Value) -> Self {
        let mut known = Self::default();
        known.add("", json);
        for process in json["processes"].as_array().unwrap() {
            known.add_ledger(&process["ledger"]);
            known.add_windows(&process["windows"]);
            known.add_batches(process);
        }
        known
    }

    fn add(&mut self, key: &str, value: &Value) {
        match value {
            Value::Object(values) => values.iter().for_each(|(key, value)| self.add(key, value)),
            Value::Array(values) => {
                self.figures.insert(values.len().to_string());
                values.iter().for_each(|value| self.add(key, value));
            }
            Value::String(text) => {
                self.texts
                    .insert(text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            Value::Number(number) if key.ends_with("_ns") || key == "ns" => {
                self.figures
                    .extend(number.as_u64().map(|ns| Time(ns).to_string()));
            }
            Value::Number(number) => {
                let value = number.as_f64().unwrap();
                self.figures.insert(number.to_string());
                self.figures.insert(Rate(value).to_string());
                if key == "loss" || key.ends_with("share") {
                    self.figures.insert(Share(value).to_string());
                }
            }
            Value::Null | Value::Bool(_) => (),
        }
    }

    /// Adds the mean time per iteration of each row of a ledger. Adds also the number and the summed share of the rows
    /// that a brief report may leave out.
    fn add_ledger(&mut self, ledger: &Value) {
        for (rows, count) in [("host", "host_iterations"), ("gpu", "gpu_iterations")] {
            let rows = ledger[rows].as_array().unwrap();
            let count = ledger[count].as_u64().unwrap().max(1);
            for row in rows {
                let ns = row["ns"].as_u64().unwrap();
                self.figures.insert(Time(ns / count).to_string());
            }
            for shown in 1..ROWS.min(rows.len()) {
                let rest = &rows[shown..];
                let shares = rest.iter().map(|row| row["share"].as_f64().unwrap());
                self.figures.insert(Share(shares.sum()).to_string());
                self.figures.insert(rest.len().to_string());
            }
        }
    }

    /// Adds each phase's share of the time, the share of prompt tokens, and the mean numbers of requests and tokens of
    /// a batch.
    fn add_batches(&mut self, process: &Value) {
        let phases = process["phases"].as_array().unwrap();
        let inside = &process["inside"];
        let worked = inside["time"]["mean_ns"].as_f64().unwrap_or_default()
            * inside["iterations"].as_f64().unwrap_or_default();
        let number = |phase: &Value, key: &str| phase[key].as_f64().unwrap();
        for phase in phases {
            let share = number(phase, "total_ns") / worked;
            self.figures.insert(Share(share).to_string());
        }
        let sum = |key: &str| phases.iter().map(|phase| number(phase, key)).sum::<f64>();
        let [iterations, tokens] = ["iterations", "tokens"].map(sum);
        let prefill = sum("prefill_tokens") / tokens;
        self.figures.insert(Share(prefill).to_string());
        for mean in [sum("requests") / iterations, tokens / iterations] {
            self.figures.insert(Rate(mean).to_string());
        }
    }

    /// Adds all numbers of windows that a brief report may state as left out: from 1 up to the number of all windows.
    fn add_windows(&mut self, windows: &Value) {
        let windows = windows.as_array().unwrap().len();
        self.figures
            .extend((0..windows).map(|shown| (windows - shown).to_string()));
    }

    /// Returns the numbers in a text that do not come from the JSON, with their units.
    fn lacks(&self, text: &str) -> Vec<String> {
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut names: Vec<_> = self
            .texts
            .iter()
            .filter(|text| text.len() > 3 && text.contains(char::is_alphabetic))
            .collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        for name in names {
            text = text.replace(name.as_str(), "…");
        }
        let figures = numbers(&text);
        let unknown = figures
            .into_iter()
            .filter(|figure| !self.figures.contains(figure));
        unknown.collect()
    }
}

/// Returns the numbers in a text, with their units. A number within a word, such as `p50`, is part of a name and is
/// left out.
fn numbers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = text
        .split([' ', '-', ',', '(', ')', '…'])
        .filter(|word| !word.is_empty())
        .peekable();
    while let Some(word) = words.next() {
        let word = word.trim_matches([':', ';', '.']);
        if word.parse::<f64>().is_err() || !word.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let unit = words
            .peek()
            .map(|unit| unit.trim_end_matches([':', ';', '.']));
        match unit.filter(|unit| UNITS.contains(unit)) {
            Some(unit) => found.push(format!("{word} {unit}")),
            None => found.push(word.to_owned()),
        }
    }
    found
}

/// Returns reports on the stored records and on simulated jobs of several ranks, each with a name.
fn reports() -> Vec<(String, Report)> {
    let one = corpus().into_iter().map(|(name, bytes)| {
        let report = Report::new(vec![process(&name, &bytes)]);
        (name, report)
    });
    let jobs = [false, true].map(|groups| {
        let ranks = job(groups);
        let ranks = ranks.iter().map(|(name, bytes)| process(name, bytes));
        ("job".to_owned(), Report::new(ranks.collect()))
    });
    one.chain(jobs).collect()
}

#[test]
fn each_number_of_the_brief_is_one_of_the_json() {
    let mut briefs = Vec::new();
    for (name, report) in reports() {
        let text = brief(&report);
        let known = Known::new(&json(&report));
        let lacks = known.lacks(&text);
        assert!(lacks.is_empty(), "{name}: {lacks:?}\n{text}");
        assert!(text.chars().count() <= LONGEST, "{name}: {text}");
        briefs.push((text, known));
    }
    // Make sure that the test can find errors: if the numbers of this text are looked up in the JSON of another record,
    // some of them must be missing.
    for (place, (text, _)) in briefs.iter().enumerate() {
        let other = &briefs[(place + 3) % briefs.len()].1;
        if numbers(text).len() > 10 {
            assert!(!other.lacks(text).is_empty(), "{text}");
        }
    }
}

#[test]
fn each_finding_of_the_brief_has_an_identifier_and_a_command() {
    let mut count = 0;
    for (name, report) in reports() {
        let text = brief(&report);
        let lines = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = report.findings.iter();
        let found = found.filter(|one| one.verdict == tllmprof_report::Verdict::Yes);
        for finding in found.take(3) {
            count += 1;
            let sure = json(&report)["findings"]
                .as_array()
                .unwrap()
                .iter()
                .find(|one| one["id"] == finding.id)
                .unwrap()["confidence"]
                .as_str()
                .unwrap()
                .to_owned();
            let id = finding.id;
            let line = format!("id {id}, confidence {sure}; more: tllmprof report --finding {id} ");
            assert!(lines.contains(&line), "{name}: {line}\n{text}");
            let more = report.finding(id, Style::whole()).unwrap();
            assert!(
                more.starts_with(&format!("{id}: yes, confidence {sure}")),
                "{more}"
            );
            for row in &finding.claims {
                assert!(more.contains(&Time(row.ns).to_string()), "{more}");
            }
        }
        assert_eq!(report.finding("no-such-rule", Style::whole()), None);
    }
    assert!(count > 10, "{count}");
}

#[test]
fn the_brief_of_a_long_command_and_of_long_names_is_short() {
    let (_, bytes) = corpus().remove(0);
    let mut process = process("record", &bytes);
    process.facts.command = "word ".repeat(100_000);
    for row in &mut process.ledger.host {
        row.cause = "a_function::".repeat(1000);
    }
    let text = brief(&Report::new(vec![process]));
    assert!(text.chars().count() <= LONGEST, "{text}");
    assert!(text.contains("of time"), "{text}");
}
