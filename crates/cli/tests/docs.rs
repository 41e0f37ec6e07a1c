//! Tests of the documentation: its commands work, its links lead to existing targets, and its words are the terms of
//! the field.

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
