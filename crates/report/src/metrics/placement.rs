//! Comparison of the NUMA node on which a process's iterations run with the NUMA nodes of its GPUs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::inside::spans;
use super::{MeasuredProcess, SampledRecord};
use crate::events::iteration::Iteration;
use crate::events::window::Window;

/// The NUMA nodes of the iterations' thread and of the GPU that is farthest from it, inside windows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct Placement {
    /// The number of the GPU, as the driver numbers GPUs.
    pub device: u8,
    /// The number of the GPU's NUMA node.
    #[serde(rename = "gpu_node")]
    pub gpu: u16,
    /// The number of NUMA nodes of the machine.
    #[schemars(extend("unit" = "nodes"))]
    pub nodes: u32,
    /// The NUMA node on which the iterations' thread ran longest; `null` if it is not known, or if the machine has
    /// only one node.
    #[serde(rename = "thread_node")]
    pub thread: Option<u16>,
    /// The distance from the GPU's node to `thread_node`, as the firmware states it. A distance of 10 means the same
    /// node. `null` if it is not known.
    #[schemars(extend("unit" = "distance"))]
    pub distance: Option<u32>,
    /// The share of the time in which the iterations' thread ran on another node than the GPU's, as a part of 1;
    /// `null` if it is not known.
    pub far_share: Option<f64>,
    /// The number of times that the iterations' thread moved to another node.
    #[schemars(extend("unit" = "moves"))]
    pub moves: u64,
}

/// The NUMA node of a GPU, and the distances from that node to each node of the machine.
struct GpuNode {
    device: u8,
    node: u16,
    distances: BTreeMap<u16, u32>,
}

impl GpuNode {
    /// Parses the text for a GPU in a record; `None` if the text has another form. The text `0 1 0:21,1:10` means: GPU
    /// 0 is on node 1, which has the distance 21 to node 0 and 10 to node 1.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (device, node) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let pair = |item: &str| {
            let (node, distance) = item.split_once(':')?;
            Some((node.parse().ok()?, distance.parse().ok()?))
        };
        let distances = words.next()?.split(',').map(pair).collect::<Option<_>>()?;
        Some(Self {
            device,
            node,
            distances,
        })
    }
}

/// Compares the NUMA node of the thread that runs the iterations with the nodes of the process's GPUs (`devices`).
/// Returns the result for the GPU whose node differed from the thread's node for the longest time; `None` if no GPU's
/// node is known.
pub(crate) fn find(
    of: MeasuredProcess<'_>,
    devices: &[u8],
    record: &SampledRecord<'_>,
) -> Option<Placement> {
    let nodes = record
        .gpu_nodes
        .iter()
        .filter_map(|text| GpuNode::parse(text));
    let gpus = nodes.filter(|gpu| devices.contains(&gpu.device));
    let times = times(of, record);
    let all: u64 = times.iter().map(|(_, time)| time).sum();
    let changes = times
        .windows(2)
        .filter(|pair| pair[0].0 != pair[1].0)
        .count();
    let mut by_node: BTreeMap<u16, u64> = BTreeMap::new();
    for (node, time) in times {
        *by_node.entry(node).or_default() += time;
    }
    let main = by_node
        .iter()
        .max_by_key(|(_, time)| **time)
        .map(|(node, _)| *node);
    let placements = gpus.map(|gpu| {
        let near = by_node.get(&gpu.node).copied().unwrap_or(0);
        Placement {
            device: gpu.device,
            gpu: gpu.node,
            nodes: gpu.distances.len() as u32,
            thread: main,
            distance: main.and_then(|node| gpu.distances.get(&node).copied()),
            far_share: (all > 0).then(|| (all - near) as f64 / all as f64),
            moves: changes as u64,
        }
    });
    placements.reduce(|far, one| {
        if one.far_share > far.far_share {
            one
        } else {
            far
        }
    })
}

/// Returns the NUMA nodes on which the thread that runs the iterations ran, in the order of time,
/// each with the time inside windows in nanoseconds.
fn times(of: MeasuredProcess<'_>, record: &SampledRecord<'_>) -> Vec<(u16, u64)> {
    let (spans, tid) = (spans(of.windows), thread(of.windows));
    let Some((_, end)) = spans.ends() else {
        return Vec::new();
    };
    let all = record.samples.threads.iter();
    let mut found: Vec<_> = all
        .filter(|one| one.pid == of.pid && Some(one.tid) == tid)
        .map(|one| (one.from, one.node))
        .collect();
    found.sort_unstable();
    let until = found.iter().skip(1).map(|(from, _)| *from).chain([end]);
    let times = found.iter().zip(until);
    times
        .map(|((from, node), until)| (*node, spans.overlap(*from, until)))
        .filter(|(_, time)| *time > 0)
        .collect()
}

/// Returns the thread that runs the most iterations; `None` if the windows have no iterations.
fn thread(windows: &[Window]) -> Option<u32> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let all = windows.iter().flat_map(Window::qualified);
    for Iteration { thread, .. } in all {
        *counts.entry(*thread).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(thread, _)| thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_record() {
        let gpu = GpuNode::parse("2 1 0:21,1:10").unwrap();
        assert_eq!((gpu.device, gpu.node), (2, 1));
        assert_eq!(gpu.distances, BTreeMap::from([(0, 21), (1, 10)]));
        for bad in ["", "0 1", "0 x 0:10", "0 1 0:10,", "0 1 0=10"] {
            assert!(GpuNode::parse(bad).is_none(), "{bad}");
        }
    }
}
