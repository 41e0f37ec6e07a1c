//! The report's lines on the load balance of learned expert routers.

use crate::events::facts::Facts;
use crate::numbers::units::Rate;
use crate::print::lines::Lines;
use crate::routing::{LayerLoad, mean, mean_over_gpus};

/// The number of GPUs among which the experts are assumed to be divided, if the command line of the process does not
/// state it.
pub(crate) const GPUS: usize = 8;

/// Returns the number of lines that [`layers`] adds to the text, not counting the rows of layers.
pub(crate) fn fixed(loads: &[LayerLoad]) -> usize {
    2 * usize::from(used(loads).next().is_some())
}

fn used(loads: &[LayerLoad]) -> impl Iterator<Item = (&LayerLoad, f64)> {
    loads
        .iter()
        .filter_map(|load| Some((load, load.of_mean()?)))
}

/// Adds lines with the mean load balance of the layers, and with the layers whose balance is worst.
pub(crate) fn layers(
    loads: &[LayerLoad],
    facts: &Facts,
    gpus: usize,
    rows: usize,
    lines: &mut Lines,
) {
    let mut found: Vec<_> = used(loads).collect();
    if found.is_empty() {
        return;
    }
    let mut row = |name: &str, expert: &str, gpu: &str, idle: &str, tokens: &str| {
        let name = lines.name(name, 41);
        lines.add(format_args!(
            "{name:<42}{expert:>9}{gpu:>9}{idle:>8}{tokens:>12}"
        ));
    };
    let times = |of_mean: Option<f64>| of_mean.map_or_else(String::new, |m| Rate(m).to_string());
    row(
        "learned router, busiest against mean",
        "expert",
        &format!("{gpus} GPUs"),
        "idle",
        "tokens",
    );
    row(
        &format!("  mean of {} layers", found.len()),
        &times(mean(loads)),
        &times(mean_over_gpus(loads, gpus)),
        "",
        "",
    );
    found.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (load, of_mean) in found.into_iter().take(rows) {
        let name = facts.routers.get(&u32::from(load.layer));
        let name = name.map_or_else(|| format!("layer {}", load.layer), Clone::clone);
        row(
            &format!("  {name}"),
            &times(Some(of_mean)),
            &times(load.over_gpus(gpus)),
            &load.idle().to_string(),
            &load.sum().to_string(),
        );
    }
}
