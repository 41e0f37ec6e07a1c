//! Text on the collectives of several ranks: the verdict, and a few lines on groups and ranks.

use std::collections::BTreeMap;

use crate::ledger::text::differences;
use crate::numbers::units::{Count, Share, Time};
use crate::print::lines::Lines;
use crate::ranks::Rank;
use crate::ranks::arrivals::{Arrivals, Bound, Sum};
use crate::ranks::groups::GroupName;

/// Maximum numbers of lines for groups, ranks and notes.
const MAX_GROUPS: usize = 4;
const MAX_RANKS: usize = 4;
const MAX_NOTES: usize = 3;
/// Minimum share of the iterations' time that a rank costs the others, as a part of 1, for the rank to have a line.
const MIN_GAIN: f64 = 0.005;

pub(crate) fn add(
    arrivals: &Arrivals,
    processes: &[Rank<'_>],
    names: &[String],
    lines: &mut Lines,
) {
    let why = match arrivals.verdict {
        Bound::Inconclusive => format!(" ({})", arrivals.why),
        _ => String::new(),
    };
    let groups = groups(arrivals);
    let whose = match &groups[..] {
        [(_, Some(name), _)] => format!(" in {} of {}", name.name, name.size),
        _ => String::new(),
    };
    lines.blank();
    lines.heading(format_args!(
        "collectives of {}{whose}: {}{why}",
        Count(arrivals.steps.len() as u64, "iteration"),
        arrivals.verdict.name()
    ));
    if !arrivals.steps.is_empty() {
        lines.add(format_args!(
            "  ranks wait {} of the time for the last one, and transfer {}",
            Share(arrivals.part(arrivals.all.wait)),
            Share(arrivals.part(arrivals.all.transfer))
        ));
    }
    if groups.len() > 1 {
        for (places, name, sum) in groups.iter().take(MAX_GROUPS) {
            let name = name.map_or_else(String::new, |name| {
                format!("{} of {}, ", name.name, name.size)
            });
            lines.add(format_args!(
                "  {name}{}: {} of its collectives' time is waiting",
                ranks(processes, places),
                Share(sum.share())
            ));
        }
        let more = groups.len().saturating_sub(MAX_GROUPS);
        if more > 0 {
            lines.add(format_args!("  and {more} more groups (--json has them)"));
        }
    }
    let slowest = arrivals.slowest();
    let named = slowest
        .iter()
        .filter(|place| arrivals.gain(**place) >= MIN_GAIN);
    for place in named.take(MAX_RANKS) {
        let (now, then) = arrivals.step_without(*place);
        let last = arrivals.ranks[*place].last;
        let start = format!(
            "  {} last in {last}; without it {} a step, not {}: ",
            names[*place],
            Time(then),
            Time(now)
        );
        lines.list(&start, &differences(&arrivals.causes(*place), lines));
        let groups = processes[*place].facts.in_groups.as_str();
        if !groups.is_empty() {
            lines.add(format_args!("    it is {groups}"));
        }
    }
    for note in arrivals.notes.iter().take(MAX_NOTES) {
        lines.add(format_args!("  {note}"));
    }
    let more = arrivals.notes.len().saturating_sub(MAX_NOTES);
    if more > 0 {
        lines.add(format_args!("  and {more} more notes (--json has them)"));
    }
}

/// Returns the sets of ranks that have collectives in common, each with the name of its group and the sums of its
/// collectives.
fn groups(arrivals: &Arrivals) -> Vec<(&[usize], Option<&GroupName>, Sum)> {
    let mut found: BTreeMap<&[usize], (Option<&GroupName>, Sum)> = BTreeMap::new();
    for group in &arrivals.groups {
        let (name, sum) = found.entry(&group.processes).or_default();
        *name = name.or(group.group.as_ref());
        sum.and(&group.sum);
    }
    let all = found.into_iter();
    all.map(|(places, (name, sum))| (places, name, sum))
        .collect()
}

/// Returns the rank numbers of some processes as text.
fn ranks(processes: &[Rank<'_>], places: &[usize]) -> String {
    const MAX_LISTED: usize = 4;
    let mut ranks: Vec<_> = places
        .iter()
        .map(|place| processes[*place].facts.rank)
        .collect();
    ranks.sort_unstable();
    if ranks.len() > 2 && ranks.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
        return format!("ranks {} to {}", ranks[0], ranks[ranks.len() - 1]);
    }
    let shown: Vec<_> = ranks
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    let more = match ranks.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("ranks {}{more}", shown.join(", "))
}
