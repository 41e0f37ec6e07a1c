//! The timeline of a record: one model for the page, the trace formats and the tables.
//!
//! An [`Interpreter`] turns each event of a record into an [`Item`]: something of a [`Kind`] that
//! happened on a [`Track`], under a [`Name`]. The table of kinds ([`Kind`]) says for each kind how it is
//! shown and which table it goes to, so a reader of items needs no list of kinds of its own, and a new
//! kind of event is a row here. Items are made one by one, so memory does not grow with their number.

#![forbid(unsafe_code)]

mod interpreter;
mod iterations;
mod kinds;
mod name;
mod stretch;
mod track;

pub use interpreter::Interpreter;
pub use iterations::Iterations;
pub use kinds::{Category, End, Item, Key, Kind, Length, Row};
pub use name::{Name, Texts};
pub use stretch::Stretch;
pub use track::Track;
