//! Checks rules that name native functions (`sym:…`). Each call of such a function counts once, whatever the function's
//! machine code and the program's linkage are. Nothing else about the program changes.
//!
//! The programs are in `tests/named/`, and each test builds its own. A program prints the number of calls that it made.
//!
//! On processors where function entries cannot be patched, the functions are in libraries and are called through GOT
//! slots.

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
