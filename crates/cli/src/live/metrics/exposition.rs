//! Writes the Prometheus text format: a description of each metric, and its value for each process or GPU.

use std::fmt::Write;

use tllmprof_control::{Phase, Status, StepHistograms};

use super::energy::GpuEnergy;
use crate::live::record::Figures;

/// A process's status, and the figures of its record (`None` if no record can be read).
pub(crate) struct ProcessFigures {
    pub status: Status,
    pub figures: Option<Figures>,
    /// Time for which the process has been stuck, in nanoseconds; 0 if the process is not stuck. `None` if the
    /// process writes no ring file, from which this time is read.
    pub stuck_ns: Option<u64>,
}

/// A metric family: metrics with one name and one description.
pub(crate) struct Family {
    pub name: &'static str,
    help: &'static str,
    of: Of,
}

/// The type of a metric, and the function that gives its value. A process for which the function returns `None` gets no
/// line.
enum Of {
    Counter(fn(&ProcessFigures) -> Option<u64>),
    Gauge(fn(&ProcessFigures) -> Option<u64>),
    /// A counter of time. The function returns nanoseconds, and the metric is shown in seconds. `GaugeSeconds` is the
    /// same for a gauge.
    Seconds(fn(&ProcessFigures) -> Option<u64>),
    GaugeSeconds(fn(&ProcessFigures) -> Option<u64>),
    /// Histograms of iteration times, in seconds. Iterations whose batches have the same phase, such as prefill or
    /// decode, share one histogram.
    Durations,
    /// The constant 1, with properties of the process as labels.
    Info,
    /// The number of processes whose metrics are served.
    Count,
    /// The energy counter of each GPU, in joules.
    Energy,
}

/// All metric families that `tllmprof serve-metrics` serves.
pub(crate) const FAMILIES: [Family; 14] = [
    Family {
        name: "tllmprof_processes",
        help: "Processes that listen.",
        of: Of::Count,
    },
    Family {
        name: "tllmprof_process_info",
        help: "1, with the rule by which the iterations of the process are counted.",
        of: Of::Info,
    },
    Family {
        name: "tllmprof_iterations_total",
        help: "Iterations since the process began to count.",
        of: Of::Counter(|seen| Some(seen.status.iterations)),
    },
    Family {
        name: "tllmprof_iteration_seconds",
        help: "How long iterations outside windows take, by what is in their batches.",
        of: Of::Durations,
    },
    Family {
        name: "tllmprof_stuck_seconds",
        help: "Time since the latest step or collective, if tllmprof hang calls the process's ranks stuck, otherwise 0.",
        of: Of::GaugeSeconds(|seen| seen.stuck_ns),
    },
    Family {
        name: "tllmprof_window_open",
        help: "1 while a window is open.",
        of: Of::Gauge(|seen| Some(u64::from(seen.status.phase != Phase::Armed))),
    },
    Family {
        name: "tllmprof_windows_total",
        help: "Windows that were captured into the record.",
        of: Of::Counter(|seen| Some(seen.figures.as_ref()?.windows())),
    },
    Family {
        name: "tllmprof_gpu_timed_seconds_total",
        help: "Time of the iterations, inside windows, of which GPU times are taken.",
        of: Of::Seconds(|seen| Some(seen.figures.as_ref()?.inside_ns())),
    },
    Family {
        name: "tllmprof_gpu_seconds_total",
        help: "GPU time of these iterations; streams that work at once add up.",
        of: Of::Seconds(|seen| seen.figures.as_ref()?.gpu_ns()),
    },
    Family {
        name: "tllmprof_waits_total",
        help: "Calls to CUDA that waited for the GPU.",
        of: Of::Counter(|seen| Some(seen.figures.as_ref()?.waits())),
    },
    Family {
        name: "tllmprof_collections_total",
        help: "Garbage collections of Python, where they are recorded.",
        of: Of::Counter(|seen| seen.figures.as_ref()?.collections()),
    },
    Family {
        name: "tllmprof_gil_handoffs_total",
        help: "How often a thread took the GIL, where that is recorded.",
        of: Of::Counter(|seen| seen.figures.as_ref()?.handoffs()),
    },
    Family {
        name: "tllmprof_events_dropped_total",
        help: "Events that the record did not keep, as it or its disk was full.",
        of: Of::Counter(|seen| Some(seen.figures.as_ref()?.dropped())),
    },
    Family {
        name: "tllmprof_gpu_energy_joules_total",
        help: "Energy that each GPU of this machine has used since its driver was loaded, for whichever process.",
        of: Of::Energy,
    },
];

/// Returns the metrics of these processes and GPUs in the Prometheus text format.
pub(crate) fn text(seen: &[ProcessFigures], gpus: &[GpuEnergy]) -> String {
    let mut out = String::new();
    for family in &FAMILIES {
        let lines = family.lines(seen, gpus);
        if !lines.is_empty() {
            let Family { name, help, .. } = family;
            let kind = family.kind();
            // Writing to a String cannot fail.
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
    }
    out
}

impl Family {
    const fn kind(&self) -> &'static str {
        match self.of {
            Of::Counter(_) | Of::Seconds(_) | Of::Energy => "counter",
            Of::Gauge(_) | Of::GaugeSeconds(_) | Of::Info | Of::Count => "gauge",
            Of::Durations => "histogram",
        }
    }

    fn lines(&self, all: &[ProcessFigures], gpus: &[GpuEnergy]) -> String {
        let name = self.name;
        let mut out = String::new();
        if matches!(self.of, Of::Count) {
            let _ = writeln!(out, "{name} {}", all.len());
            return out;
        }
        if matches!(self.of, Of::Energy) {
            for gpu in gpus {
                let (index, uuid) = (gpu.index, escaped(&gpu.uuid));
                let joules = gpu.millijoules as f64 / 1e3;
                let _ = writeln!(out, "{name}{{gpu=\"{index}\",uuid=\"{uuid}\"}} {joules}");
            }
            return out;
        }
        for seen in all {
            let labels = labels(&seen.status);
            let _ = match &self.of {
                Of::Counter(value) | Of::Gauge(value) => match value(seen) {
                    Some(value) => writeln!(out, "{name}{{{labels}}} {value}"),
                    None => Ok(()),
                },
                Of::Seconds(ns) | Of::GaugeSeconds(ns) => match ns(seen) {
                    Some(ns) => writeln!(out, "{name}{{{labels}}} {}", seconds(ns)),
                    None => Ok(()),
                },
                Of::Info => {
                    let rule = escaped(&seen.status.rule);
                    writeln!(out, "{name}{{{labels},rule=\"{rule}\"}} 1")
                }
                Of::Durations => match &seen.status.times {
                    Some(times) => write_durations(&mut out, name, &labels, times),
                    None => Ok(()),
                },
                Of::Count | Of::Energy => Ok(()),
            };
        }
        out
    }

    /// Returns the names of the metrics in the family's lines.
    #[cfg(test)]
    fn names(&self) -> Vec<String> {
        match self.of {
            Of::Durations => ["_bucket", "_sum", "_count"]
                .map(|end| format!("{}{end}", self.name))
                .to_vec(),
            _ => vec![self.name.to_owned()],
        }
    }
}

/// Writes the lines of the histograms of iteration times. There is one histogram for each phase of batches, such as
/// prefill or decode.
fn write_durations(
    out: &mut String,
    name: &str,
    labels: &str,
    times: &StepHistograms,
) -> std::fmt::Result {
    for taken in &times.phases {
        let phase = escaped(taken.phase.as_deref().unwrap_or("unknown"));
        let labels = format!("{labels},phase=\"{phase}\"");
        let mut within = 0_u64;
        let bounds = times.bounds_ns.iter().map(|ns| seconds(*ns).to_string());
        for (le, count) in bounds.chain(["+Inf".to_owned()]).zip(&taken.counts) {
            within = within.saturating_add(*count);
            writeln!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {within}")?;
        }
        writeln!(out, "{name}_sum{{{labels}}} {}", seconds(taken.sum_ns))?;
        writeln!(out, "{name}_count{{{labels}}} {within}")?;
    }
    Ok(())
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn labels(status: &Status) -> String {
    let rank = status.rank.map(|rank| rank.to_string());
    let text = |text: &Option<String>| escaped(text.as_deref().unwrap_or_default());
    format!(
        "pid=\"{}\",host=\"{}\",run=\"{}\",rank=\"{}\",engine=\"{}\"",
        status.pid,
        escaped(&status.host),
        text(&status.run),
        text(&rank),
        text(&status.engine)
    )
}

/// Escapes a text for use as the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use regex::Regex;
    use serde_json::Value;
    use tllmprof_control::Taken;

    use super::*;

    #[test]
    fn each_metric_is_described_once_before_its_lines() {
        let status = |pid: u64| Status {
            pid,
            host: "a \"b\"\\".to_owned(),
            rank: Some(3),
            iterations: 50,
            ..Status::default()
        };
        let seen = [7, 8].map(|pid| ProcessFigures {
            status: status(pid),
            figures: None,
            stuck_ns: (pid == 8).then_some(41_500_000_000),
        });
        let gpu = GpuEnergy {
            index: 1,
            uuid: "GPU-1".to_owned(),
            millijoules: 1_234_567,
        };
        let text = text(&seen, &[gpu]);
        let begin = "# HELP tllmprof_processes Processes that listen.\n# TYPE tllmprof_processes gauge\n\
                     tllmprof_processes 2\n";
        assert!(text.starts_with(begin), "{text}");
        let labels = r#"host="a \"b\"\\",run="",rank="3",engine="""#;
        let expected = format!(
            "# TYPE tllmprof_iterations_total counter\n\
             tllmprof_iterations_total{{pid=\"7\",{labels}}} 50\n\
             tllmprof_iterations_total{{pid=\"8\",{labels}}} 50\n"
        );
        assert!(text.contains(&expected), "{text}");
        let expected = format!(
            "# TYPE tllmprof_stuck_seconds gauge\ntllmprof_stuck_seconds{{pid=\"8\",{labels}}} 41.5\n#"
        );
        assert!(
            text.contains(&expected),
            "only process 8 has a ring: {text}"
        );
        let energy = "tllmprof_gpu_energy_joules_total";
        let expected =
            format!("# TYPE {energy} counter\n{energy}{{gpu=\"1\",uuid=\"GPU-1\"}} 1234.567\n");
        assert!(text.ends_with(&expected), "{text}");
        // Neither process has a record, so the figures that come from a record are missing.
        assert!(
            !text.contains("gpu_seconds") && !text.contains("collections"),
            "{text}"
        );
    }

    #[test]
    fn times_are_a_histogram_for_each_phase() {
        let taken = |phase: Option<&str>, counts: [u64; 4], sum_ns| Taken {
            phase: phase.map(str::to_owned),
            counts: counts.to_vec(),
            sum_ns,
        };
        let times = StepHistograms {
            bounds_ns: vec![500_000, 7_500_000, 1_000_000_000],
            phases: vec![
                taken(Some("decode"), [1, 0, 2, 3], 4_000_000_001),
                taken(None, [0, 5, 0, 0], 5_000_000),
            ],
        };
        let seen = ProcessFigures {
            status: Status {
                pid: 7,
                times: Some(times),
                ..Status::default()
            },
            figures: None,
            stuck_ns: None,
        };
        let text = text(&[seen], &[]);
        assert!(!text.contains("energy"), "there is no GPU: {text}");
        let lines = |phase: &str| {
            let label = format!(",phase=\"{phase}\"");
            let lines = text.lines().filter(|line| line.contains(&label));
            let lines = lines.map(|line| {
                let (name, rest) = line.split_once('{').unwrap();
                let (_, rest) = rest.split_once(&label).unwrap();
                format!(
                    "{} {rest}",
                    name.trim_start_matches("tllmprof_iteration_seconds_")
                )
            });
            lines.collect::<Vec<_>>()
        };
        let decode = [
            r#"bucket ,le="0.0005"} 1"#,
            r#"bucket ,le="0.0075"} 1"#,
            r#"bucket ,le="1"} 3"#,
            r#"bucket ,le="+Inf"} 6"#,
            "sum } 4.000000001",
            "count } 6",
        ];
        assert_eq!(lines("decode"), decode);
        assert_eq!(lines("unknown")[4..], ["sum } 0.005", "count } 5"]);
    }

    /// Collects the queries that a Grafana dashboard contains. `value` is the dashboard, or a part of it, as JSON.
    fn queries(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(all) => {
                for (name, value) in all {
                    if (name == "expr" || name == "query")
                        && let Some(query) = value.as_str()
                    {
                        found.push(query.to_owned());
                    }
                    queries(value, found);
                }
            }
            Value::Array(all) => all.iter().for_each(|value| queries(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_there_are() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/grafana.json");
        let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let known: BTreeSet<_> = FAMILIES.iter().flat_map(Family::names).collect();
        let mut found = Vec::new();
        queries(&dashboard, &mut found);
        let metric = Regex::new(r"tllmprof_[a-z_]+").unwrap();
        let mut asked = BTreeSet::new();
        for query in &found {
            let names: Vec<_> = metric
                .find_iter(query)
                .map(|name| name.as_str().to_owned())
                .collect();
            assert!(!names.is_empty() || query == "prometheus", "{query}");
            assert!(names.iter().all(|name| known.contains(name)), "{query}");
            asked.extend(names);
        }
        assert!(asked.len() >= 6, "{asked:?}");
    }
}
