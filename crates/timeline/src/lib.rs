//! The timeline of a record: the items from which the page, the exported traces and the exported tables are made.
//!
//! An [`Interpreter`] converts each event of a record to an [`Item`]: something of a [`Kind`] that happened on a
//! [`Track`], under a [`Name`]. The table of kinds ([`Kind`]) has for each kind its presentation and the exported table
//! that contains it. So a reader of items needs no list of kinds, and a new kind of event needs only a row in the table
//! of kinds. Items are made one by one, so memory does not grow with their number.

#![forbid(unsafe_code)]

mod interpreter;
mod iterations;
mod kinds;
mod name;
mod stretch;
mod track;

pub use interpreter::Interpreter;
pub use iterations::Iterations;
pub use kinds::{Category, Item, Key, Kind, KindRow, LaunchEnd, Length};
pub use name::{Name, Texts};
pub use stretch::Stretch;
pub use track::Track;
