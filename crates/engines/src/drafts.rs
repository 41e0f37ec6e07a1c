//! Functions of engines that run passes of a draft model.
//!
//! This file contains only data. In speculative decoding, a small draft model proposes tokens, and the main model
//! checks them in one pass. In some engines, both models call the step function in the engine's row (`engines.rs`).
//! Passes during a call of one of the functions below belong to the draft model, and do not count as steps.
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

/// A function that runs passes of a draft model in speculative decoding.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// The beginning of an engine's name in [`ENGINES`](crate::ENGINES). The row applies to every engine whose name
    /// begins with this text.
    pub engine: &'static str,
    /// The name of the function, as `MODULE:QUALNAME`.
    pub function: &'static str,
    /// Package, versions and file in which the function was found.
    pub source: &'static str,
}

const CANDIDATES: &str = "transformers 4.52.4, 4.57.1, 5.0.0, 5.10.4, 5.23.0: transformers/generation/candidate_generator.py";

/// Functions that run passes of a draft model. All of them call `generate` of the assistant model, some through
/// `_generate_candidates`. Other candidate generators need not be listed: they run no model, or they run a model
/// without `generate`, so that no step function is called.
pub const DRAFTS: &[Draft] = &[
    Draft {
        engine: "transformers generate",
        function: "transformers.generation.candidate_generator:AssistedCandidateGenerator.get_candidates",
        source: CANDIDATES,
    },
    Draft {
        engine: "transformers generate",
        function: "transformers.generation.candidate_generator:AssistedCandidateGeneratorDifferentTokenizers.get_candidates",
        source: CANDIDATES,
    },
    Draft {
        engine: "transformers generate",
        function: "transformers.generation.candidate_generator:UniversalSpeculativeDecodingGenerator.get_candidates",
        source: CANDIDATES,
    },
];

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::{ENGINES, is_step};
    use tllmprof_config::PyFunction;

    #[test]
    fn every_row_is_of_an_engine_and_no_step() {
        for draft in DRAFTS {
            let is_its = |name: &str| name.starts_with(draft.engine);
            assert!(ENGINES.iter().any(|engine| is_its(engine.name)));
            let function = PyFunction::parse(draft.function).unwrap();
            assert!(!is_step(&function), "{}", draft.function);
        }
    }

    #[test]
    fn the_page_shows_the_table() {
        let mut table = String::from("| engine | function | source |\n|---|---|---|\n");
        for draft in DRAFTS {
            let Draft {
                engine,
                function,
                source,
            } = draft;
            writeln!(table, "| {engine} | `{function}` | {source} |").unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
