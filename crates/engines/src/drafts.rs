//! Functions in which an engine's steps are passes of a model that drafts.
//!
//! Data only: with speculative decoding a small model proposes tokens, and the model itself checks them in one pass. Where the
//! passes of both are steps by the engine's row, those are a draft's that are made within a call of one of these functions.
//!
//! `docs/engines.md` shows this table to users; a test keeps the two the same.

/// A function that makes passes of a model that drafts.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// Its engine, as in the names of [`ENGINES`](crate::ENGINES): all whose names begin so.
    pub engine: &'static str,
    /// As `MODULE:QUALNAME`.
    pub function: &'static str,
    /// Package, versions and file in which this was read.
    pub source: &'static str,
}

const CANDIDATES: &str = "transformers 4.52.4, 4.57.1, 5.0.0, 5.10.4, 5.23.0: transformers/generation/candidate_generator.py";

/// Each calls `generate` of the assistant model, some by `_generate_candidates`. Other generators of candidates look them up, or run their model past
/// `generate`: these passes are no steps.
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
