//! Reads a record of GPU metrics, and compares its values with those that the stand-in for NVML computes.

use std::collections::BTreeMap;
use std::path::Path;

use tllmprof_record::{Clock, Ended, Entry, Info, Metric, Reader, Strings, What};

const GPM: [(u32, Metric); 8] = [
    (2, Metric::SmUtil),
    (3, Metric::SmOccupancy),
    (5, Metric::TensorUtil),
    (10, Metric::DramBandwidth),
    (21, Metric::PcieReceived),
    (20, Metric::PcieSent),
    (60, Metric::NvlinkReceived),
    (61, Metric::NvlinkSent),
];

/// Each metric, its value for NVML's GPU 0, and the difference by which the value for NVML's GPU 1 is larger.
const PLAIN: [(Metric, u64, u64); 6] = [
    (Metric::GpuUtil, 71_000, 1000),
    (Metric::MemoryUtil, 31_000, 1000),
    (Metric::Power, 345_678, 1),
    (Metric::SmClock, 1_980_000, 1000),
    (Metric::MemoryUsed, 1_000_000, 1000),
    (Metric::Temperature, 51_000, 1000),
];

/// A record of metrics: the values of each device and metric in order, the start and end of each sample, and the data
/// about the machine and the run.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub values: BTreeMap<(u8, Metric), Vec<u64>>,
    pub times: BTreeMap<u8, Vec<(u64, u64)>>,
    pub facts: Vec<(Info, String)>,
    pub ended: Option<Ended>,
    pub pid: u32,
}

impl Read {
    pub(crate) fn new(path: &Path) -> Self {
        let reader = Reader::open(path).unwrap();
        let header = reader.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut read = Self {
            ended: header.ended,
            pid: header.pid,
            ..Self::default()
        };
        let mut strings = Strings::default();
        let mut facts = Vec::new();
        let damage = reader.read(|entry| match entry {
            Entry::String { id, bytes } => strings.add(id, bytes),
            Entry::Event { event, .. } => match event.what {
                What::GpuMetric {
                    device,
                    metric,
                    thousandths,
                } => {
                    let values = read.values.entry((device, metric.unwrap())).or_default();
                    values.push(thousandths);
                    let start = clock.ns(event.start);
                    let time = (start, start + event.duration);
                    let times = read.times.entry(device).or_default();
                    if times.last() != Some(&time) {
                        times.push(time);
                    }
                }
                What::Info { key, value } => facts.push((key.unwrap(), value)),
                // Other tests (in `tests/diagnosis`) check these events.
                What::GpuProcess { .. } | What::ThreadNode { .. } => (),
                other => panic!("{other:?}"),
            },
        });
        assert!(damage.unwrap().is_none());
        let text = |(key, value): &(Info, u64)| match key {
            Info::CudaDriver => (*key, value.to_string()),
            _ => (*key, strings.get(*value as u32).to_owned()),
        };
        read.facts = facts.iter().map(text).collect();
        read
    }

    pub(crate) fn fact(&self, key: Info) -> Vec<&str> {
        let all = self.facts.iter().filter(|(of, _)| *of == key);
        all.map(|(_, text)| text.as_str()).collect()
    }

    pub(crate) fn has_plain(&self, device: u8, more: u64) {
        for (metric, value, difference) in PLAIN {
            let values = &self.values[&(device, metric)];
            assert!(values.len() >= 3, "{values:?}");
            let expected = value + more * difference;
            assert!(
                values.iter().all(|v| *v == expected),
                "{metric:?}: {values:?}"
            );
        }
    }

    pub(crate) fn has_gpm(&self, device: u8, of: u64) {
        for (id, metric) in GPM {
            let Some(values) = self.values.get(&(device, metric)) else {
                assert!(of == 1 && id >= 60, "{metric:?}");
                continue;
            };
            assert!(!(of == 1 && id >= 60));
            for (n, value) in (1..).zip(values) {
                assert_eq!(
                    *value,
                    100_000 * of + 1000 * u64::from(id) + 125 * n,
                    "{metric:?}"
                );
            }
        }
    }
}
