//! Tables of the host's activities by name: CUDA calls, marked functions and NVTX ranges.

use crate::events::named::Named;
use crate::numbers::units::{Rate, Time};
use crate::print::lines::Lines;

/// Adds a table of CUDA calls, the call with the longest total time first. `launches` is the mean number of launches
/// in an iteration. At most `rows` calls are shown.
pub(crate) fn calls(
    calls: &[Named],
    launches: f64,
    iterations: u64,
    rows: usize,
    lines: &mut Lines,
) {
    if rows == 0 {
        return;
    }
    lines.heading(format_args!(
        "{:<32}{:>10}{:>10}{:>10}{:>14}",
        match lines.is_of_trace() {
            true => format!("{launches:.0} launches in all; calls"),
            false => format!("{} launches a step; calls", Rate(launches)),
        },
        lines.a_step(),
        "mean",
        "longest",
        "total"
    ));
    for call in calls.iter().take(rows) {
        let name = lines.name(&call.name, 30);
        lines.add(format_args!(
            "  {name:<30}{:>10}{:>10}{:>10}{:>14}",
            match lines.is_of_trace() {
                true => call.count.to_string(),
                false => a_step(call.count, iterations),
            },
            Time(call.mean()),
            Time(call.longest),
            Time(call.total)
        ));
    }
}

/// Returns the mean number of calls in an iteration as text. If the mean would be rounded to 0, returns the total
/// number instead.
fn a_step(count: u64, iterations: u64) -> String {
    match count as f64 / iterations.max(1) as f64 {
        ..0.005 => format!("{count} in all"),
        each => Rate(each).to_string(),
    }
}

/// Adds a table of activities by name, the activity with the longest total time first. At most `rows` activities are
/// shown.
pub(crate) fn named(what: &str, count: &str, all: &[Named], rows: usize, lines: &mut Lines) {
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
        "{count:>8}{:>10}{:>10}{:>10}  {heading}",
        "mean", "longest", "total"
    ));
    for named in all.iter().take(rows) {
        let name = lines.name(&named.name, lines.width().saturating_sub(40));
        lines.add(format_args!(
            "{:>8}{:>10}{:>10}{:>10}  {name}",
            named.count,
            Time(named.mean()),
            Time(named.longest),
            Time(named.total)
        ));
    }
}
