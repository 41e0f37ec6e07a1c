//! The text output of windows and of iteration times.

use super::outside::{Outside, OutsideSum};
use super::sum::Sum;
use crate::events::iteration::GpuFrom;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share, Time, of_some};
use crate::print::lines::{Lines, UNKNOWN, short};

/// Maximum number of windows that the text lists.
const MAX_WINDOWS: usize = 3;
/// Minimum number of iterations after a window for a remark that compares the median iteration time
/// after the window with that in the window.
const MIN_ITERATIONS_AFTER: u64 = 20;
/// Minimum ratio between the median iteration times in a window and after it, for a remark that
/// compares them.
const MIN_CHANGE_RATIO: f64 = 1.5;
/// Maximum ratio of waits for requests to the time of the window's iterations, for a remark that compares the median
/// iteration times in a window and after it.
const MAX_IDLE: f64 = 0.1;
/// Minimum share of the windows' time in which no iteration was open, as a fraction, for a line about that time.
const MIN_BETWEEN: f64 = 0.05;

/// Shares of the iterations' time in which the GPU works, as fractions, and the labels for the GPU and for the row
/// of busy time. A share that is not known is `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuShares<'a> {
    pub span: Option<f64>,
    pub busy: Option<f64>,
    pub gpu: &'a str,
    pub busy_name: &'a str,
}

/// Width of the labels in the table of times, in characters.
const LABEL_WIDTH: usize = 28;

/// Adds a line for each window. On a screen, at most [`MAX_WINDOWS`] windows get a line. `own` is the recorder's share
/// of the windows' time, as a fraction, if it is known.
pub(crate) fn windows(windows: &[Window], own: Option<f64>, lines: &mut Lines) {
    for window in windows.iter().take(lines.rows(MAX_WINDOWS)) {
        let Some(sum) = Sum::new(std::slice::from_ref(window)) else {
            let no = match window.iterations.len() {
                0 => "no iteration".to_owned(),
                all => format!("0 of {all} iterations count"),
            };
            lines.add(format_args!("window {}: {no}", window.name()));
            continue;
        };
        let all = window.iterations.len() as u64;
        let of = match all == sum.iterations {
            true => String::new(),
            false => format!(" of {all}"),
        };
        let many = if all == 1 { "" } else { "s" };
        // A window of the flight recorder contains the iterations before another window, or before the end of the
        // process. Its line has no room for a rate beside the words `flight recorder`.
        let (past, rate) = match window.past {
            true => (" (flight recorder)", None),
            false => ("", sum.per_second),
        };
        let rate = rate.map_or_else(String::new, |rate| format!(", {} a second", Rate(rate)));
        let open = match (window.closed, window.cut) {
            (false, _) => "; never closed",
            (true, true) => "; closed by the end of the process",
            (true, false) => "",
        };
        let missing = match window.gaps() {
            0 => String::new(),
            gaps => format!("; {gaps} are missing"),
        };
        lines.add(format_args!(
            "window {}{past}: {}{of} iteration{many} in {}{rate}{missing}{open}",
            window.name(),
            sum.iterations,
            Time(sum.wall)
        ));
    }
    let more = windows.len().saturating_sub(lines.rows(MAX_WINDOWS));
    if more > 0 {
        lines.add(format_args!("and {more} more windows"));
    }
    if let Some(sum) = Sum::new(windows) {
        between(&sum, own.unwrap_or(0.0), lines);
    }
}

/// Adds a line about the time in which no iteration was open, if it is long even without the recorder's own work. `own`
/// is the recorder's share of the windows' time, as a fraction.
fn between(sum: &Sum, own: f64, lines: &mut Lines) {
    if sum.between.share - own >= MIN_BETWEEN {
        lines.add(format_args!(
            "between iterations: {} a step, {} of the windows; the times of iterations do not contain it (--step names what a \
             step is)",
            Time(sum.between.mean),
            Share(sum.between.share)
        ));
    }
}

/// The table of times in the text, to which rows are added.
struct TimesTable<'a> {
    lines: &'a mut Lines,
}

impl TimesTable<'_> {
    fn row(&mut self, what: &str, times: &Quantiles, share: Option<f64>) {
        self.lines.add(format_args!(
            "{:<LABEL_WIDTH$}{:>10}{:>10}{:>10}{:>10}{:>12}",
            short(what, LABEL_WIDTH),
            Time(times.p50),
            tail(times.p90),
            tail(times.p99),
            Time(times.max),
            share.map_or_else(String::new, |share| Share(share).to_string())
        ));
    }

    /// Adds rows for waits for the GPU and for waits for requests. The rows are computed from the iterations without
    /// recorded kernels, if there are any.
    fn waits(&mut self, sum: &Sum, requests: f64, indent: &str) {
        if sum.wait.max > 0 {
            let what = format!("{indent}waits for the GPU");
            self.row(&what, &sum.wait, Some(sum.wait_share));
        }
        if sum.idle.max > 0 {
            let what = format!("{indent}waits for requests");
            self.row(&what, &sum.idle, Some(requests));
        }
    }

    /// Adds the row of the GPU span, which is the time from an iteration's first GPU work to its
    /// last. The row is computed from the iterations in which the span was measured.
    fn span(&mut self, sum: &Sum, gpu: GpuShares<'_>, indent: &str) {
        // `gpu.span` is `None` if the GPU was busy for longer than the span, which shows that the
        // span is wrong.
        if let Some(((name, times), share)) = sum.gpu_span().zip(gpu.span) {
            let of = of_some(sum.gpu_iterations, sum.gpu_among());
            self.row(
                &format!("{indent}{} {name}{of}", gpu.gpu),
                times,
                Some(share),
            );
        }
    }

    fn busy(&mut self, sum: &Sum, gpu: GpuShares<'_>, indent: &str) {
        // `gpu.busy` is `None` if the driver did not report when kernels ran, so there is no row
        // for busy time.
        if let Some((times, share)) = sum.gpu_busy.as_ref().zip(gpu.busy) {
            self.row(&format!("{indent}{}", gpu.busy_name), times, Some(share));
        }
    }
}

/// Returns a percentile as text. The percentile is `None` if there are too few values for it.
fn tail(ns: Option<u64>) -> String {
    ns.map_or_else(|| UNKNOWN.to_owned(), |ns| Time(ns).to_string())
}

/// Adds the table of iteration times. Rows of waits and GPU times follow the row of the class of
/// iterations (with or without recorded kernels) in which they were measured. `requests` is the
/// share of waits for requests, and `phases` contains the times by phase of the batch.
pub(crate) fn times(
    sum: &Sum,
    gpu: GpuShares<'_>,
    requests: f64,
    phases: &[(String, Quantiles, u64)],
    outside: &Outside,
    lines: &mut Lines,
) {
    lines.heading(format_args!(
        "{:<LABEL_WIDTH$}{:>10}{:>10}{:>10}{:>10}{:>12}",
        "", "p50", "p90", "p99", "max", "of the time"
    ));
    let name = match lines.is_of_trace() {
        true => "the trace".to_owned(),
        false => format!("iteration ({})", sum.iterations),
    };
    let mut table = TimesTable { lines };
    table.row(&name, &sum.time, None);
    for (what, time, total) in phases {
        table.row(what, time, Some(sum.share(*total)));
    }
    match (&sum.with_kernels, &sum.without_kernels) {
        (Some(with), Some(without)) => {
            let (host, taken) = (sum.host_iterations, sum.iterations - sum.host_iterations);
            let is_stretched = sum.gpu_from == GpuFrom::Stretched;
            table.row(&format!("  without kernels ({host})"), without, None);
            if !is_stretched {
                table.span(sum, gpu, "    ");
            }
            table.waits(sum, requests, "    ");
            table.row(&format!("  with kernels ({taken})"), with, None);
            if is_stretched {
                table.span(sum, gpu, "    ");
            }
            table.busy(sum, gpu, "    ");
        }
        _ => {
            table.span(sum, gpu, "  ");
            table.busy(sum, gpu, "  ");
            table.waits(sum, requests, "  ");
        }
    }
    match (&outside.before, &outside.after) {
        (Some(before), Some(after)) => {
            some_outside("before", before, lines);
            some_outside("after", after, lines);
        }
        _ => some_outside("outside", &outside.all, lines),
    }
    if let Some(text) = changed(sum, outside) {
        lines.text(&text, 2);
    }
}

/// Adds a row for iterations outside windows. `what` is the row's label.
fn some_outside(what: &str, some: &OutsideSum, lines: &mut Lines) {
    if let (Some(p50), Some(max)) = (some.p50, some.max) {
        lines.add(format_args!(
            "{:<LABEL_WIDTH$}{:>10}{:>10}{:>10}{:>10}",
            short(&format!("{what} ({})", some.iterations), LABEL_WIDTH),
            Time(p50),
            tail(some.p90),
            tail(some.p99),
            Time(max)
        ));
    }
}

/// Returns a remark if the median iteration time after the window differs from that in the window by more than the
/// factor [`MIN_CHANGE_RATIO`]. Returns `None` otherwise. Also returns `None` if there are too few iterations after the
/// window, or if kernels were recorded in all iterations of the window, because that makes iterations longer.
fn changed(sum: &Sum, outside: &Outside) -> Option<String> {
    let after = outside
        .after
        .filter(|after| after.iterations >= MIN_ITERATIONS_AFTER)?;
    // The times after the window contain waits for requests, and those in the window do not.
    if sum.share(sum.totals.idle) > MAX_IDLE {
        return None;
    }
    let (there, then) = (sum.without_kernels?.p50, after.p50?);
    let is_other = there.max(then) as f64 > MIN_CHANGE_RATIO * there.min(then) as f64;
    is_other.then(|| {
        format!(
            "the time of a step changed: {} in the window, {} after it (medians); the window is not what runs later",
            Time(there),
            Time(then)
        )
    })
}
