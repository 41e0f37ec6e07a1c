//! The text output of a comparison.

use std::fmt;

use super::verdict::NOT_KNOWN;
use super::why::{CauseView, RankedCauses};
use super::{Comparison, MIN_DIFFERENCE, Outcome, Side, Unit};
use crate::numbers::bootstrap::Change;
use crate::numbers::parts::PartChange;
use crate::numbers::units::{Count, Rate, Time};
use crate::print::lines::{Colour, Lines, Style};

/// Maximum number of rows in a table of kernels, layers, functions or causes.
const MAX_PARTS: usize = 6;
/// Maximum number of rows in the table of ranks.
const MAX_RANKS: usize = 8;
/// Width of the column of names, in characters.
const NAME_WIDTH: usize = 34;
/// Width of the column of causes, in characters.
const CAUSE_WIDTH: usize = 46;

impl Comparison {
    /// Returns the comparison as plain text. The verdict comes after the tables and notes.
    #[must_use]
    pub fn text(&self) -> String {
        self.styled(Style::default())
    }

    /// Returns the comparison as text with the given width, colours and characters.
    #[must_use]
    pub fn styled(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        if self.is_of_trace {
            lines.show_trace();
        }
        side("base ", &self.base, self.runs[0], &mut lines);
        side("other", &self.other, self.runs[1], &mut lines);
        lines.blank();
        self.table(&mut lines);
        self.why(&mut lines);
        for (what, all, steps) in [
            ("kernel", &self.kernels, self.kernels_of),
            ("layer", &self.layers, self.kernels_of),
            ("host by samples", &self.functions, self.functions_of),
        ] {
            let of = match self.is_of_trace {
                true => String::new(),
                false => counts(steps),
            };
            let time = format!("time {}{of}", lines.a_step());
            parts(&format!("{what}, {time}"), all, &mut lines);
        }
        parts("host, time a step", &self.causes, &mut lines);
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
        if let Some(effort) = self.verdict.effort() {
            lines.add(format_args!("{effort}"));
        }
        let is_known = !matches!(
            self.verdict,
            Outcome::TooFew(..)
                | Outcome::NoInterval
                | Outcome::NoIterations
                | Outcome::NotComparable(..)
        );
        if is_known && self.runs == [1, 1] {
            lines.add(format_args!(
                "of one run a side: what differs from run to run is not in it"
            ));
        }
        if let Some(but) = &self.but {
            lines.add(format_args!("{but}"));
        }
        for checked in &self.conditions {
            lines.add(format_args!("{checked}"));
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
                Unit::Launches => Rate(value).to_string(),
            };
            // The lines about the two sides, above this table, show each side's number of iterations. A row shows its
            // own numbers of iterations only if they differ from these.
            let all = [&self.base, &self.other].map(|side| side.iterations);
            let measured = [measure.base_iterations, measure.other_iterations];
            let of = if measured == all {
                String::new()
            } else {
                counts(measured)
            };
            row(
                &format!("{}{of}", measure.name),
                &value(measure.base),
                &value(measure.other),
                Some(measure.change),
                measure.is_few,
                lines,
            );
        }
    }

    /// Adds the table of causes, but only if the verdict is that the other run is faster or slower, or if two whole
    /// traces are compared.
    fn why(&self, lines: &mut Lines) {
        let by = match self.why.view {
            Some(CauseView::Gpu) => "by the GPU's time",
            Some(CauseView::Host) => "by the host's time",
            None => return,
        };
        let is_changed = matches!(self.verdict, Outcome::Faster(..) | Outcome::Slower(..));
        if !is_changed && !self.is_of_trace {
            return;
        }
        lines.blank();
        lines.heading(format_args!(
            "{:>12}{:>10}{:>10}  why, {by} {}",
            "difference",
            "base",
            "other",
            lines.a_step()
        ));
        let time = |ns: f64| Time(ns as u64).to_string();
        let row = |more: f64, times: Option<[f64; 2]>, name: &str, lines: &mut Lines| {
            let sign = if more < 0.0 { '-' } else { '+' };
            let more = format!("{sign}{}", Time(more.abs() as u64));
            let [base, other] = times.map_or_else(Default::default, |times| times.map(time));
            let name = lines.name(name, CAUSE_WIDTH);
            lines.add(format_args!("{more:>12}{base:>10}{other:>10}  {name}"));
        };
        let causes = &self.why.causes;
        let (shown, small) = causes.split_at(causes.len().min(MAX_PARTS));
        for cause in shown {
            let times = Some([cause.base, cause.other]);
            row(cause.more, times, &cause.to_string(), lines);
        }
        if !small.is_empty() {
            let sum = small.iter().map(|cause| cause.more).sum();
            row(sum, None, &format!("{} more", small.len()), lines);
        }
        let RankedCauses {
            base, other, rest, ..
        } = self.why;
        row(rest, None, "in none of these", lines);
        row(other - base, Some([base, other]), "all", lines);
    }

    fn ranks(&self, lines: &mut Lines) {
        if self.ranks.is_empty() {
            return;
        }
        lines.blank();
        heading("rank, iterations a second", lines);
        for rank in self.ranks.iter().take(MAX_RANKS) {
            let rate = |value: f64| Rate(value).to_string();
            row(
                &format!("  {}", rank.rank),
                &rate(rank.base),
                &rate(rank.other),
                Some(rank.change),
                rank.is_few,
                lines,
            );
        }
        let more = self.ranks.len().saturating_sub(MAX_RANKS);
        if more > 0 {
            lines.add(format_args!("  and {}", Count(more as u64, "more rank")));
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

fn side(name: &str, side: &Side, runs: usize, lines: &mut Lines) {
    let rank = match (side.processes, side.rank) {
        // A rank of 0 may mean that the rank is unknown. So do not show rank 0 for a single process.
        (0 | 1, 0) => String::new(),
        (0 | 1, rank) => format!("rank {rank}: "),
        (ranks, rank) => format!("rank {rank}, the slowest of {ranks}: "),
    };
    let many = if side.iterations == 1 { "" } else { "s" };
    let what = match lines.is_of_trace() {
        true => "the whole trace".to_owned(),
        false => format!("{} iteration{many}", side.iterations),
    };
    lines.add(format_args!(
        "{name}  {}",
        if side.command.is_empty() {
            &side.file
        } else {
            &side.command
        }
    ));
    lines.add(format_args!(
        "       {}{rank}{what}",
        match runs {
            1 => String::new(),
            runs => format!("{runs} runs; of the middle one: "),
        }
    ));
}

/// Adds a table of the parts of an iteration, such as kernels: each part's mean time in both runs,
/// and the change.
fn parts(what: &str, parts: &[PartChange], lines: &mut Lines) {
    if parts.is_empty() {
        return;
    }
    lines.blank();
    heading(what, lines);
    for part in parts.iter().take(MAX_PARTS) {
        let time = |ns: f64| Time(ns as u64).to_string();
        let name = lines.name(&format!("  {}", part.label), NAME_WIDTH);
        row(
            &name,
            &time(part.base),
            &time(part.other),
            part.change,
            part.is_few,
            lines,
        );
        if let Some(often) = often(part, lines) {
            lines.add(format_args!("    {often}"));
        }
    }
    let more = parts.len().saturating_sub(MAX_PARTS);
    if more > 0 {
        lines.add(format_args!("  and {more} more that differ less"));
    }
}

/// Returns how often a part (such as a kernel) ran in an iteration and its mean time, in both runs. For a part that
/// only one run has, returns that run's figures. Returns `None` if the counts are nearly equal or unknown.
fn often(part: &PartChange, lines: &Lines) -> Option<String> {
    let [base, other] = part.counts?;
    let count = |count: f64| match lines.is_of_trace() {
        true => format!("{count:.0}"),
        false => Rate(count).to_string(),
    };
    let each = |ns: f64, count: f64| Time((ns / count) as u64);
    let often = |ns: f64, often: f64| {
        let (count, a_step) = (count(often), lines.a_step());
        format!("{count} {a_step}, {} each", each(ns, often))
    };
    if base == 0.0 {
        return Some(format!("new: {}", often(part.other, other)));
    }
    if other == 0.0 {
        return Some(format!("gone: {}", often(part.base, base)));
    }
    let is_other = (other / base - 1.0).abs() >= MIN_DIFFERENCE;
    is_other.then(|| {
        let (now, before) = (often(part.other, other), often(part.base, base));
        format!("{now}; it was {before}")
    })
}

/// Returns the counts of both runs in brackets, or a single count if the two are equal.
fn counts<T: PartialEq + fmt::Display>([base, other]: [T; 2]) -> String {
    match base == other {
        true => format!(" ({base})"),
        false => format!(" ({base}, {other})"),
    }
}

fn heading(what: &str, lines: &mut Lines) {
    lines.heading(format_args!(
        "{what:<NAME_WIDTH$}{:>10}{:>10}{:>10} {:>15}",
        "base", "other", "change", "95 % interval"
    ));
}

/// Adds a row with a change and its interval. `is_few` is true if there are too few values for an interval.
fn row(
    name: &str,
    base: &str,
    other: &str,
    change: Option<Change>,
    is_few: bool,
    lines: &mut Lines,
) {
    let shown = change.map_or_else(String::new, |change| Signed(change.relative).to_string());
    let interval = change.map_or_else(String::new, |change| interval(change, is_few));
    // Print a name that is too long for its column on a line of its own, so that the figures stay
    // in their columns.
    let name = match name.chars().count() > NAME_WIDTH {
        true => {
            lines.text(name, 6);
            ""
        }
        false => name,
    };
    lines.add(format_args!(
        "{name:<NAME_WIDTH$}{base:>10}{other:>10}{shown:>10} {interval:>15}"
    ));
}

/// Returns the interval of a change in percent, or the reason why there is none.
fn interval(change: Change, is_few: bool) -> String {
    match (change.interval, is_few) {
        (Some((low, high)), _) => format!("[{:+.1}, {:+.1}]", low * 100.0, high * 100.0),
        (None, true) => "too few to say".to_owned(),
        (None, false) => NOT_KNOWN.to_owned(),
    }
}

/// A relative change (0.02 is 2 %), shown in percent with its sign.
struct Signed(f64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        match percent.abs() {
            // If the base is 0, the relative change is infinite, so a dash is shown.
            size if !size.is_finite() => f.pad("–"),
            size if size >= 1000.0 => f.pad(&format!("{percent:+.0} %")),
            _ => f.pad(&format!("{percent:+.1} %")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interval_has_its_reason() {
        let change = |interval| Change {
            relative: 0.1,
            interval,
        };
        let known = change(Some((0.05, 0.15)));
        assert_eq!(interval(known, false), "[+5.0, +15.0]");
        assert_eq!(interval(change(None), true), "too few to say");
        assert_eq!(interval(change(None), false), "not known");
        assert!(Outcome::NoInterval.to_string().ends_with("not known"));
    }

    #[test]
    fn changes_fit_their_column() {
        for (change, shown) in [
            (-0.376, "-37.6 %"),
            (374.742, "+37474 %"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(Signed(change).to_string(), shown);
        }
    }
}
