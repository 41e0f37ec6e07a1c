//! The JSON data of a page: the report, and further figures that the page shows. The types of the
//! page's script (`web/src/contract.ts`) are generated from these types.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_report::{
    LayerLoad, Named, Process, Report, ReportView, Skew, Verdict, expert_gpus, schema_of,
};

/// The data of a report page, except the iterations and the events of the timeline, which the page stores separately.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Data<'a> {
    /// The report, as `tllmprof report --json` prints it, but with empty lists of iterations.
    report: ReportView<'a>,
    /// More figures of each process, in the order of `report.processes`.
    processes: Vec<ProcessFigures>,
    /// More figures for `report.skew`; `null` if `report.skew` is `null`.
    skew: Option<SkewFigures>,
    /// Notes for the comparison of processes. Each note says which iterations a share is based on, if it is not based
    /// on all iterations that qualify.
    of_which: Vec<&'static str>,
    /// The index in `processes` of the process that the page shows first. If a finding that holds is about a single
    /// process, the page first shows the process of the first such finding. Otherwise the index is 0.
    first_shown: usize,
}

/// Figures of one process that the page shows in addition to the report.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessFigures {
    /// A name that distinguishes the process from the other processes, with its rank in each group of ranks.
    name: String,
    /// The label for the GPU time, which depends on how the GPU time was measured. It includes the number of iterations
    /// with a measured GPU time, if these are not all iterations. `null` if there is no GPU time.
    gpu_name: Option<String>,
    /// A text that lists how many iterations of windows the figures leave out, by reason; `null` if the figures leave
    /// out none.
    uncounted: Option<String>,
    /// The reason why the process has no figures of iterations, in words; `null` if it has figures.
    nothing: Option<&'static str>,
    /// The share of the time inside windows that tllmprof's recorder itself took on the program's threads; `null` if it
    /// was not measured.
    #[schemars(extend("unit" = "part of 1"))]
    own_share: Option<f64>,
    /// Figures of each row of the process's `calls`, in the same order.
    calls: Vec<MeanFigures>,
    /// Figures of each row of the process's `gc`, in the same order.
    gc: Vec<MeanFigures>,
    /// Means of the process's waits for the GIL, for the row `gil_wait` of the report.
    gil_wait: MeanFigures,
    /// Means of the times for which the process's threads held the GIL, for the row `gil_hold` of the report.
    gil_hold: MeanFigures,
    /// Figures of each row of the process's `functions`, in the same order.
    functions: Vec<MeanFigures>,
    /// Figures of each row of the process's `ranges`, in the same order.
    ranges: Vec<MeanFigures>,
    /// Figures of each row of the process's `kernels`, in the same order.
    kernels: Vec<KernelFigures>,
    /// The transfer rate of each row of the process's `copies`, in the same order; `null` for a row whose copies took
    /// no time.
    #[schemars(extend("unit" = "bytes/s"))]
    copies: Vec<Option<f64>>,
    /// Figures of the process's `routing`; `null` if the process has no `routing`.
    routing: Option<RoutingFigures>,
}

/// Means of the events that have one name, such as the calls of one CUDA function.
#[derive(Debug, Serialize, JsonSchema)]
struct MeanFigures {
    /// The mean number of events in one iteration.
    #[schemars(extend("unit" = "per iteration"))]
    a_step: f64,
    /// The mean duration of one event.
    mean_ns: u64,
}

/// Figures of the GPU kernels that have one name.
#[derive(Debug, Serialize, JsonSchema)]
struct KernelFigures {
    /// The share of the kernels with this name in the total time of all kernels; `null` if the driver did not report
    /// times.
    #[schemars(extend("unit" = "part of 1"))]
    share: Option<f64>,
    /// The mean duration of a kernel with this name; `null` if the driver did not report times.
    mean_ns: Option<u64>,
}

/// Load balance of the routers of MoE layers, for the number of GPUs that the process uses.
#[derive(Debug, Serialize, JsonSchema)]
struct RoutingFigures {
    /// The number of GPUs that share the experts of a layer; `null` if it is not known, or if it divides the experts of
    /// no layer evenly.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: Option<usize>,
    /// Figures of each MoE layer, in the order of the layers of the process's `routing`.
    layers: Vec<LayerFigures>,
}

/// Load balance of one MoE layer.
#[derive(Debug, Serialize, JsonSchema)]
struct LayerFigures {
    /// The number of tokens on the busiest of the GPUs that share the experts, as a multiple of the mean over these
    /// GPUs; `null` if the number of GPUs is not known or does not divide the experts evenly.
    #[schemars(extend("unit" = "multiple of the mean"))]
    on_gpus: Option<f64>,
    /// For each expert, its number of tokens as a multiple of the mean over all experts, in the order of the experts'
    /// numbers.
    #[schemars(extend("unit" = "multiple of the mean"))]
    of_mean: Vec<f64>,
}

/// Figures of the comparison of the durations of iterations between processes.
#[derive(Debug, Serialize, JsonSchema)]
struct SkewFigures {
    /// The number of iterations that at least two processes have in common.
    #[schemars(extend("unit" = "iterations"))]
    iterations: usize,
    /// The index in `processes` of the process that was the slowest in the most iterations; `null` if there is no such
    /// process.
    most_often: Option<usize>,
}

/// Returns the JSON schema of a page's data.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_of::<Data<'_>>()
}

impl<'a> Data<'a> {
    pub(crate) fn new(report: &'a Report) -> Self {
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

/// Returns the index of the process that the page shows first: the process of the first finding
/// that holds and is about a single process; 0 if there is none.
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
    /// Returns the figures on the load of experts, or `None` if no tokens were counted.
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
