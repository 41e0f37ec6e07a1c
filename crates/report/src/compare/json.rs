//! A comparison as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::bootstrap::Change;
use super::{Comparison, Outcome, Side, Unit};

impl Comparison {
    /// Writes the comparison as JSON, with a line's end.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        crate::json::write(&JsonComparison::of(self), to)
    }
}

#[derive(Serialize)]
struct JsonComparison<'a> {
    base: JsonSide<'a>,
    other: JsonSide<'a>,
    verdict: &'static str,
    /// The verdict in words.
    text: String,
    /// What most iterations do, by the median, where that is not what the verdict says of all.
    but: Option<&'a str>,
    /// Of iterations a second.
    change: Option<JsonChange>,
    measures: Vec<JsonMeasure<'a>>,
    kernels: Vec<JsonPart<'a>>,
    /// Of how many iterations those are, of both runs.
    kernels_of: [u64; 2],
    /// The innermost layers that explain the difference, of the same iterations.
    layers: Vec<JsonPart<'a>>,
    /// By sampled stacks, those that differ by more than chance.
    functions: Vec<JsonPart<'a>>,
    functions_of: [u64; 2],
    ranks: Vec<JsonRank>,
    /// Where one of the runs had balanced routing.
    routing: Option<JsonRouting>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct JsonSide<'a> {
    file: &'a str,
    command: &'a str,
    rule: &'a str,
    processes: usize,
    rank: u64,
    iterations: usize,
    perfect_router: bool,
}

#[derive(Serialize)]
struct JsonChange {
    /// `null`: more than any number.
    relative: Option<f64>,
    /// 95 %; `null`: too few iterations.
    interval: Option<[f64; 2]>,
}

#[derive(Serialize)]
struct JsonMeasure<'a> {
    name: &'a str,
    unit: &'static str,
    base: f64,
    other: f64,
    change: JsonChange,
    /// Of how many iterations it is.
    base_iterations: usize,
    other_iterations: usize,
}

#[derive(Serialize)]
struct JsonPart<'a> {
    name: &'a str,
    base_ns: f64,
    other_ns: f64,
    change: Option<JsonChange>,
}

#[derive(Serialize)]
struct JsonRank {
    rank: u64,
    base_per_second: f64,
    other_per_second: f64,
    change: JsonChange,
}

#[derive(Serialize)]
struct JsonRouting {
    change: JsonChange,
    significant: bool,
}

impl JsonChange {
    fn of(change: Change) -> Self {
        Self {
            relative: change.relative.is_finite().then_some(change.relative),
            interval: change.interval.map(|(low, high)| [low, high]),
        }
    }
}

impl<'a> JsonSide<'a> {
    fn of(side: &'a Side) -> Self {
        Self {
            file: &side.file,
            command: &side.command,
            rule: &side.rule,
            processes: side.processes,
            rank: side.rank,
            iterations: side.iterations,
            perfect_router: side.is_balanced,
        }
    }
}

impl<'a> JsonComparison<'a> {
    fn of(comparison: &'a Comparison) -> Self {
        let measures = comparison.measures.iter().map(|measure| JsonMeasure {
            name: measure.name,
            unit: match measure.unit {
                Unit::PerSecond => "1/s",
                Unit::Nanoseconds => "ns",
            },
            base: measure.base,
            other: measure.other,
            change: JsonChange::of(measure.change),
            base_iterations: measure.of[0],
            other_iterations: measure.of[1],
        });
        let kernels = comparison.kernels.iter().map(|kernel| JsonPart {
            name: &kernel.name,
            base_ns: kernel.base,
            other_ns: kernel.other,
            change: kernel.change.map(JsonChange::of),
        });
        let layers = comparison.layers.iter().map(|layer| JsonPart {
            name: &layer.name,
            base_ns: layer.base,
            other_ns: layer.other,
            change: layer.change.map(JsonChange::of),
        });
        let functions = comparison.functions.iter().map(|function| JsonPart {
            name: &function.name,
            base_ns: function.base,
            other_ns: function.other,
            change: function.change.map(JsonChange::of),
        });
        let ranks = comparison.ranks.iter().map(|rank| JsonRank {
            rank: rank.rank,
            base_per_second: rank.base,
            other_per_second: rank.other,
            change: JsonChange::of(rank.change),
        });
        Self {
            base: JsonSide::of(&comparison.base),
            other: JsonSide::of(&comparison.other),
            verdict: match comparison.verdict {
                Outcome::Faster(..) => "faster",
                Outcome::Slower(..) => "slower",
                Outcome::NoDifference(..) => "no difference",
                Outcome::TooFew(..) => "too few",
                Outcome::NotComparable(..) => "not comparable",
            },
            text: comparison.verdict.to_string(),
            but: comparison.but.as_deref(),
            change: comparison
                .measures
                .first()
                .map(|rate| JsonChange::of(rate.change)),
            measures: measures.collect(),
            kernels: kernels.collect(),
            kernels_of: comparison.kernels_of,
            layers: layers.collect(),
            functions: functions.collect(),
            functions_of: comparison.functions_of,
            ranks: ranks.collect(),
            routing: comparison.routing.as_ref().map(|routing| JsonRouting {
                change: JsonChange::of(routing.change),
                significant: routing.is_significant,
            }),
            notes: &comparison.notes,
        }
    }
}
