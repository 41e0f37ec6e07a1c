//! Which layers take longer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Layers, parent, starred};
use crate::numbers::parts::{Part, PartChange, change};
use crate::numbers::units::Share;

/// How many layers are shown, those that differ most first.
const LAYERS: usize = 20;

/// A layer is not shown where one within it makes up so much of the difference.
const WITHIN: f64 = 0.9;

/// One of several layers of a row has a row of its own where it makes up so much of the difference.
const ALONE: f64 = 0.5;

/// From which part on a reader has to know how much is of no layer that is known.
const UNKNOWN: f64 = 0.01;

/// What both runs take in an iteration, by name.
type Times<'a> = BTreeMap<&'a str, [f64; 2]>;

fn difference(times: &[f64; 2]) -> f64 {
    times[1] - times[0]
}

/// The layers that differ most: the innermost ones that explain it. `steps` says in how many iterations kernels were
/// recorded.
pub fn changes(sides: [&Layers; 2], steps: [u64; 2]) -> Vec<PartChange> {
    let [mut patterns, mut single] = [Times::new(), Times::new()];
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
    // Of each pattern the layer that differs most, if it is one of several.
    let mut most: BTreeMap<String, (&str, f64, usize)> = BTreeMap::new();
    for (name, times) in &single {
        let found = most.entry(starred(name)).or_insert((name, 0.0, 0));
        found.2 += 1;
        if difference(times).abs() > found.1.abs() {
            (found.0, found.1) = (name, difference(times));
        }
    }
    // Of each pattern the largest difference within it that has its sign.
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
    let is_shown = |name: &str| within.get(name).is_none_or(|part| *part < WITHIN);
    let mut rows: Vec<(&str, [f64; 2])> = Vec::new();
    for (name, times) in patterns.iter().filter(|(name, _)| is_shown(name)) {
        rows.push((name, *times));
        if let Some((one, more, layers)) = most.get(*name)
            && *layers > 1
            && more / difference(times) >= ALONE
        {
            rows.push((one, single[one]));
        }
    }
    rows.sort_by(|(_, a), (_, b)| difference(b).abs().total_cmp(&difference(a).abs()));
    rows.truncate(LAYERS);
    let rows = rows.into_iter().map(|(name, [base, other])| PartChange {
        name: name.to_owned(),
        label: name.to_owned(),
        base,
        other,
        change: change(sides.map(|layers| part(layers, name)), steps),
    });
    rows.collect()
}

/// What layers of this name took with what is within them, in a run; `None`: there are none.
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

/// How much of the time is of no layer that is known, where that is worth a line.
pub fn unknown(sides: [&Layers; 2]) -> Option<String> {
    let [base, other] = sides.map(|layers| {
        let ns = layers.unknown.iter().map(|row| row.ns).sum();
        layers.all.share(ns)
    });
    (base >= UNKNOWN || other >= UNKNOWN).then(|| {
        format!(
            "layer not known: {} of BASE's kernel time, {} of OTHER's",
            Share(base),
            Share(other)
        )
    })
}
