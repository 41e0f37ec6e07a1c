//! Tests of the documentation: its commands run, its links lead somewhere, and its words are the field's.

mod common;
mod docs {
    mod commands;
    mod comments;
    mod example_workflow;
    mod figures;
    mod links;
    mod messages;
    mod questions;
    mod samples;
    #[path = "../../../../tests/common/skipped.rs"]
    mod skipped;
    mod source;
    mod words;
    mod workflows;
}
