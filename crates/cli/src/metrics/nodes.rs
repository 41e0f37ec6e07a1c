//! NUMA nodes of the GPUs, and of the processors on which the program's threads run.

use std::collections::HashMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process_status::ProcessStatus;

/// Number of the field in `/proc/PID/stat`, counted from 1, with the time in user mode.
const USER_TIME: usize = 14;
/// Number of the field in `/proc/PID/stat` with the time in the kernel.
const SYSTEM_TIME: usize = 15;
/// Number of the field in `/proc/PID/stat` with the processor on which the thread last ran.
const PROCESSOR: usize = 39;
/// The minimum run time, in clock ticks between two examinations of all threads, for which a thread counts as busy.
const MIN_BUSY_TICKS: u64 = 5;
/// Maximum number of threads that are examined in a process.
const MAX_THREADS: usize = 1024;

/// The NUMA nodes of the machine, and the nodes on which threads were last seen.
pub(crate) struct NumaNodes {
    root: PathBuf,
    /// The NUMA node of each processor. Empty if the machine has only one node.
    of_processor: Vec<Option<u16>>,
    threads: HashMap<(u64, u64), WatchedThread>,
}

#[derive(Default)]
struct WatchedThread {
    node: Option<u16>,
    ticks: u64,
    is_busy: bool,
}

/// A thread that is on another NUMA node than at the last examination, or whose node was found for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MovedThread {
    pub pid: u32,
    pub tid: u32,
    pub node: u16,
}

impl NumaNodes {
    /// Reads the machine's NUMA nodes from `/sys`, or from the folder that the variable `TLLMPROF_SYSFS` names.
    pub(crate) fn read() -> Self {
        Self::under(env::var_os("TLLMPROF_SYSFS").map_or_else(|| "/sys".into(), PathBuf::from))
    }

    fn under(root: PathBuf) -> Self {
        let mut of_processor = Vec::new();
        let nodes = numbers(&root);
        for node in nodes.iter().filter(|_| nodes.len() > 1) {
            let list = root.join(format!("devices/system/node/node{node}/cpulist"));
            for processor in processors(&fs::read_to_string(list).unwrap_or_default()) {
                if processor >= of_processor.len() {
                    of_processor.resize(processor + 1, None);
                }
                of_processor[processor] = Some(*node);
            }
        }
        Self {
            root,
            of_processor,
            threads: HashMap::new(),
        }
    }

    /// Returns the NUMA node of a GPU and the distances from this node to all nodes, in the form of
    /// [`tllmprof_record::Info::GpuNode`]. `None` if the machine does not report which node the GPU belongs to.
    pub(crate) fn of_gpu(&self, ordinal: u8, address: &str) -> Option<String> {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let node = self
            .root
            .join("bus/pci/devices")
            .join(address)
            .join("numa_node");
        // The file contains -1 if the firmware does not report the GPU's node. Then the parse fails.
        let node: u16 = read(node)?.trim().parse().ok()?;
        let folder = self.root.join(format!("devices/system/node/node{node}"));
        let distances = read(folder.join("distance"))?;
        let mut text = format!("{ordinal} {node} ");
        for (place, (id, distance)) in numbers(&self.root)
            .iter()
            .zip(distances.split_whitespace())
            .enumerate()
        {
            let _ = write!(text, "{}{id}:{distance}", if place > 0 { "," } else { "" });
        }
        Some(text)
    }

    /// Returns the threads of `processes` that are on another NUMA node than when they were last examined, and the
    /// threads whose node is found for the first time. If `all` is false, only threads that were busy at the last
    /// examination of all threads are examined.
    pub(crate) fn moved(
        &mut self,
        processes: impl Iterator<Item = u64>,
        all: bool,
    ) -> Vec<MovedThread> {
        let mut moved = Vec::new();
        if self.of_processor.is_empty() {
            return moved;
        }
        if all {
            for pid in processes {
                let tasks = fs::read_dir(format!("/proc/{pid}/task"));
                let names = tasks
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.file_name());
                let tids = names.filter_map(|name| name.to_str()?.parse().ok());
                for tid in tids.take(MAX_THREADS) {
                    self.threads.entry((pid, tid)).or_default();
                }
            }
        }
        let of_processor = &self.of_processor;
        self.threads.retain(|(pid, tid), thread| {
            if !all && !thread.is_busy {
                return true;
            }
            let path = format!("/proc/{pid}/task/{tid}/stat");
            let stat = fs::read(path).ok();
            let Some(status) =
                stat.and_then(|stat| ProcessStatus::parse(&String::from_utf8_lossy(&stat)))
            else {
                return false;
            };
            if all {
                let ticks = [USER_TIME, SYSTEM_TIME].map(|of| status.field::<u64>(of).unwrap_or(0));
                let ticks = ticks[0] + ticks[1];
                thread.is_busy = ticks >= thread.ticks.saturating_add(MIN_BUSY_TICKS);
                thread.ticks = ticks;
            }
            let processor = status.field::<usize>(PROCESSOR);
            let node = processor.and_then(|of| of_processor.get(of).copied().flatten());
            if node.is_some() && node != thread.node {
                thread.node = node;
                moved.extend(node.map(|node| MovedThread {
                    pid: *pid as u32,
                    tid: *tid as u32,
                    node,
                }));
            }
            true
        });
        moved
    }
}

/// Returns the numbers of the machine's NUMA nodes, in ascending order.
fn numbers(root: &Path) -> Vec<u16> {
    let entries = fs::read_dir(root.join("devices/system/node"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let mut numbers: Vec<u16> = names
        .filter_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the numbers of the processors in a list such as `0-3,8`.
fn processors(list: &str) -> impl Iterator<Item = usize> {
    /// The largest number that is accepted as a processor's number. It bounds the length of a range.
    const MAX_PROCESSOR: usize = 1 << 16;
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(first..last.min(MAX_PROCESSOR) + 1)
    };
    list.trim().split(',').filter_map(range).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder with the structure of `/sys`. `nodes` lists the processors and the distances of each NUMA node.
    /// The GPU at address 1a belongs to node 1; the node of the GPU at address 1b is not known.
    fn made(nodes: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (node, (processors, distances)) in nodes.iter().enumerate() {
            let folder = format!("devices/system/node/node{node}");
            write(&format!("{folder}/cpulist"), processors);
            write(&format!("{folder}/distance"), distances);
        }
        write("bus/pci/devices/0000:1a:00.0/numa_node", "1\n");
        write("bus/pci/devices/0000:1b:00.0/numa_node", "-1\n");
        root
    }

    #[test]
    fn lists_of_processors() {
        let all = |list| processors(list).collect::<Vec<_>>();
        assert_eq!(all("0-2,8\n"), [0, 1, 2, 8]);
        assert!(all("\n").is_empty());
        assert!(all("3-1,x,5-").is_empty());
    }

    #[test]
    fn a_gpu_has_a_node_with_distances() {
        let root = made(&[("0-3", "10 21\n"), ("4-7", "21 10\n")]);
        let nodes = NumaNodes::under(root.path().into());
        assert_eq!(
            nodes.of_gpu(2, "0000:1a:00.0").as_deref(),
            Some("2 1 0:21,1:10")
        );
        assert_eq!(nodes.of_gpu(2, "0000:1b:00.0"), None);
        assert_eq!(nodes.of_gpu(2, "0000:1c:00.0"), None);
        assert_eq!(nodes.of_processor[4], Some(1));
    }

    #[test]
    fn a_thread_is_reported_when_its_node_changes() {
        let own = u64::from(std::process::id());
        let root = made(&[("\n", "10 21"), ("0-9999", "21 10")]);
        let mut nodes = NumaNodes::under(root.path().into());
        let moved = nodes.moved([own].into_iter(), true);
        assert!(
            moved
                .iter()
                .any(|moved| u64::from(moved.tid) == own && moved.node == 1),
            "{moved:?}"
        );
        assert!(nodes.moved([own].into_iter(), false).is_empty());
        nodes.of_processor.fill(Some(0));
        assert!(
            nodes
                .moved([own].into_iter(), true)
                .iter()
                .any(|moved| moved.node == 0)
        );
        assert!(!nodes.threads.is_empty());
        let one = made(&[("0-9999", "10")]);
        assert!(
            NumaNodes::under(one.path().into())
                .moved([own].into_iter(), true)
                .is_empty()
        );
    }
}
