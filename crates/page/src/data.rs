//! The data of a page that is JSON: the report, and the figures that the page prints beside it. The types of the page's
//! script (`web/src/contract.ts`) are made from these.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_report::{
    LayerLoad, Named, Process, Report, ReportView, Skew, expert_gpus, schema_of,
};

/// What a page shows, but for iterations and events.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Data<'a> {
    /// The report, with its lists of iterations empty.
    report: ReportView<'a>,
    /// For each of the report's processes: more figures.
    processes: Vec<ProcessFigures>,
    /// More figures of the report's skew; `null` where it has none.
    skew: Option<SkewFigures>,
    /// Of which iterations the shares of processes side by side are, if not of all.
    of_which: Vec<&'static str>,
}

/// Figures of a process.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessFigures {
    /// What distinguishes it from the others.
    name: String,
    /// What the GPU's time is called by where it was measured, and of how many iterations it is; `null`: there are none.
    gpu_name: Option<String>,
    /// How many iterations are in no figure, and why; `null`: all are in all.
    uncounted: Option<String>,
    /// Why there are no figures of iterations; `null`: there are some.
    nothing: Option<&'static str>,
    /// How much of the time the recorder took; `null`: not known.
    #[schemars(extend("unit" = "part of 1"))]
    own_share: Option<f64>,
    /// For each of `calls`.
    calls: Vec<Each>,
    /// For each of `gc`.
    gc: Vec<Each>,
    /// For `gil_wait`.
    gil_wait: Each,
    /// For `gil_hold`.
    gil_hold: Each,
    /// For each of `functions`.
    functions: Vec<Each>,
    /// For each of `ranges`.
    ranges: Vec<Each>,
    /// For each of `kernels`.
    kernels: Vec<KernelFigures>,
    /// For each of `copies`: how fast they were; `null`: they took no time.
    #[schemars(extend("unit" = "bytes/s"))]
    copies: Vec<Option<f64>>,
    /// For `routing`; `null` where that is.
    routing: Option<RoutingFigures>,
}

/// Figures of things of one name.
#[derive(Debug, Serialize, JsonSchema)]
struct Each {
    /// How many there are in the mean iteration.
    #[schemars(extend("unit" = "per iteration"))]
    a_step: f64,
    /// How long each takes in the mean.
    mean_ns: u64,
}

/// Figures of the kernels of one name.
#[derive(Debug, Serialize, JsonSchema)]
struct KernelFigures {
    /// How much of the time of all kernels they take; `null`: the driver did not say.
    #[schemars(extend("unit" = "part of 1"))]
    share: Option<f64>,
    /// How long each takes in the mean; `null` likewise.
    mean_ns: Option<u64>,
}

/// Figures of learned routers.
#[derive(Debug, Serialize, JsonSchema)]
struct RoutingFigures {
    /// On how many GPUs the experts are; `null`: not known, or no layer has equally many on each.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: Option<usize>,
    /// For each layer.
    layers: Vec<LayerFigures>,
}

/// Figures of an MoE layer.
#[derive(Debug, Serialize, JsonSchema)]
struct LayerFigures {
    /// What the busiest of those GPUs was sent, as a multiple of the mean GPU's; `null`: the layer does not have equally
    /// many experts on each.
    #[schemars(extend("unit" = "multiple of the mean"))]
    on_gpus: Option<f64>,
    /// What each expert was sent, as a multiple of the mean expert's.
    #[schemars(extend("unit" = "multiple of the mean"))]
    of_mean: Vec<f64>,
}

/// Figures of processes side by side.
#[derive(Debug, Serialize, JsonSchema)]
struct SkewFigures {
    /// How many iterations several processes have.
    #[schemars(extend("unit" = "iterations"))]
    iterations: usize,
    /// The place of the process that was the slowest most often; `null`: none ever was.
    most_often: Option<usize>,
}

/// The JSON schema of a page's data.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_of::<Data<'_>>()
}

impl<'a> Data<'a> {
    pub fn of(report: &'a Report) -> Self {
        let ranks = report.processes.len();
        let named = report.processes.iter().zip(&report.names);
        Self {
            report: report.summary(),
            processes: named
                .map(|(process, name)| ProcessFigures::of(process, name, ranks))
                .collect(),
            skew: report.skew.as_ref().map(SkewFigures::of),
            of_which: report.of_which(),
        }
    }
}

impl ProcessFigures {
    fn of(process: &Process, name: &str, ranks: usize) -> Self {
        let name = match &*process.facts.in_groups {
            "" => name.to_owned(),
            groups => format!("{name} ({groups})"),
        };
        let each = |named: &Named| Each {
            a_step: process
                .sum
                .map_or(named.count as f64, |sum| sum.a_step(named.count)),
            mean_ns: named.mean(),
        };
        let all = |named: &[Named]| named.iter().map(each).collect();
        let gpus = expert_gpus(&process.facts.command, ranks);
        Self {
            name,
            gpu_name: process.sum.map(|sum| sum.gpu_name()),
            uncounted: process.uncounted(),
            nothing: process.nothing(),
            own_share: process.own_share().filter(|share| *share > 0.0),
            calls: all(&process.calls.calls),
            gc: all(&process.python.gc),
            gil_wait: each(&process.python.gil_wait),
            gil_hold: each(&process.python.gil_hold),
            functions: all(&process.calls.functions),
            ranges: all(&process.calls.ranges),
            kernels: process
                .kernels
                .totals
                .iter()
                .map(|kernel| KernelFigures {
                    share: (kernel.total > 0).then(|| process.kernels.share(kernel)),
                    mean_ns: (kernel.total > 0).then(|| kernel.mean()),
                })
                .collect(),
            copies: process
                .kernels
                .copies
                .iter()
                .map(|copy| copy.rate())
                .collect(),
            routing: RoutingFigures::of(&process.experts, gpus),
        }
    }
}

impl RoutingFigures {
    /// `None` where nothing was counted.
    fn of(loads: &[LayerLoad], gpus: Option<usize>) -> Option<Self> {
        let on_gpus = |load: &LayerLoad| load.over_gpus(gpus?);
        let layers = loads.iter().filter_map(|load| {
            Some(LayerFigures {
                on_gpus: on_gpus(load),
                of_mean: load.each_of_mean()?,
            })
        });
        let layers: Vec<_> = layers.collect();
        (!layers.is_empty()).then(|| Self {
            gpus: gpus.filter(|_| layers.iter().any(|layer| layer.on_gpus.is_some())),
            layers,
        })
    }
}

impl SkewFigures {
    fn of(skew: &Skew) -> Self {
        Self {
            iterations: skew.iterations.len(),
            most_often: skew.most_often().map(|(place, _)| place),
        }
    }
}
