//! The documentation is correct: its commands run, its links lead somewhere, and its words are the field's.

mod common;
mod docs {
    mod commands;
    mod comments;
    mod links;
    mod messages;
    mod source;
    mod words;
    mod workflow;
}
