//! Steps that engines make with nothing to do.
//!
//! Data only: Python functions that run the model for nobody, so that other ranks can go on, and that the function of the
//! engine's row does not see. Their calls are steps, too, with no request in them.
//!
//! `docs/engines.md` shows this table to users; a test keeps the two the same.

use crate::batch::Batch;

/// A function that runs a batch of nobody's requests.
#[derive(Clone, Copy, Debug)]
pub struct DummyStep {
    /// Its engine, as in the names of [`ENGINES`](crate::ENGINES): all whose names begin so.
    pub engine: &'static str,
    /// As `MODULE:QUALNAME`.
    pub function: &'static str,
    /// Package, versions and file in which this was read.
    pub source: &'static str,
}

pub const DUMMY_STEPS: &[DummyStep] = &[
    // A rank of data parallelism that has nothing to do, while another has. It calls the model runner's `_dummy_run`, as the run
    // that measures memory and the captures of graphs do, which are no steps.
    DummyStep {
        engine: "vLLM, model runner",
        function: "vllm.v1.worker.gpu_worker:Worker.execute_dummy_batch",
        source: "vllm 0.8.5, 0.10.0, 0.18.0, 0.26.0, 0.33.0: vllm/v1/worker/gpu_worker.py",
    },
];

/// What is in each of their batches.
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
