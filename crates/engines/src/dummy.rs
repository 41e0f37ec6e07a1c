//! Steps that engines make without requests.
//!
//! This file holds only data: Python functions that run the model on an empty batch so that other ranks can
//! continue, and whose calls the function in the engine's row does not see. Their calls are steps, too, without a
//! request.
//!
//! `docs/engines.md` shows this table to users; a test keeps the two the same.

use crate::batch::Batch;

/// A function that runs a batch without requests.
#[derive(Clone, Copy, Debug)]
pub struct DummyStep {
    /// The engine: all names in [`ENGINES`](crate::ENGINES) that begin with this.
    pub engine: &'static str,
    /// The function as `MODULE:QUALNAME`.
    pub function: &'static str,
    /// Package, versions and file in which this was read.
    pub source: &'static str,
}

pub const DUMMY_STEPS: &[DummyStep] = &[
    // A rank of data parallelism without requests, while another rank has some. It calls the model runner's
    // `_dummy_run`. So do the memory measurement and graph captures, which are not steps.
    DummyStep {
        engine: "vLLM, model runner",
        function: "vllm.v1.worker.gpu_worker:Worker.execute_dummy_batch",
        source: "vllm 0.8.5, 0.10.0, 0.18.0, 0.26.0, 0.33.0: vllm/v1/worker/gpu_worker.py",
    },
];

/// The batch of these steps.
pub const NOTHING: &[Batch] = &[Batch {
    requests: "0",
    tokens: "0",
    prefill_tokens: "0",
    versions: "",
}];

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn the_page_shows_the_table() {
        let mut table = String::from("| engine | function | source |\n|---|---|---|\n");
        for dummy in DUMMY_STEPS {
            let DummyStep {
                engine,
                function,
                source,
            } = dummy;
            writeln!(table, "| {engine} | `{function}` | {source} |").unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
