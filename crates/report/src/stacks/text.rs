//! The report's lines on sampled stacks: the number of samples, and the functions with the most
//! samples.

use super::Stacks;
use crate::events::samples::ENOUGH;
use crate::numbers::units::Share;
use crate::print::lines::Lines;

/// Maximum number of lines about sampled stacks in a report on one process.
pub(crate) const LINES: usize = 2;
/// Maximum number of lines about sampled stacks in a report on several processes.
const MAX_LINES_OF_RANKS: usize = 3;
/// Maximum number of functions that a line about sampled stacks names.
const MAX_FUNCTIONS: usize = 3;

/// Adds lines with the number of samples, and the functions that were most often the innermost of a
/// stack.
pub(crate) fn one(stacks: &Stacks, lines: &mut Lines) {
    let counts = stacks.counts;
    if !stacks.is_there() {
        return;
    }
    let mut taken = taken(stacks, " samples");
    if let Some(rate) = stacks.rate {
        taken += &format!(" ({rate} Hz asked for)");
    }
    let mut said = vec![taken];
    if counts.rejected > 0 {
        said.push(format!("{} rejected", Share(counts.rejected_share())));
    }
    if counts.enough() {
        let functions = stacks.functions.iter().take(MAX_FUNCTIONS);
        said.extend(functions.map(|one| {
            let name = lines.name(&one.label, 52);
            format!("{} in {name}", Share(one.share))
        }));
    } else {
        said.push(too_few());
    }
    lines.wrapped("stacks: ", &said, LINES);
}

/// Adds lines with each process's number of samples, and the share of samples that were rejected.
pub(crate) fn several<'a>(
    named: impl Iterator<Item = (&'a Stacks, &'a String)> + Clone,
    lines: &mut Lines,
) {
    let sampled = || {
        let all = named.clone();
        all.filter(|(stacks, _)| stacks.is_there())
    };
    let Some((first, _)) = sampled().next() else {
        return;
    };
    let rate = first
        .rate
        .filter(|rate| sampled().all(|(stacks, _)| stacks.rate == Some(*rate)));
    let heading = match rate {
        Some(rate) => format!("stacks ({rate} Hz asked for): "),
        None => "stacks: ".to_owned(),
    };
    let said = sampled().enumerate().map(|(place, (stacks, who))| {
        let counts = stacks.counts;
        // To save room, only the first process's numbers have labels.
        let [samples, of] = match place {
            0 => [" samples", " rejected"],
            _ => [""; 2],
        };
        let rejected = Share(counts.rejected_share());
        let taken = taken(stacks, samples);
        format!("{who} {taken} ({rejected}{of})")
    });
    lines.blank();
    lines.wrapped(&heading, &said.collect::<Vec<_>>(), MAX_LINES_OF_RANKS);
    if !sampled().all(|(stacks, _)| stacks.counts.enough()) {
        lines.add(format_args!("{}", too_few()));
    }
}

/// Returns the reason why no functions are named.
fn too_few() -> String {
    format!("too few samples to name functions ({ENOUGH} are needed)")
}

/// Returns words for the number of samples and the rates at which they were taken. Samples of
/// native stacks are listed separately.
fn taken(stacks: &Stacks, samples: &str) -> String {
    let at =
        |achieved: Option<u64>| achieved.map_or(String::new(), |rate| format!(" at {rate} Hz"));
    let counts = stacks.counts;
    let mut taken = format!("{}{samples}{}", counts.samples, at(stacks.achieved));
    if counts.native > 0 {
        let achieved = at(stacks.achieved_native);
        taken += &format!(" and {} native{achieved}", counts.native);
    }
    taken
}
