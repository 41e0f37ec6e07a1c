//! The JSON data of a page: the report, and further figures that the page prints. The types of the page's script
//! (`web/src/contract.ts`) are generated from these types.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_report::{
    LayerLoad, Named, Process, Report, ReportView, Skew, Verdict, expert_gpus, schema_of,
};

/// The data of a page, except iterations and events.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Data<'a> {
    /// The report, with its lists of iterations empty.
    report: ReportView<'a>,
    /// Further figures for each of the report's processes.
    processes: Vec<ProcessFigures>,
    /// Further figures for the report's skew; `null` if it has none.
    skew: Option<SkewFigures>,
    /// Lines that say which iterations the shares of several processes are based on, if not on all.
    of_which: Vec<&'static str>,
    /// The index of the process to show first: the one that the first finding is about.
    first_shown: usize,
}

/// Figures of a process.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessFigures {
    /// The name that distinguishes it from the others.
    name: String,
    /// The label of GPU time by its source, with the number of iterations if it was not measured in all with kernels,
    /// or in all without; `null` if there is no GPU time.
    gpu_name: Option<String>,
    /// The number of iterations that figures leave out, and the reason, in words; `null` if there are none.
    uncounted: Option<String>,
    /// The reason why there are no figures of iterations; `null` if there are some.
    nothing: Option<&'static str>,
    /// The share of the recorder's own work in the time; `null` if it is not known.
    #[schemars(extend("unit" = "part of 1"))]
    own_share: Option<f64>,
    /// For each of `calls`.
    calls: Vec<MeanFigures>,
    /// For each of `gc`.
    gc: Vec<MeanFigures>,
    /// For `gil_wait`.
    gil_wait: MeanFigures,
    /// For `gil_hold`.
    gil_hold: MeanFigures,
    /// For each of `functions`.
    functions: Vec<MeanFigures>,
    /// For each of `ranges`.
    ranges: Vec<MeanFigures>,
    /// For each of `kernels`.
    kernels: Vec<KernelFigures>,
    /// For each of `copies`, the rate; `null` if they took no time.
    #[schemars(extend("unit" = "bytes/s"))]
    copies: Vec<Option<f64>>,
    /// For `routing`; `null` if that is `null`.
    routing: Option<RoutingFigures>,
}

/// Figures of events with one name.
#[derive(Debug, Serialize, JsonSchema)]
struct MeanFigures {
    /// The mean number in an iteration.
    #[schemars(extend("unit" = "per iteration"))]
    a_step: f64,
    /// The mean duration.
    mean_ns: u64,
}

/// Figures of the kernels of one name.
#[derive(Debug, Serialize, JsonSchema)]
struct KernelFigures {
    /// The share in the time of all kernels; `null` if the driver did not report times.
    #[schemars(extend("unit" = "part of 1"))]
    share: Option<f64>,
    /// The mean duration; `null` if the driver did not report times.
    mean_ns: Option<u64>,
}

/// Figures of learned routers.
#[derive(Debug, Serialize, JsonSchema)]
struct RoutingFigures {
    /// The number of GPUs that share the experts; `null` if it is not known, or if no layer can be divided evenly.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: Option<usize>,
    /// For each layer.
    layers: Vec<LayerFigures>,
}

/// Figures of an MoE layer.
#[derive(Debug, Serialize, JsonSchema)]
struct LayerFigures {
    /// The load of the busiest of these GPUs, as a multiple of the mean; `null` if the layer's experts cannot be
    /// divided evenly.
    #[schemars(extend("unit" = "multiple of the mean"))]
    on_gpus: Option<f64>,
    /// The load of each expert, as a multiple of the mean.
    #[schemars(extend("unit" = "multiple of the mean"))]
    of_mean: Vec<f64>,
}

/// Figures of processes side by side.
#[derive(Debug, Serialize, JsonSchema)]
struct SkewFigures {
    /// The number of iterations that several processes have in common.
    #[schemars(extend("unit" = "iterations"))]
    iterations: usize,
    /// The index of the process that was most often the slowest; `null` if none was.
    most_often: Option<usize>,
}

/// Returns the JSON schema of a page's data.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_of::<Data<'_>>()
}

impl<'a> Data<'a> {
    pub fn new(report: &'a Report) -> Self {
        let ranks = report.processes.len();
        let named = report.processes.iter().zip(&report.names);
        Self {
            report: report.summary(),
            processes: named
                .map(|(process, name)| ProcessFigures::new(process, name, ranks))
                .collect(),
            skew: report.skew.as_ref().map(SkewFigures::new),
            of_which: report.of_which(),
            first_shown: first_shown(report),
        }
    }
}

/// Returns the index of the process of the first finding that holds and is about a single process; 0 if there is none.
fn first_shown(report: &Report) -> usize {
    let yes = report.findings.iter();
    let mut yes = yes.filter(|finding| finding.verdict == Verdict::Yes);
    yes.find_map(|finding| finding.place).unwrap_or(0)
}

impl ProcessFigures {
    fn new(process: &Process, name: &str, ranks: usize) -> Self {
        let name = match &*process.facts.in_groups {
            "" => name.to_owned(),
            groups => format!("{name} ({groups})"),
        };
        let each = |named: &Named| MeanFigures {
            a_step: process
                .sum
                .map_or(named.count as f64, |sum| sum.a_step(named.count)),
            mean_ns: named.mean(),
        };
        let all = |named: &[Named]| named.iter().map(each).collect();
        let gpus = expert_gpus(&process.facts.command, ranks);
        Self {
            name,
            gpu_name: process.gpu_name(),
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
            routing: RoutingFigures::new(&process.experts, gpus),
        }
    }
}

impl RoutingFigures {
    /// Returns the figures, or `None` if no tokens were counted.
    fn new(loads: &[LayerLoad], gpus: Option<usize>) -> Option<Self> {
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
    fn new(skew: &Skew) -> Self {
        Self {
            iterations: skew.iterations.len(),
            most_often: skew.most_often().map(|(place, _)| place),
        }
    }
}
