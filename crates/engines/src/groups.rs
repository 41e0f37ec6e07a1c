//! Groups of ranks: the tensor-, pipeline-, expert- and data-parallel groups of engines and frameworks.
//!
//! This file contains only data: for engines, the location of the groups in a worker process; for frameworks, the
//! descriptions that they give to groups of `torch.distributed`.
//!
//! `docs/engines.md` shows the tables in this file to users, and a test compares that page with this file.

/// The location of the groups of ranks in an engine's worker process. Each group is a Python object with the attributes
/// `rank_in_group`, `world_size` and `ranks`.
#[derive(Clone, Copy, Debug)]
pub struct EngineGroups {
    pub engine: &'static str,
    pub module: &'static str,
    /// The name of each group of ranks, and the variable of the module that contains the group.
    pub groups: &'static [(&'static str, &'static str)],
    /// Package, versions and files in which the location was found.
    pub source: &'static str,
}

/// The engines whose groups of ranks can be found, in the order in which their locations are tried.
pub const ENGINE_GROUPS: &[EngineGroups] = &[
    EngineGroups {
        engine: "vLLM",
        module: "vllm.distributed.parallel_state",
        groups: &[("TP", "_TP"), ("PP", "_PP"), ("EP", "_EP"), ("DP", "_DP")],
        source: "vllm 0.11.0, 0.18.0, 0.26.0, 0.33.0: vllm/distributed/parallel_state.py",
    },
    EngineGroups {
        engine: "SGLang",
        module: "sglang.srt.distributed.parallel_state",
        groups: &[("TP", "_TP"), ("PP", "_PP"), ("EP", "_MOE_EP")],
        source: "sglang 0.5.3, 0.5.10, 0.5.16, 0.5.23: sglang/srt/distributed/parallel_state.py",
    },
];

/// Groups that frameworks create, as triples: the group's name, its description in `torch.distributed`
/// (`group_desc`), and the framework.
pub const DESCRIBED_GROUPS: &[(&str, &str, &str)] = &[
    ("TP", "mesh_tp", "PyTorch's `DeviceMesh`"),
    ("PP", "mesh_pp", "PyTorch's `DeviceMesh`"),
    ("EP", "mesh_ep", "PyTorch's `DeviceMesh`"),
    ("DP", "mesh_dp", "PyTorch's `DeviceMesh`"),
    ("TP", "TENSOR_MODEL_PARALLEL_GROUP", "Megatron Core"),
    ("PP", "PIPELINE_MODEL_PARALLEL_GROUP", "Megatron Core"),
    ("EP", "EXPERT_MODEL_PARALLEL_GROUP", "Megatron Core"),
    ("DP", "DATA_PARALLEL_GROUP", "Megatron Core"),
];

/// The names of the groups of ranks (tensor, pipeline, expert and data parallelism), in the order in which reports show
/// them.
pub const GROUPS: [&str; 4] = ["TP", "PP", "EP", "DP"];

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn groups_have_known_names() {
        let of_engines = ENGINE_GROUPS.iter().flat_map(|row| row.groups);
        let names = of_engines.map(|group| group.0);
        let described = DESCRIBED_GROUPS.iter().map(|row| row.0);
        for name in names.chain(described) {
            assert!(GROUPS.contains(&name), "{name}");
        }
    }

    #[test]
    fn the_page_shows_the_tables() {
        let mut table = String::from("| engine | module | groups | source |\n|---|---|---|---|\n");
        for row in ENGINE_GROUPS {
            let groups = row.groups.iter().map(|(name, at)| format!("{name} `{at}`"));
            let groups = groups.collect::<Vec<_>>().join(", ");
            let EngineGroups {
                engine,
                module,
                source,
                ..
            } = row;
            writeln!(table, "| {engine} | `{module}` | {groups} | {source} |").unwrap();
        }
        table += "\n| group | description | of |\n|---|---|---|\n";
        for (name, description, of) in DESCRIBED_GROUPS {
            writeln!(table, "| {name} | `{description}` | {of} |").unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
