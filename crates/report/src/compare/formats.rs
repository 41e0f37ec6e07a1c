//! Output formats of a comparison for other programs: Markdown, JUnit XML and CSV. The figures are
//! the same as in the JSON output.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use quick_xml::Writer;
use quick_xml::events::BytesText;
use serde::Serialize;

use super::why::RankedCause;
use super::{Comparison, Measure, Met};
use crate::numbers::bootstrap::Change;
use crate::numbers::parts::PartChange;

/// Maximum number of causes listed in Markdown. One more row has the sum of the remaining causes and of the unexplained
/// rest.
const MAX_CAUSES: usize = 10;

/// A row of the CSV. Times are in nanoseconds. Changes are fractions: 0.02 is 2 %.
#[derive(Serialize)]
struct CsvRow<'a> {
    table: &'static str,
    name: Cow<'a, str>,
    unit: &'static str,
    base: f64,
    other: f64,
    change: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
}

impl<'a> CsvRow<'a> {
    fn of_measure(measure: &'a Measure) -> Self {
        let (base, other) = (measure.base, measure.other);
        let unit = measure.unit.name();
        Self::new(
            "measures",
            measure.name,
            unit,
            [base, other],
            Some(measure.change),
        )
    }

    fn of_part(table: &'static str, part: &'a PartChange) -> Self {
        Self::new(
            table,
            &part.name,
            "ns",
            [part.base, part.other],
            part.change,
        )
    }

    fn of_cause(cause: &'a RankedCause) -> Self {
        let relative = (cause.base > 0.0 && cause.other > 0.0).then(|| Change {
            relative: cause.other / cause.base - 1.0,
            interval: None,
        });
        Self {
            name: cause.to_string().into(),
            ..Self::new("why", "", "ns", [cause.base, cause.other], relative)
        }
    }

    fn new(
        table: &'static str,
        name: &'a str,
        unit: &'static str,
        [base, other]: [f64; 2],
        change: Option<Change>,
    ) -> Self {
        let interval = change.and_then(|change| change.interval);
        Self {
            table,
            name: name.into(),
            unit,
            base,
            other,
            change: change.map(|change| change.relative),
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
        }
    }
}

impl Comparison {
    /// Returns the rows of all tables of the comparison, in the order of the CSV output.
    fn rows(&self) -> impl Iterator<Item = CsvRow<'_>> {
        let why = self.why.causes.iter().map(CsvRow::of_cause);
        let rest = [0.0, self.why.rest];
        let rest = self
            .why
            .view
            .map(|_| CsvRow::new("why", "rest", "ns", rest, None));
        let parts = [
            ("kernels", &self.kernels),
            ("layers", &self.layers),
            ("functions", &self.functions),
            ("causes", &self.causes),
        ];
        let parts = parts.into_iter();
        let parts =
            parts.flat_map(|(table, all)| all.iter().map(move |part| CsvRow::of_part(table, part)));
        let measures = self.measures.iter().map(CsvRow::of_measure);
        measures.chain(why).chain(rest).chain(parts)
    }

    /// Writes all tables of the comparison as CSV, with a header line.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn csv(&self, to: &mut impl Write) -> io::Result<()> {
        let mut to = csv::Writer::from_writer(to);
        self.rows().try_for_each(|row| to.serialize(row))?;
        to.flush()
    }

    /// Returns the verdict, the checked conditions, the measured quantities, the kernels and the causes of the change
    /// as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("**{}**\n", self.verdict);
        for checked in &self.conditions {
            let mark = match checked.result {
                Met::Kept => "✅",
                Met::CannotTell => "❔",
                Met::Exceeded => "❌",
            };
            let _ = write!(text, "\n- {mark} {}", escaped(&checked.to_string()));
        }
        text += "\n\n| | base | other | change | 95 % interval |\n|---|--:|--:|--:|--:|\n";
        let is_shown = |row: &CsvRow<'_>| row.table == "measures" || row.table == "kernels";
        for row in self.rows().filter(is_shown) {
            let name = escaped(&row.name);
            let percent = |part: Option<f64>| {
                part.map_or_else(String::new, |part| format!("{:+.1} %", part * 100.0))
            };
            let interval = match (row.low, row.high) {
                (Some(low), Some(high)) => {
                    format!("{} to {}", percent(Some(low)), percent(Some(high)))
                }
                _ => String::new(),
            };
            let value = |value: f64| match row.unit {
                "ns" => format!("{:.1} µs", value / 1e3),
                _ => format!("{value:.2}"),
            };
            let (base, other, change) = (value(row.base), value(row.other), percent(row.change));
            let _ = writeln!(
                text,
                "| {name} | {base} | {other} | {change} | {interval} |"
            );
        }
        text + &self.why_markdown()
    }

    /// Returns the causes of the change as a Markdown table.
    fn why_markdown(&self) -> String {
        if self.why.view.is_none() {
            return String::new();
        }
        let mut text = "\n| why | base | other | difference |\n|---|--:|--:|--:|\n".to_owned();
        let time = |ns: f64| format!("{:.1} µs", ns / 1e3);
        for cause in self.why.causes.iter().take(MAX_CAUSES) {
            let (name, more) = (escaped(&cause.to_string()), cause.more / 1e3);
            let (base, other) = (time(cause.base), time(cause.other));
            let _ = writeln!(text, "| {name} | {base} | {other} | {more:+.1} µs |");
        }
        let small: f64 = self
            .why
            .causes
            .iter()
            .skip(MAX_CAUSES)
            .map(|cause| cause.more)
            .sum();
        let rest = (self.why.rest + small) / 1e3;
        let _ = writeln!(text, "| in none of these | | | {rest:+.1} µs |");
        text
    }

    /// Writes a test suite in JUnit's XML format. It has one test for each condition; without
    /// conditions, its only test is the verdict.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn junit(&self, to: &mut impl Write) -> io::Result<()> {
        let count = |met: Met| {
            let all = self.conditions.iter().filter(|one| one.result == met);
            all.count().to_string()
        };
        let tests = self.conditions.len().max(1).to_string();
        let (failures, skipped) = (count(Met::Exceeded), count(Met::CannotTell));
        let mut writer = Writer::new_with_indent(&mut *to, b' ', 2);
        let suite = writer.create_element("testsuite").with_attributes([
            ("name", "tllmprof compare"),
            ("tests", &*tests),
            ("failures", &*failures),
            ("skipped", &*skipped),
            ("errors", "0"),
        ]);
        suite.write_inner_content(|writer| self.cases(writer))?;
        to.write_all(b"\n")
    }

    fn cases<W: Write>(&self, writer: &mut Writer<W>) -> io::Result<()> {
        let verdict = self.verdict.to_string();
        if self.conditions.is_empty() {
            let case = writer.create_element("testcase");
            let case = case.with_attributes([("classname", "compare"), ("name", "verdict")]);
            case.write_inner_content(|writer| {
                let out = writer.create_element("system-out");
                out.write_text_content(BytesText::new(&verdict)).map(|_| ())
            })?;
        }
        for checked in &self.conditions {
            let said = checked.to_string();
            let case = writer
                .create_element("testcase")
                .with_attributes([("classname", "compare"), ("name", &*checked.condition)]);
            let tag = match checked.result {
                Met::Kept => {
                    case.write_empty()?;
                    continue;
                }
                Met::CannotTell => "skipped",
                Met::Exceeded => "failure",
            };
            case.write_inner_content(|writer| {
                let result = writer
                    .create_element(tag)
                    .with_attribute(("message", &*said));
                result
                    .write_text_content(BytesText::new(&verdict))
                    .map(|_| ())
            })?;
        }
        Ok(())
    }
}

/// Escapes all characters that Markdown could interpret as tables, links or other markup. Replaces control characters
/// with spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for it in text.chars() {
        if it.is_ascii_punctuation() && !"%+-.,:/".contains(it) {
            escaped.push('\\');
        }
        escaped.push(if it.is_control() { ' ' } else { it });
    }
    escaped
}
