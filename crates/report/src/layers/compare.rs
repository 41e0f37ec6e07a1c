//! Comparison of the layers of two runs: it finds the layers whose time differs most.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Layers, parent, starred};
use crate::numbers::parts::{Part, PartChange, are_few, change};
use crate::numbers::units::Share;

/// Maximum number of layers in the comparison, not counting layers that the user asked for by name. If there are more,
/// the comparison shows those whose times differ most.
const MAX_LAYERS: usize = 20;

/// Limit for the share of an inner layer in the difference of the layer around it, as a fraction. If an inner layer
/// has at least this share, the outer layer is not shown.
const MAX_INNER_SHARE: f64 = 0.9;

/// Minimum share of a row's difference, as a fraction, that a single layer must have to get a row
/// of its own. A row may stand for several layers whose names differ only in numbers.
const MIN_SINGLE_SHARE: f64 = 0.5;

/// Minimum share of kernel time whose layer is unknown, as a fraction, for a note that says so.
const MIN_UNKNOWN_SHARE: f64 = 0.01;

/// Times of layers by name: one for each of the two runs, in nanoseconds per iteration.
type LayerTimes<'a> = BTreeMap<&'a str, [f64; 2]>;

fn difference(times: &[f64; 2]) -> f64 {
    times[1] - times[0]
}

/// Returns the layers whose times differ most between the two runs. If one layer inside a layer explains at least
/// [`MAX_INNER_SHARE`] of the outer layer's difference, the outer layer is left out. `steps` contains each run's number
/// of iterations with recorded kernels. Layers whose names are in `asked` are always returned, if a run has them.
pub(crate) fn changes(sides: [&Layers; 2], steps: [u64; 2], asked: &[&str]) -> Vec<PartChange> {
    let [mut patterns, mut single] = [LayerTimes::new(), LayerTimes::new()];
    for (side, layers) in sides.into_iter().enumerate() {
        for (rows, times) in [
            (&layers.patterns, &mut patterns),
            (&layers.tree, &mut single),
        ] {
            for row in rows {
                times.entry(&row.name).or_default()[side] = row.ns as f64 / steps[side] as f64;
            }
        }
    }
    // The key is a pattern, which is a name with `*` for numbers. The value is the layer of that
    // pattern whose time differs most, its difference, and the number of the pattern's layers.
    let mut most: BTreeMap<String, (&str, f64, usize)> = BTreeMap::new();
    for (name, times) in &single {
        let found = most.entry(starred(name)).or_insert((name, 0.0, 0));
        found.2 += 1;
        if difference(times).abs() > found.1.abs() {
            (found.0, found.1) = (name, difference(times));
        }
    }
    // The key is a pattern of layer names. The value is the largest share, as a fraction, that a single pattern
    // directly inside the key has in the key's time difference.
    let mut within: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, times) in &patterns {
        let Some(around) = parent(name).filter(|around| patterns.contains_key(around)) else {
            continue;
        };
        let part = match difference(&patterns[around]) {
            0.0 => f64::from(u8::from(*times == patterns[around])),
            all => difference(times) / all,
        };
        let largest = within.entry(around).or_default();
        *largest = part.max(*largest);
    }
    let is_shown = |name: &str| within.get(name).is_none_or(|part| *part < MAX_INNER_SHARE);
    let mut rows: Vec<(&str, [f64; 2])> = Vec::new();
    for (name, times) in patterns.iter().filter(|(name, _)| is_shown(name)) {
        rows.push((name, *times));
        if let Some((one, more, layers)) = most.get(*name)
            && *layers > 1
            && more / difference(times) >= MIN_SINGLE_SHARE
        {
            rows.push((one, single[one]));
        }
    }
    rows.sort_by(|(_, a), (_, b)| difference(b).abs().total_cmp(&difference(a).abs()));
    rows.truncate(MAX_LAYERS);
    for name in asked {
        let known = [&patterns, &single]
            .into_iter()
            .find_map(|of| of.get_key_value(name));
        if let Some((name, times)) = known
            && !rows.iter().any(|(row, _)| row == name)
        {
            rows.push((name, *times));
        }
    }
    let rows = rows.into_iter().map(|(name, [base, other])| PartChange {
        counts: None,
        name: name.to_owned(),
        label: name.to_owned(),
        base,
        other,
        change: change(sides.map(|layers| part(layers, name)), steps),
        is_few: are_few(steps),
    });
    rows.collect()
}

/// Returns the time of the layer or pattern `name` in one run, including the layers inside it. Returns `None` if the
/// run has no such layer.
fn part(layers: &Layers, name: &str) -> Option<Part<'static>> {
    let is_within = |of: &str| {
        let rest = of.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
    };
    let rows = layers.rows.iter();
    let mut rows = rows
        .filter(|row| is_within(&row.name) || is_within(&starred(&row.name)))
        .peekable();
    rows.peek()?;
    let mut part = Part {
        ns: 0,
        by_step: Some(Cow::default()),
    };
    for row in rows {
        part.ns = part.ns.saturating_add(row.ns);
        match (&mut part.by_step, &row.by_step) {
            (Some(all), Some(more)) => all.to_mut().extend(more),
            _ => part.by_step = None,
        }
    }
    Some(part)
}

/// Returns the mean time per iteration of the layer or pattern `name`, in nanoseconds; `None` if the run has no such
/// layer, or if `steps` is 0. `steps` is the run's number of iterations with recorded kernels.
pub(crate) fn time(layers: &Layers, steps: u64, name: &str) -> Option<f64> {
    let mut rows = layers.patterns.iter().chain(&layers.tree);
    let row = rows.find(|row| row.name == name)?;
    (steps > 0).then(|| row.ns as f64 / steps as f64)
}

/// Returns a note with the share of each run's kernel time whose layer is unknown; `None` if the shares of both runs
/// are below [`MIN_UNKNOWN_SHARE`].
pub(crate) fn unknown(sides: [&Layers; 2]) -> Option<String> {
    let [base, other] = sides.map(|layers| {
        let ns = layers.unknown.iter().map(|row| row.ns).sum();
        layers.all.share(ns)
    });
    (base >= MIN_UNKNOWN_SHARE || other >= MIN_UNKNOWN_SHARE).then(|| {
        format!(
            "layer not known: {} of BASE's kernel time, {} of OTHER's",
            Share(base),
            Share(other)
        )
    })
}
