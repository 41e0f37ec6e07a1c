//! Where time goes and what made iterations slow, in a few lines.

use super::difference::Difference;
use super::slow::Slow;
use super::{Ledger, LedgerRow, difference};
use crate::events::iteration::GpuFrom;
use crate::events::window::Window;
use crate::numbers::units::{Change, Share, Time, of_some};
use crate::print::lines::Lines;

/// How many lines the causes of a slow iteration may take.
const CAUSES: usize = 3;
/// The ledger of a window is shown from this part of the time on that goes elsewhere than in all of them.
const UNLIKE: f64 = 0.2;
const UNLIKE_LINES: usize = 2;
/// The heading of slow iterations.
pub const SLOWEST: &str = "slowest iterations, and what took longer in them than in the mean one";

/// What the host and the GPU spend the time on, the greatest first.
pub fn ledger(ledger: &Ledger, gpu_from: GpuFrom, most: usize, lines: &mut Lines) {
    let is_stretched = gpu_from != GpuFrom::Plain;
    for (side, of, rows, is_stretched) in [
        (
            "host",
            ledger.host_iterations,
            &ledger.host,
            ledger.stretched,
        ),
        ("GPU", ledger.gpu_iterations, &ledger.gpu, is_stretched),
    ] {
        if !rows.is_empty() {
            let stretched = if is_stretched { ", stretched" } else { "" };
            let of = of_some(of, ledger.iterations);
            let heading = format!("{side}{of}{stretched}: ");
            lines.wrapped(&heading, &said(rows, lines), most);
        }
    }
}

/// The ledgers of windows that differ much from that of all.
pub fn unlike<'a>(
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
    let unlike = sides.filter(|(_, rows, all)| difference(rows, all) > UNLIKE);
    for (heading, rows, _) in unlike.take(room.min(UNLIKE_LINES)) {
        lines.list(&heading, &said(rows, lines));
    }
}

fn said(rows: &[LedgerRow], lines: &Lines) -> Vec<String> {
    let rows = rows.iter();
    rows.map(|row| format!("{} {}", Share(row.share), lines.name(&row.cause, 52)))
        .collect()
}

/// The slowest iterations, and what made them slow. `rest` is how many lines come after them.
pub fn slow(all: &[Slow], room: usize, rest: usize, lines: &mut Lines) {
    if room == 0 {
        return;
    }
    // Of few iterations some of the slowest take less than the others.
    let longer_ones = all.iter().filter(|slow| slow.more >= 0);
    let slowest: Vec<_> = longer_ones.take(room).collect();
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
            most.clamp(1, CAUSES),
        );
    }
}

/// How much longer a slow iteration took.
pub fn longer(slow: &Slow) -> String {
    match slow.causes.len() {
        0 => String::new(),
        _ => format!("{}: ", Change(slow.more)),
    }
}

/// What made an iteration slow, in words.
pub fn causes(slow: &Slow, lines: &Lines) -> Vec<String> {
    differences(&slow.causes, lines)
}

/// Differences, in words.
pub fn differences(causes: &[Difference], lines: &Lines) -> Vec<String> {
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
