//! Functions of engines that run steps without requests.
//!
//! This file contains only data: Python functions that run the model on an empty batch, so that other ranks can
//! continue. The step function in the engine's row (`engines.rs`) is not called for these batches. Calls of the
//! functions below count as steps too, with an empty batch.
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

use crate::batch::Batch;

/// A function of an engine that runs the model on a batch without requests.
#[derive(Clone, Copy, Debug)]
pub struct DummyStep {
    /// The beginning of an engine's name in [`ENGINES`](crate::ENGINES). The row applies to every engine whose name
    /// begins with this text.
    pub engine: &'static str,
    /// The name of the function, as `MODULE:QUALNAME`.
    pub function: &'static str,
    /// Package, versions and file in which the function was found.
    pub source: &'static str,
}

pub const DUMMY_STEPS: &[DummyStep] = &[
    // A data-parallel rank calls this function when the rank has no requests but another rank has some. The function
    // calls `_dummy_run` of the model runner. `_dummy_run` itself is not listed, because the memory measurement and
    // graph captures, which are not steps, call it too.
    DummyStep {
        engine: "vLLM, model runner",
        function: "vllm.v1.worker.gpu_worker:Worker.execute_dummy_batch",
        source: "vllm 0.8.5, 0.10.0, 0.18.0, 0.26.0, 0.33.0: vllm/v1/worker/gpu_worker.py",
    },
];

/// The formulas for the batch of a dummy step. The batch is empty, so all sizes are 0.
pub(crate) const NOTHING: &[Batch] = &[Batch {
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
