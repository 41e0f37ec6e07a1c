//! Replicas of engines: an engine with data parallelism may run several copies of itself, each with a separate
//! `WORLD` group in `torch.distributed`.
//!
//! This file contains only data: the location of the replica's number in a worker process. With separate worlds, a
//! process's rank in the job is the replica's number × the size of the replica's world + the rank in that world. If one
//! world contains all replicas, the rank in this world is already the rank in the job.
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

use std::fmt;

/// The object at which a path of attributes and dictionary entries begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// The path starts at the Python module with this name, if the module is imported.
    Module(&'static str),
    /// The path starts at the arguments of the function that `multiprocessing` runs in the process. The first name in
    /// the path is that of an argument.
    Arguments,
}

/// The path to a value in a worker process. Each name is an attribute or an entry of the previous value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValuePath {
    pub from: From,
    pub names: &'static [&'static str],
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            From::Module(module) => write!(f, "{module}.")?,
            From::Arguments => f.write_str("arguments: ")?,
        }
        f.write_str(&self.names.join("."))
    }
}

/// The locations, in a worker process, of an engine's data about its replicas.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    pub engine: &'static str,
    /// Location of the number of the replica to which the process belongs.
    pub index: ValuePath,
    /// Location of the number of replicas. If each replica has a separate world, the number of ranks in the job is the
    /// number of replicas × the size of the replica's world. If `count` is `None`, that number of ranks is unknown.
    pub count: Option<ValuePath>,
    /// Location of the number of ranks in a replica. If the world is larger than this number, the world contains all
    /// replicas.
    pub size: Option<ValuePath>,
    /// Location of a value that is true if all replicas share one world.
    pub share: Option<ValuePath>,
    /// Location of the process's rank in its replica, for processes without a `torch.distributed` world.
    pub rank: Option<ValuePath>,
    /// Package, versions and files in which the locations were found.
    pub source: &'static str,
}

const fn argument(names: &'static [&'static str]) -> ValuePath {
    let from = From::Arguments;
    ValuePath { from, names }
}

const fn of_context(names: &'static [&'static str]) -> ValuePath {
    let from = From::Module("sglang.srt.runtime_context");
    ValuePath { from, names }
}

/// The engines whose replicas can be found, in the order in which their locations are tried.
pub const REPLICAS: &[Replicas] = &[
    // In vLLM, the replicas of a mixture-of-experts model share one world; those of a dense model do not. For a dense
    // model, `data_parallel_rank` is always 0, so the replica's number is read from `data_parallel_index`.
    Replicas {
        engine: "vLLM",
        index: argument(&["vllm_config", "parallel_config", "data_parallel_index"]),
        count: None,
        size: Some(argument(&["vllm_config", "parallel_config", "world_size"])),
        share: None,
        rank: Some(argument(&["rank"])),
        source: "vllm 0.18.0, 0.26.0, 0.33.0: vllm/config/parallel.py, vllm/distributed/parallel_state.py, \
                 vllm/v1/engine/core.py, vllm/v1/executor/multiproc_executor.py (0.11.0: one world always)",
    },
    // In SGLang with data-parallel attention, one world contains all replicas, and `dp_size` is 1.
    Replicas {
        engine: "SGLang",
        index: of_context(&["_PARALLEL", "_stamp", "dp_rank"]),
        count: Some(of_context(&["_PARALLEL", "_config", "_fields", "dp_size"])),
        size: None,
        share: None,
        rank: None,
        source: "sglang 0.5.23: sglang/srt/runtime_context.py, sglang/srt/managers/scheduler.py",
    },
    Replicas {
        engine: "SGLang",
        index: argument(&["dp_rank"]),
        count: Some(argument(&["server_args", "dp_size"])),
        size: None,
        share: Some(argument(&["server_args", "enable_dp_attention"])),
        rank: None,
        source: "sglang 0.5.3, 0.5.10, 0.5.16: sglang/srt/managers/scheduler.py, \
                 sglang/srt/managers/data_parallel_controller.py",
    },
];

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn every_row_can_be_followed() {
        for row in REPLICAS {
            let places = [Some(row.index), row.count, row.size, row.share, row.rank];
            for place in places.into_iter().flatten() {
                assert!(!place.names.is_empty(), "{}", row.engine);
                assert!(
                    place.names.iter().all(|name| !name.contains('.')),
                    "{place}"
                );
            }
            // If a process has no world, its rank in the job is computed from its rank in the replica and from the size
            // of the replica. So a row with that rank must also have the size.
            assert!(row.rank.is_none() || row.size.is_some(), "{}", row.engine);
            // A row must have the number of replicas or their size. Without either, it is unknown if the world
            // contains only one replica.
            assert!(row.count.is_some() || row.size.is_some(), "{}", row.engine);
        }
    }

    #[test]
    fn the_page_shows_the_table() {
        let shown =
            |place: Option<ValuePath>| place.map_or(String::new(), |place| format!("`{place}`"));
        let mut table = String::from(
            "| engine | number of the replica | replicas with a world of their own | ranks of a replica | one world for all | rank without a world | source |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for row in REPLICAS {
            writeln!(
                table,
                "| {} | {} | {} | {} | {} | {} | {} |",
                row.engine,
                shown(Some(row.index)),
                shown(row.count),
                shown(row.size),
                shown(row.share),
                shown(row.rank),
                row.source
            )
            .unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
