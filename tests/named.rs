//! Checks functions that the rule names: each call counts once, with any shape and any linkage of the program, and
//! nothing else about the program changes.
//!
//! The programs are in `tests/named/`; each test builds its own. A program prints how many calls it made.
//!
//! If entries are not patched, the functions are those of libraries, which are called through GOT slots.

mod common;
#[path = "named/ends.rs"]
mod ends;
#[path = "named/known.rs"]
mod known;
#[path = "named/languages.rs"]
mod languages;
#[path = "named/libraries.rs"]
mod libraries;
#[path = "named/meetings.rs"]
mod meetings;
#[path = "named/refused.rs"]
mod refused;
#[path = "named/seen.rs"]
mod seen;
#[path = "named/shapes.rs"]
mod shapes;
#[allow(dead_code, reason = "the situations use the rest of it")]
#[path = "situations/twice.rs"]
mod twice;
#[path = "named/workshop.rs"]
mod workshop;
