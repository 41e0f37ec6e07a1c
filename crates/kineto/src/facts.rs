//! Reads the top-level values of a trace, which describe the process and the machine.

use std::path::Path;

use serde_json::Value;
use tllmprof_foreign::rank_of_file;

/// Maximum number of GPUs whose names are kept: the number that tllmprof's data format can distinguish.
const GPUS: usize = 256;

/// Maximum number of process groups that are stored. Further groups are left out.
const GROUPS: usize = 256;
/// Maximum number of ranks of a process group that is stored. A group with more ranks is left out.
const RANKS: usize = 1 << 16;

/// The values at the top level of a trace that are used; the events are not among them.
#[derive(Debug, Default)]
pub struct Metadata {
    /// Nanoseconds from 1970 to the trace's time 0; `None` if the times in the trace count from
    /// 1970.
    pub base: Option<i64>,
    pub host: String,
    /// The version of the CUDA driver, in CUDA's numbering: 12040 is 12.4.
    pub cuda_driver: Option<u64>,
    pub has_stacks: bool,
    /// True if tllmprof itself exported the trace.
    pub is_own: bool,
    /// Numbers and names of the GPUs that the trace lists.
    pub gpus: Vec<(u8, String)>,
    pub rank: Option<u64>,
    pub world_size: Option<u64>,
    pub groups: Vec<ProcessGroup>,
}

/// A process group of `torch.distributed` to which the process belongs.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessGroup {
    /// The group's number and its description, such as `0 default_pg`.
    pub name: String,
    /// The members of the group, in the order of their ranks within the group. Each is given by its rank in the whole
    /// job.
    pub ranks: Vec<u64>,
}

/// Top-level keys of a trace whose values [`Metadata`] stores.
pub(crate) const KEYS: &[&str] = &[
    "baseTimeNanoseconds",
    "host_name",
    "cuda_driver_version",
    "with_stack",
    "deviceProperties",
    "distributedInfo",
    "otherData",
];

impl Metadata {
    /// Stores the top-level value `value` of the trace. `key` is one of [`KEYS`].
    pub fn take(&mut self, key: &str, value: &Value) {
        match key {
            "baseTimeNanoseconds" => self.base = value.as_i64(),
            "host_name" => self.host = value.as_str().unwrap_or("").to_owned(),
            "cuda_driver_version" => self.cuda_driver = value.as_u64(),
            "with_stack" => {
                self.has_stacks = value.as_i64() == Some(1) || value.as_bool() == Some(true)
            }
            "deviceProperties" => self.devices(value),
            "distributedInfo" => self.distributed(value),
            "otherData" if value["producer"] == "tllmprof" => {
                self.is_own = true;
                let base = value["unix_minus_monotonic_ns"].as_str();
                self.base = base.and_then(|base| base.parse().ok());
            }
            _ => (),
        }
    }

    fn devices(&mut self, value: &Value) {
        for device in value.as_array().into_iter().flatten() {
            let id = device["id"].as_u64().and_then(|id| u8::try_from(id).ok());
            let name = device["name"].as_str().filter(|name| !name.is_empty());
            if let (Some(id), Some(name)) = (id, name) {
                self.gpus.push((id, name.to_owned()));
            }
        }
        self.gpus.truncate(GPUS);
    }

    fn distributed(&mut self, value: &Value) {
        self.rank = value["rank"].as_u64();
        self.world_size = value["world_size"].as_u64().filter(|size| *size > 0);
        let groups = value["pg_config"].as_array().into_iter().flatten();
        let groups = groups.filter_map(|group| {
            let ranks: Option<Vec<_>> = group["ranks"]
                .as_array()?
                .iter()
                .map(Value::as_u64)
                .collect();
            let ranks = ranks.filter(|ranks| (2..=RANKS).contains(&ranks.len()))?;
            let text = |key: &str| group[key].as_str().unwrap_or("").to_owned();
            let name = format!("{} {}", text("pg_name"), text("pg_desc"));
            Some(ProcessGroup { name, ranks })
        });
        self.groups = groups.take(GROUPS).collect();
    }
}

/// Returns the rank that the file's name contains: the number after `rank`. If there is none, the
/// number after `TP` is the rank, provided that the name shows no other kind of parallelism (data,
/// pipeline or expert).
pub(crate) fn rank_of_name(file: &Path) -> Option<u64> {
    rank_of_file(file).or_else(|| {
        let name = file.file_name()?.to_str()?;
        let has_others = ["DP-", "PP-", "EP-"]
            .iter()
            .any(|other| name.contains(other));
        let (_, rest) = name.rsplit_once("TP").filter(|_| !has_others)?;
        let rest = rest.strip_prefix(['-', '_', '.', '=']).unwrap_or(rest);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_in_the_names_that_servers_and_launchers_give() {
        let rank = |name: &str| rank_of_name(Path::new(name));
        assert_eq!(rank("/traces/rank_3.json.gz"), Some(3));
        assert_eq!(rank("ns_trace_rank-12.trace.json"), Some(12));
        assert_eq!(
            rank("dp0_pp0_tp1_dcp0_ep1_rank1.1780.pt.trace.json.gz"),
            Some(1)
        );
        assert_eq!(rank("1712345-TP-2.trace.json.gz"), Some(2));
        assert_eq!(rank("1712345-TP-2-DP-1.trace.json.gz"), None);
        assert_eq!(rank("frank.json"), None);
        assert_eq!(rank("host_77.1712345.pt.trace.json"), None);
    }

    #[test]
    fn groups_of_one_rank_are_none() {
        let mut metadata = Metadata::default();
        let value = serde_json::json!({
            "rank": 1, "world_size": 4,
            "pg_config": [
                {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
                {"pg_name": "1", "pg_desc": "undefined", "ranks": [1]},
                {"pg_name": "2", "ranks": "all"},
                7
            ]
        });
        metadata.take("distributedInfo", &value);
        assert_eq!((metadata.rank, metadata.world_size), (Some(1), Some(4)));
        let group = ProcessGroup {
            name: "0 default_pg".to_owned(),
            ranks: vec![0, 1, 2, 3],
        };
        assert_eq!(metadata.groups, [group]);
    }
}
