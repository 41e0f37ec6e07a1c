//! The report's lines about batches: mean numbers of requests and tokens, and iteration times by
//! phase and by number of tokens.

use tllmprof_record::Phase;

use crate::batches::{BatchSum, PhaseSum, SizeSum};
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share, Time};
use crate::print::lines::Lines;

/// Returns one row for each phase: its label, the quantiles of its iterations' times, and their
/// total time in nanoseconds. Returns no rows if there is only one phase.
pub(crate) fn times(phases: &[PhaseSum]) -> Vec<(String, Quantiles, u64)> {
    let several = phases.iter().filter(|_| phases.len() > 1);
    let row = |phase: &PhaseSum| {
        let all = &phase.all;
        let what = format!("  {} ({})", phase.phase.name(), all.iterations);
        (what, all.time, all.total)
    };
    several.map(row).collect()
}

/// Adds a line with the mean numbers of requests and tokens in a batch, and lines with iteration
/// times by batch size. Iterations of the phase `Draft` are left out.
pub(crate) fn batches(phases: &[PhaseSum], lines: &mut Lines) {
    let phases = || phases.iter().filter(|of| of.phase != Phase::Draft);
    let total = |of: fn(&BatchSum) -> u64| {
        phases()
            .map(|phase| of(&phase.all))
            .fold(0, u64::saturating_add) as f64
    };
    let iterations = total(|all| all.iterations);
    if iterations == 0.0 {
        return;
    }
    let tokens = total(|all| all.tokens);
    let prefill = total(|all| all.prefill_tokens) / tokens.max(1.0);
    let prefill = match tokens {
        0.0 => String::new(),
        _ => format!(", {} of these prefill", Share(prefill)),
    };
    lines.add(format_args!(
        "{} requests and {} tokens a step{prefill}",
        Rate(total(|all| all.requests) / iterations),
        Rate(tokens / iterations)
    ));
    for phase in phases().filter(|phase| phase.sizes.len() > 1) {
        sizes(phase, lines);
    }
}

/// Adds a line with the median iteration time of each size class (a range of tokens). If the line
/// would be too wide, the classes with the least total time are left out.
fn sizes(phase: &PhaseSum, lines: &mut Lines) {
    let start = format!("{}, p50: ", phase.phase.name());
    let mut sizes: Vec<_> = phase.sizes.iter().collect();
    let line = |sizes: &[&SizeSum]| {
        let said = sizes.iter().enumerate().map(|(place, size)| {
            let unit = match (place, size.most) {
                (0, Some(1)) => " token",
                (0, _) => " tokens",
                _ => "",
            };
            let (name, time) = (size.name(), Time(size.all.time.p50));
            format!("{name}{unit} {time} ({})", size.all.iterations)
        });
        start.clone() + &said.collect::<Vec<_>>().join(", ")
    };
    while line(&sizes).chars().count() > lines.width() && sizes.len() > 1 {
        let least = sizes
            .iter()
            .enumerate()
            .min_by_key(|(_, size)| size.all.total);
        let least = least.map_or(0, |(place, _)| place);
        sizes.remove(least);
    }
    lines.add(format_args!("{}", line(&sizes)));
}
