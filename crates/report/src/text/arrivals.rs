//! Who waits for whom in collectives, in a few lines.

use super::lines::Lines;
use super::one::differences;
use crate::arrivals::{Arrivals, Bound};
use crate::units::{Share, Time};

/// How many ranks and notes have a line.
const RANKS: usize = 4;
const NOTES: usize = 3;
/// A rank that takes less of the others' time has none.
const NAMED: f64 = 0.005;

pub fn add(arrivals: &Arrivals, names: &[String], lines: &mut Lines) {
    let why = match arrivals.verdict {
        Bound::Inconclusive => format!(" ({})", arrivals.why),
        _ => String::new(),
    };
    lines.blank();
    lines.heading(format_args!(
        "collectives of {} iterations: {}{why}",
        arrivals.steps.len(),
        arrivals.verdict.name()
    ));
    if !arrivals.steps.is_empty() {
        lines.add(format_args!(
            "  ranks wait {} of the time for the last one, and transfer {}",
            Share(arrivals.part(arrivals.all.wait)),
            Share(arrivals.part(arrivals.all.transfer))
        ));
    }
    let slowest = arrivals.slowest();
    let named = slowest
        .iter()
        .filter(|place| arrivals.gain(**place) >= NAMED);
    for place in named.take(RANKS) {
        let (now, then) = arrivals.step_without(*place);
        let last = arrivals.ranks[*place].last;
        let start = format!(
            "  {} last in {last}; without it {} a step, not {}: ",
            names[*place],
            Time(then),
            Time(now)
        );
        lines.list(&start, &differences(&arrivals.causes(*place), lines));
    }
    for note in arrivals.notes.iter().take(NOTES) {
        lines.add(format_args!("  {note}"));
    }
    let more = arrivals.notes.len().saturating_sub(NOTES);
    if more > 0 {
        lines.add(format_args!("  and {more} more notes (--json has them)"));
    }
}
