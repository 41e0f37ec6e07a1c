//! How unbalanced the learned routers of experts are.

use super::lines::{Lines, short};
use crate::facts::{Facts, clean};
use crate::routing::LayerLoad;
use crate::units::Rate;

/// The GPUs that experts are thought to be on where one process alone is known.
pub const GPUS: usize = 8;

/// How many lines [`layers`] adds besides rows.
pub fn fixed(loads: &[LayerLoad]) -> usize {
    2 * usize::from(used(loads).next().is_some())
}

fn used(loads: &[LayerLoad]) -> impl Iterator<Item = (&LayerLoad, f64)> {
    loads
        .iter()
        .filter_map(|load| Some((load, load.of_mean()?)))
}

/// The mean over the layers, and the worst of them.
pub fn layers(loads: &[LayerLoad], facts: &Facts, gpus: usize, rows: usize, lines: &mut Lines) {
    let mut found: Vec<_> = used(loads).collect();
    if found.is_empty() {
        return;
    }
    let mut row = |name: &str, expert: &str, gpu: &str, idle: &str, tokens: &str| {
        let name = short(name, 41);
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
    let on_gpus = found.iter().filter_map(|(load, _)| load.over_gpus(gpus));
    row(
        &format!("  mean of {} layers", found.len()),
        &times(mean(found.iter().map(|(_, of_mean)| *of_mean))),
        &times(mean(on_gpus)),
        "",
        "",
    );
    found.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (load, of_mean) in found.into_iter().take(rows) {
        let name = facts.routers.get(&u32::from(load.layer));
        let name = name.map_or_else(|| format!("layer {}", load.layer), |name| clean(name));
        row(
            &format!("  {name}"),
            &times(Some(of_mean)),
            &times(load.over_gpus(gpus)),
            &load.idle().to_string(),
            &load.sum().to_string(),
        );
    }
}

fn mean(of: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = of.fold((0_u32, 0.0), |(count, sum), one| (count + 1, sum + one));
    (count > 0).then(|| sum / f64::from(count))
}
