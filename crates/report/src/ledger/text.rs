//! The report's lines for the ledger (time by cause) and for slow iterations.

use std::cmp::Reverse;

use super::difference::Difference;
use super::slow::Slow;
use super::{Basis, Ledger, LedgerRow, difference};
use crate::events::iteration::GpuFrom;
use crate::events::window::Window;
use crate::numbers::units::{Change, Share, Time, of_some};
use crate::print::lines::Lines;

/// Maximum number of lines for the causes of one slow iteration.
const MAX_CAUSE_LINES: usize = 3;
/// Minimum difference between a window's ledger and the ledger of all windows, as a fraction, for
/// the window's ledger to be shown.
const MIN_UNLIKE: f64 = 0.2;
/// Maximum number of lines for windows whose ledgers differ from the ledger of all windows.
const MAX_UNLIKE_LINES: usize = 2;
/// The heading above the slow iterations.
pub(crate) const SLOWEST: &str =
    "slowest iterations, and what took longer in them than in the mean one";

/// Returns the number of rows to show if at most `most` should be shown, and the number of rows left out. A single
/// row is never left out, because the line that says so would take as much room as the row.
fn shown(rows: &[LedgerRow], most: usize) -> (usize, usize) {
    match rows.len().saturating_sub(most) {
        0 | 1 => (rows.len(), 0),
        more => (most, more),
    }
}

/// Returns the number of lines that [`ledger`] adds to the text.
pub(crate) fn lines(ledger: &Ledger, most: usize) -> usize {
    let sides = [&ledger.host, &ledger.gpu].into_iter();
    let sides = sides.filter(|rows| !rows.is_empty()).map(|rows| {
        let (shown, more) = shown(rows, most);
        1 + shown + usize::from(more > 0)
    });
    sides.sum()
}

/// Adds the time of the host and of the GPU by cause to the text, the longest first. Each of the two has at most `most`
/// rows, and a line for the remaining rows (see [`shown`]). `label` names the GPU.
pub(crate) fn ledger(
    ledger: &Ledger,
    (label, gpu_from): (&str, GpuFrom),
    most: usize,
    lines: &mut Lines,
) {
    let is_exact = ledger.details.is_exact;
    let stretched = |is_so| {
        if is_so && !is_exact {
            ", stretched"
        } else {
            ""
        }
    };
    let gpu = match ledger.gpu_from {
        Basis::Span => stretched(gpu_from != GpuFrom::Plain),
        Basis::Kernels => stretched(true),
        Basis::Projected => ", by kernels of the others",
        Basis::Waits => ", idle for at least this time",
    };
    for (side, of, rows, how) in [
        (
            "host",
            ledger.host_iterations,
            &ledger.host,
            stretched(ledger.stretched),
        ),
        (label, ledger.gpu_iterations, &ledger.gpu, gpu),
    ] {
        if rows.is_empty() {
            continue;
        }
        let which = match of == ledger.iterations && how.is_empty() {
            true => String::new(),
            false => format!(" ({of} of {} iterations{how})", ledger.iterations),
        };
        let (most, more) = shown(rows, most);
        let rest: f64 = rows.iter().skip(most).map(|row| row.share).sum();
        lines.heading(format_args!(
            "{:>8}{:>11}  {side}{which}",
            "of time",
            lines.a_step()
        ));
        for row in rows.iter().take(most) {
            let room = lines.width().saturating_sub(21);
            lines.add(format_args!(
                "{:>8}{:>11}  {}",
                Share(row.share),
                Time(row.ns / of.max(1)),
                lines.name(&row.cause, room)
            ));
        }
        if more > 0 {
            lines.add(format_args!("{:>8}{:>11}  {more} more", Share(rest), ""));
        }
    }
}

/// Adds the ledgers of single windows to the text, but only those that differ from the ledger of all windows (`whole`)
/// by more than [`MIN_UNLIKE`]. At most `room` lines are added, and at most [`MAX_UNLIKE_LINES`].
pub(crate) fn unlike<'a>(
    whole: &'a Ledger,
    windows: impl Iterator<Item = (&'a Window, &'a Ledger)>,
    room: usize,
    lines: &mut Lines,
) {
    let sides = windows.flat_map(|(window, of)| {
        let sides = [
            ("host", of.host_iterations, &of.host, &whole.host),
            ("GPU", of.gpu_iterations, &of.gpu, &whole.gpu),
        ];
        sides.map(|(side, some, rows, all)| {
            let heading = format!(
                "{side} in window {}{}: ",
                window.name(),
                of_some(some, of.iterations)
            );
            (heading, rows, all)
        })
    });
    let unlike = sides.filter(|(_, rows, all)| difference(rows, all) > MIN_UNLIKE);
    for (heading, rows, _) in unlike.take(room.min(MAX_UNLIKE_LINES)) {
        lines.list(&heading, &said(rows, lines));
    }
}

fn said(rows: &[LedgerRow], lines: &Lines) -> Vec<String> {
    let rows = rows.iter();
    rows.map(|row| format!("{} {}", Share(row.share), lines.name(&row.cause, 52)))
        .collect()
}

/// Adds the slowest iterations with their causes to the text. `room` is the maximum number of iterations, and `rest`
/// the number of lines of the screen to keep free for the text that follows.
pub(crate) fn slow(all: &[Slow], room: usize, rest: usize, lines: &mut Lines) {
    if room == 0 {
        return;
    }
    // If a record has few iterations, some of its slowest iterations take less time than comparable iterations. Leave
    // out such iterations.
    let longer_ones = all.iter().filter(|slow| slow.more >= 0);
    let slowest = most_beyond(longer_ones.collect(), room, |slow| slow);
    if slowest.is_empty() {
        return;
    }
    lines.heading(format_args!("{SLOWEST}"));
    for (place, slow) in slowest.iter().enumerate() {
        let start = format!("  {:<8}{:>9}  ", slow.n, Time(slow.busy()).to_string());
        if slow.causes.is_empty() {
            lines.add(format_args!("{start}{}", longer(slow)));
        }
        let later = slowest.len() - place - 1;
        let most = lines.left().saturating_sub(rest + later);
        lines.wrapped(
            &(start + &longer(slow)),
            &causes(slow, lines),
            most.clamp(1, MAX_CAUSE_LINES),
        );
    }
}

/// Returns the slow iterations to show, at most `room`. Those that exceed comparable iterations the most are chosen. In
/// the result, the longest comes first.
pub(crate) fn most_beyond<T>(mut all: Vec<T>, room: usize, slow: impl Fn(&T) -> &Slow) -> Vec<T> {
    all.sort_by_key(|one| Reverse(slow(one).more));
    all.truncate(room);
    all.sort_by_key(|one| Reverse(slow(one).busy()));
    all
}

/// Returns words for the extra time of a slow iteration; empty if it has no causes.
pub(crate) fn longer(slow: &Slow) -> String {
    match slow.causes.len() {
        0 => String::new(),
        _ => format!("{}: ", Change(slow.more)),
    }
}

/// Returns words for each cause of a slow iteration's extra time.
pub(crate) fn causes(slow: &Slow, lines: &Lines) -> Vec<String> {
    differences(&slow.causes, lines)
}

/// Returns words for each difference between a slow iteration and the other iterations, or between a late rank and the
/// median rank.
pub(crate) fn differences(causes: &[Difference], lines: &Lines) -> Vec<String> {
    let said = causes.iter().map(|cause| {
        let name = lines.name(&cause.cause, 52);
        let holder = cause.held_by.as_ref();
        let holder = holder.map_or_else(String::new, |holder| {
            format!(" (held by {})", lines.name(holder, 20))
        });
        let detail = cause.detail.as_ref();
        let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
        match cause.is_rest() {
            true => format!("{name} {}", Change(cause.more)),
            false => format!("{} {name}{holder}{detail}", Change(cause.more)),
        }
    });
    said.collect()
}
