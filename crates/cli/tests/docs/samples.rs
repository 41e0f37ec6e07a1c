//! Tests the sample reports in README.md, SKILL.md and docs/: each heading and row name in a sample must exist in the
//! report of this version.

use std::fs;

use regex::Regex;

use super::words::{files, literals, root};

/// Returns the headings and row names in a sample report. A sample that shows only a part of a report ends with a line
/// `…`, which is neither.
fn names(sample: &str) -> Vec<String> {
    let in_columns = Regex::new(r" {2,}").unwrap();
    let count = Regex::new(r" \([0-9 ].*\)$").unwrap();
    let mut found = Vec::new();
    let mut is_times = false;
    for line in sample.lines() {
        let columns = in_columns.split(line.trim());
        let columns: Vec<_> = columns.map(|one| count.replace(one, "")).collect();
        if line.starts_with("window ") || line.contains(" p50 ") {
            let percentiles = line.split_whitespace().filter(|one| one.starts_with('p'));
            found.extend(percentiles.map(str::to_owned));
            is_times = true;
            continue;
        }
        is_times &= !line.trim().is_empty() && (line.starts_with(' ') || columns.len() > 1);
        if line.starts_with("what stands out") {
            found.push(line.to_owned());
        } else if line.starts_with(" of time") {
            found.extend(columns.iter().map(ToString::to_string));
        } else if is_times {
            found.push(columns[0].to_string());
        }
    }
    found
}

/// Returns the samples of reports in a page, and the names of report rows that the page's sentences mention, such as
/// `GPU span (18)`.
fn samples(page: &str) -> (Vec<&str>, Vec<&str>) {
    let blocks = page.split("```text\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("\n```").next());
    let row = Regex::new(r"`([A-Za-z ]+) \([0-9]+\)`").unwrap();
    let rows = row
        .captures_iter(page)
        .map(|one| one.get(1).unwrap().as_str());
    let is_report = |text: &&str| text.contains(" of the time") && text.contains("iteration");
    (blocks.filter(is_report).collect(), rows.collect())
}

/// Returns the string literals of the report's sources. Each is cut off before a placeholder in parentheses, because
/// a sample has a number there.
fn written() -> Vec<String> {
    let mut sources = Vec::new();
    files(&root().join("crates/report/src"), "rs", &mut sources);
    let texts = sources.iter().flat_map(|source| {
        let text = fs::read_to_string(source).unwrap();
        literals(&text).into_iter().map(|(_, text)| text)
    });
    texts
        .map(|text| text.split(" ({").next().unwrap().trim().to_owned())
        .collect()
}

#[test]
fn samples_of_the_report_have_its_headings() {
    let written = written();
    let mut pages = vec![root().join("README.md"), root().join("SKILL.md")];
    files(&root().join("docs"), "md", &mut pages);
    let mut wrong = Vec::new();
    let mut found = 0;
    for page in pages
        .iter()
        .filter(|page| !page.ends_with("measured-history.md"))
    {
        let text = fs::read_to_string(page).unwrap();
        let (blocks, rows) = samples(&text);
        found += blocks.len();
        let rows = rows.into_iter().map(str::to_owned);
        for name in blocks.into_iter().flat_map(names).chain(rows) {
            if !written.contains(&name) {
                wrong.push(format!("{}: {name:?}", page.display()));
            }
        }
    }
    assert!(found >= 3, "{found} samples");
    assert!(wrong.is_empty(), "the report has no\n{}", wrong.join("\n"));
}

#[test]
fn an_old_heading_is_found() {
    let golden = root().join("crates/report/tests/golden/one.txt");
    let names = names(&fs::read_to_string(golden).unwrap());
    let wanted = [
        "p90",
        "without kernels",
        "GPU span",
        "GPU busy",
        "outside",
        "of time",
        "host",
        "GPU",
    ];
    for wanted in wanted {
        assert!(
            names.iter().any(|name| name == wanted),
            "{wanted}: {names:?}"
        );
    }
    assert!(!written().contains(&"GPU time".to_owned()));
}
