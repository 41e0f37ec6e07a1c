//! The functions of an ELF file that a `sym:` rule can name.
//!
//! [`Image`] reads a file's symbol tables, its own or those of its separate debug file. [`Pattern`] is a rule's regex,
//! which matches names, mangled or demangled. [`reach()`] returns the ways in which calls of a function can be seen.
//!
//! The preloaded library uses this in the host process. So files are read with `pread` and never mapped: a file that
//! shrinks meanwhile causes an error and no SIGBUS. No more memory is allocated than the file is long, whatever its
//! headers claim, and damaged files cause an error. Demangling recurses to a bounded depth: it needs 512 KiB of stack
//! in an optimised build, and 2 MiB in others. An image holds its tables in memory (28 MB for a libLLVM with 300 000
//! symbols), so drop it after use.

#![forbid(unsafe_code)]

mod crc;
mod debug;
mod demangle;
mod elf;
mod error;
mod function;
mod image;
mod imports;
mod matching;
mod nearest;
mod pattern;
mod reach;
mod short;
mod source;
mod table;
mod words;

pub use debug::DEBUG_ROOT;
pub use demangle::demangle;
pub use elf::{Elf, Machine};
pub use error::Error;
pub use function::{Function, Slots, Sources};
pub use image::{Image, address_of, defined};
pub use matching::{LIMIT, Matches};
pub use nearest::Nearest;
pub use pattern::Pattern;
pub use reach::{Reach, Reason, reach};
pub use short::short;
pub use source::{Source, open};
