//! The documentation says what is so: its commands run, its links lead somewhere, and its words are the field's.

mod common;
mod docs {
    mod commands;
    mod links;
    mod messages;
    mod words;
}
