//! Windows and times of iterations, in a few lines.

use super::outside::Outside;
use super::sum::Sum;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share, Time, of_some};
use crate::print::lines::{Lines, short};

/// How many windows have a line.
const WINDOWS: usize = 3;
/// How wide the names of times are.
const LABEL: usize = 28;

/// The windows, a line each.
pub fn windows(windows: &[Window], lines: &mut Lines) {
    for window in windows.iter().take(WINDOWS) {
        let Some(sum) = Sum::of(std::slice::from_ref(window)) else {
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
        // What was kept is short, and its line has no room for more.
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
    let more = windows.len().saturating_sub(WINDOWS);
    if more > 0 {
        lines.add(format_args!("and {more} more windows"));
    }
}

/// How long iterations took, and what they waited for. `requests` is the part of the time that waits for requests took,
/// `phases` has the times of batches by what they consist of.
pub fn times(
    sum: &Sum,
    requests: f64,
    phases: &[(String, Quantiles, u64)],
    outside: &Outside,
    lines: &mut Lines,
) {
    lines.heading(format_args!(
        "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}{:>12}",
        "", "p50", "p90", "p99", "max", "of the time"
    ));
    let mut row = |what: &str, times: &Quantiles, share: Option<f64>| {
        lines.add(format_args!(
            "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}{:>12}",
            short(what, LABEL),
            Time(times.p50),
            Time(times.p90),
            Time(times.p99),
            Time(times.max),
            share.map_or_else(String::new, |share| Share(share).to_string())
        ));
    };
    let host = of_some(sum.host_iterations, sum.iterations);
    row(&format!("iteration ({})", sum.iterations), &sum.time, None);
    if let Some(gpu) = &sum.gpu {
        row(&format!("  {}", sum.gpu_name()), gpu, sum.gpu_share);
    }
    if sum.wait.max > 0 {
        row(
            &format!("  waits for the GPU{host}"),
            &sum.wait,
            Some(sum.wait_share),
        );
    }
    if sum.idle.max > 0 {
        let what = format!("  waits for requests{host}");
        row(&what, &sum.idle, Some(requests));
    }
    for (what, time, total) in phases {
        row(what, time, Some(sum.share(*total)));
    }
    if let (Some(p50), Some(p90), Some(p99), Some(max)) =
        (outside.p50, outside.p90, outside.p99, outside.max)
    {
        lines.add(format_args!(
            "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}",
            short(&format!("outside ({})", outside.iterations), LABEL),
            Time(p50),
            Time(p90),
            Time(p99),
            Time(max)
        ));
    }
}
