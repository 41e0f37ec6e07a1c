//! What the host ran, in a few lines.

use crate::events::named::Named;
use crate::numbers::units::{Rate, Time};
use crate::print::lines::Lines;

/// CUDA calls, the longest in all first. `launches` is how many there are in each of `iterations`.
pub fn calls(calls: &[Named], launches: f64, iterations: u64, rows: usize, lines: &mut Lines) {
    if rows == 0 {
        return;
    }
    lines.heading(format_args!(
        "{:<32}{:>10}{:>10}{:>10}{:>14}",
        format!("{} launches a step; calls", Rate(launches)),
        "a step",
        "mean",
        "longest",
        "total"
    ));
    for call in calls.iter().take(rows) {
        let name = lines.name(&call.name, 30);
        lines.add(format_args!(
            "  {name:<30}{:>10}{:>10}{:>10}{:>14}",
            a_step(call.count, iterations),
            Time(call.mean()),
            Time(call.longest),
            Time(call.total)
        ));
    }
}

/// How many of something there are in a step: in all, where that is too few for a figure.
fn a_step(count: u64, iterations: u64) -> String {
    match count as f64 / iterations.max(1) as f64 {
        ..0.005 => format!("{count} in all"),
        each => Rate(each).to_string(),
    }
}

/// Things of one name, the longest in all first.
pub fn named(what: &str, count: &str, all: &[Named], rows: usize, lines: &mut Lines) {
    if rows == 0 {
        return;
    }
    let more = all.len().saturating_sub(rows);
    let heading = if more > 0 {
        format!("{what} ({more} more)")
    } else {
        what.to_owned()
    };
    lines.heading(format_args!(
        "{heading:<42}{count:>8}{:>10}{:>10}{:>10}",
        "mean", "longest", "total"
    ));
    for named in all.iter().take(rows) {
        let name = lines.name(&named.name, 40);
        lines.add(format_args!(
            "  {name:<40}{:>8}{:>10}{:>10}{:>10}",
            named.count,
            Time(named.mean()),
            Time(named.longest),
            Time(named.total)
        ));
    }
}
