//! A comparison as text.

use std::fmt;

use super::{Comparison, Outcome, Side, Unit};
use crate::numbers::bootstrap::Change;
use crate::numbers::parts::PartChange;
use crate::numbers::units::{Rate, Time};
use crate::print::lines::{Colour, Lines, Style};

/// How many kernels, as many functions, and how many ranks have a line.
const PARTS: usize = 6;
const RANKS: usize = 8;
/// How wide names are.
const NAME: usize = 34;

impl Comparison {
    /// The comparison as text, the verdict last.
    #[must_use]
    pub fn text(&self) -> String {
        self.styled(Style::default())
    }

    /// The same for a terminal, a pipe or a file.
    #[must_use]
    pub fn styled(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        side("base ", &self.base, &mut lines);
        side("other", &self.other, &mut lines);
        lines.blank();
        self.table(&mut lines);
        for (what, all, steps) in [
            ("kernel", &self.kernels, self.kernels_of),
            ("layer", &self.layers, self.kernels_of),
            ("host by samples", &self.functions, self.functions_of),
        ] {
            parts(
                &format!("{what}, time a step{}", of(steps)),
                all,
                &mut lines,
            );
        }
        self.ranks(&mut lines);
        lines.blank();
        for note in &self.notes {
            lines.add(format_args!("{note}"));
        }
        let verdict = self.verdict.to_string();
        let colour = match self.verdict {
            Outcome::Faster(..) => Colour::Good,
            Outcome::Slower(..) => Colour::Bad,
            _ => Colour::Bold,
        };
        lines.coloured(&verdict, verdict.len(), colour);
        if let Some(but) = &self.but {
            lines.add(format_args!("{but}"));
        }
        if let Some(routing) = self.routing_text() {
            lines.add(format_args!("{routing}"));
        }
        lines.finish()
    }

    fn table(&self, lines: &mut Lines) {
        if self.measures.is_empty() {
            return;
        }
        heading("", lines);
        for measure in &self.measures {
            let value = |value: f64| match measure.unit {
                Unit::PerSecond => Rate(value).to_string(),
                Unit::Nanoseconds => Time(value as u64).to_string(),
            };
            // All are of the same iterations but these.
            let all = [&self.base, &self.other].map(|side| side.iterations);
            let measured = [measure.base_iterations, measure.other_iterations];
            let of = if measured == all {
                String::new()
            } else {
                of(measured)
            };
            row(
                &format!("{}{of}", measure.name),
                &value(measure.base),
                &value(measure.other),
                Some(measure.change),
                lines,
            );
        }
    }

    fn ranks(&self, lines: &mut Lines) {
        if self.ranks.is_empty() {
            return;
        }
        lines.blank();
        heading("rank, iterations a second", lines);
        for rank in self.ranks.iter().take(RANKS) {
            let rate = |value: f64| Rate(value).to_string();
            row(
                &format!("  {}", rank.rank),
                &rate(rank.base),
                &rate(rank.other),
                Some(rank.change),
                lines,
            );
        }
        let more = self.ranks.len().saturating_sub(RANKS);
        if more > 0 {
            lines.add(format_args!("  and {more} more ranks"));
        }
    }

    pub(super) fn routing_text(&self) -> Option<String> {
        let routing = self.routing.as_ref()?;
        let not = if routing.is_significant { "" } else { "not " };
        Some(format!(
            "routing imbalance is {not}significant: {} with balanced routing",
            Signed(routing.change.relative)
        ))
    }
}

fn side(name: &str, side: &Side, lines: &mut Lines) {
    let slowest = match side.processes {
        0 | 1 => String::new(),
        ranks => format!(", the slowest of {ranks}"),
    };
    let many = if side.iterations == 1 { "" } else { "s" };
    lines.add(format_args!(
        "{name}  {}",
        if side.command.is_empty() {
            &side.file
        } else {
            &side.command
        }
    ));
    lines.add(format_args!(
        "       rank {}{slowest}: {} iteration{many}",
        side.rank, side.iterations
    ));
}

/// Parts of an iteration: names, what they take in it in both runs, in nanoseconds, and how much that differs.
fn parts(what: &str, parts: &[PartChange], lines: &mut Lines) {
    if parts.is_empty() {
        return;
    }
    lines.blank();
    heading(what, lines);
    for part in parts.iter().take(PARTS) {
        let time = |ns: f64| Time(ns as u64).to_string();
        let name = lines.name(&format!("  {}", part.label), NAME);
        row(
            &name,
            &time(part.base),
            &time(part.other),
            part.change,
            lines,
        );
    }
    let more = parts.len().saturating_sub(PARTS);
    if more > 0 {
        lines.add(format_args!("  and {more} more that differ less"));
    }
}

/// Of how many iterations something is, of both runs.
fn of<T: PartialEq + fmt::Display>([base, other]: [T; 2]) -> String {
    match base == other {
        true => format!(" ({base})"),
        false => format!(" ({base}, {other})"),
    }
}

fn heading(what: &str, lines: &mut Lines) {
    lines.heading(format_args!(
        "{what:<NAME$}{:>10}{:>10}{:>10}{:>16}",
        "base", "other", "change", "95 % interval"
    ));
}

fn row(name: &str, base: &str, other: &str, change: Option<Change>, lines: &mut Lines) {
    let shown = change.map_or_else(String::new, |change| Signed(change.relative).to_string());
    let interval = change.map_or_else(String::new, |change| match change.interval {
        Some((low, high)) => format!("[{:+.1}, {:+.1}]", low * 100.0, high * 100.0),
        None => "too few to say".to_owned(),
    });
    lines.add(format_args!(
        "{name:<NAME$}{base:>10}{other:>10}{shown:>10}{interval:>16}"
    ));
}

/// A change in per cent, with its sign.
struct Signed(f64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:+.1} %", self.0 * 100.0))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, part, (low, high)) = match *self {
            Self::NotComparable(base, other) => {
                return write!(f, "not comparable: {base} and {other} ranks");
            }
            Self::Faster(part, interval) => ("faster by ", part, interval),
            Self::Slower(part, interval) => ("slower by ", part, interval),
            Self::NoDifference(part, interval) => ("no difference seen: ", part, interval),
            Self::TooFew(base, other) => {
                let least = super::Statistic::Mean.least();
                return write!(
                    f,
                    "too few iterations to say: {base} and {other} (wanted: {least} or more)"
                );
            }
        };
        write!(
            f,
            "{what}{:.1} % [{:.1}, {:.1}]",
            part * 100.0,
            low * 100.0,
            high * 100.0
        )
    }
}
