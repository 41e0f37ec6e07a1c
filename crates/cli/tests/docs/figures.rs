//! Tests of measured figures: README.md, the pages in docs/ and `--help` state the same values as `docs/figures.csv`.

use std::fs;
use std::process::Command;

use regex::Regex;

use super::links::anchors;
use super::words::root;

const HISTORY: &str = "docs/history/measured-history.md";
/// The page with a table of measured figures, each with its date and a link to its measurement.
const TABLE: &str = "docs/measured.md";
/// Pages that may contain different figures, because their figures are from another day or about a single program.
const LEFT_OUT: [&str; 2] = ["harmless.md", "messages.md"];

/// A measured figure, and the pages that contain it.
#[derive(Clone)]
struct Figure {
    name: String,
    value: String,
    unit: String,
    /// A pattern that matches each sentence or table row about this figure.
    phrase: Regex,
    pages: Vec<String>,
    date: String,
    /// The heading of the section, in the history of measurements, that describes how this figure was measured. If it
    /// is empty, [`TABLE`] has no row for the figure.
    source: String,
}

impl Figure {
    fn text(&self) -> String {
        format!("{} {}", self.value, self.unit)
    }

    /// Returns those statements of a text that are about this figure and contain a number with the figure's unit.
    fn said<'a>(&self, statements: &'a [String]) -> Vec<&'a String> {
        let number = Regex::new(&format!("[0-9] {}([^A-Za-z]|$)", self.unit)).unwrap();
        let about = |text: &&String| self.phrase.is_match(text) && number.is_match(text);
        statements.iter().filter(about).collect()
    }

    /// Returns the statements of a text that give another value for this figure.
    fn contradicted<'a>(&self, statements: &'a [String]) -> Vec<&'a String> {
        // The value must not be a part of another number: `1.2 ns` does not count as found in `31.2 ns`.
        let own = format!(r"(^|[^0-9.]){}", regex::escape(&self.text()));
        let own = Regex::new(&own).unwrap();
        let said = self.said(statements).into_iter();
        said.filter(|text| !own.is_match(text)).collect()
    }
}

fn figures() -> Vec<Figure> {
    let mut file = csv::Reader::from_path(root().join("docs/figures.csv")).unwrap();
    let rows = file.records().map(|row| {
        let row = row.unwrap();
        assert!(!row[6].is_empty(), "{}: the machine is not given", &row[0]);
        Figure {
            name: row[0].to_owned(),
            value: row[1].to_owned(),
            unit: row[2].to_owned(),
            phrase: Regex::new(&row[3]).unwrap(),
            pages: row[4].split(' ').map(str::to_owned).collect(),
            date: row[5].to_owned(),
            source: row[7].to_owned(),
        }
    });
    rows.collect()
}

/// Returns the sentences and the table rows of a page.
fn statements(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let is_row = line.starts_with('|');
        if is_row || line.trim().is_empty() {
            let sentences = paragraph.split(". ").filter(|one| !one.trim().is_empty());
            found.extend(sentences.map(str::to_owned));
            paragraph.clear();
        }
        if is_row {
            found.push(line.to_owned());
        } else {
            paragraph.push(' ');
            paragraph.push_str(line.trim());
        }
    }
    let micro = Regex::new("([0-9]) us(?-u:\\b)").unwrap();
    let same = found.iter();
    same.map(|text| micro.replace_all(text, "$1 µs").into_owned())
        .collect()
}

/// Returns all texts that contain figures: README.md, the pages and the help. Each is given by its name and its
/// statements.
fn texts() -> Vec<(String, Vec<String>)> {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let mut found = vec![("README.md".to_owned(), statements(&read("README.md")))];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && !LEFT_OUT.contains(&&*name) {
            let name = format!("docs/{name}");
            found.push((name.clone(), statements(&read(&name))));
        }
    }
    let help = Command::new(env!("CARGO_BIN_EXE_tllmprof"))
        .args(["run", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    found.push(("--help".to_owned(), statements(&help)));
    found
}

#[test]
fn every_page_says_the_same_figures() {
    let texts = texts();
    let mut wrong = Vec::new();
    for figure in figures() {
        let text = figure.text();
        for (page, statements) in &texts {
            for statement in figure.contradicted(statements) {
                wrong.push(format!("{page}: {} is {text}: {statement}", figure.name));
            }
            if figure.pages.contains(page) && figure.said(statements).is_empty() {
                wrong.push(format!("{page} does not say {text}: {}", figure.name));
            }
        }
        for page in &figure.pages {
            assert!(
                texts.iter().any(|(name, _)| name == page),
                "{page} is not a page"
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each figure with a source must have a row in [`TABLE`], with its date and a link to the section of the history that
/// describes the measurement.
#[test]
fn every_figure_has_its_measurement() {
    let history = anchors(&fs::read_to_string(root().join(HISTORY)).unwrap());
    let table = statements(&fs::read_to_string(root().join(TABLE)).unwrap());
    for figure in figures().iter().filter(|one| !one.source.is_empty()) {
        assert!(
            history.contains(&figure.source),
            "{}: {}",
            figure.name,
            figure.source
        );
        let rows = figure.said(&table);
        let link = format!("#{})", figure.source);
        let is_there = rows
            .iter()
            .any(|row| row.contains(&link) && row.contains(&figure.date));
        assert!(is_there, "{TABLE}: {}: {rows:?}", figure.name);
    }
}

#[test]
fn a_contradiction_is_found() {
    let figure = Figure {
        value: "1.2".to_owned(),
        unit: "ns".to_owned(),
        phrase: Regex::new("counted call").unwrap(),
        ..figures()[0].clone()
    };
    let text = "A counted call costs 1.2 ns. A counted\ncall costs 31.2 ns. A call costs 3 ns.\n| counted call | 2 ns |\n| counted call | 3 ms |";
    let found = statements(text);
    let wanted = ["call costs 31.2 ns", "| counted call | 2 ns |"];
    let contradicted = figure.contradicted(&found);
    assert_eq!(contradicted.len(), wanted.len(), "{contradicted:?}");
    for (text, wanted) in contradicted.iter().zip(wanted) {
        assert!(text.ends_with(wanted), "{text}");
    }
}
