//! The functions of an ELF file that a `sym:` rule can name.
//!
//! [`Image`] reads the symbol tables of a file, or of its separate debug file. [`Pattern`] is the
//! regex of a rule and matches names, mangled or demangled. [`reach()`] returns the way in which
//! calls of a function can be intercepted.
//!
//! The preloaded library uses this crate inside the profiled process, so the crate limits the damage that a bad file
//! can do. Files are read with `pread` and never mapped, so a file that shrinks during the read causes an error and no
//! SIGBUS. A read never asks for more bytes than the file has (or 4 KiB, if that is more), even if the headers claim
//! more. Damaged files cause an error. Demangling recurses to a limited depth: it needs 512 KiB of stack in an
//! optimised build, and 2 MiB in others. An image keeps its tables in memory (28 MB for a libLLVM with 300 000
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
pub use error::SymbolsError;
pub use function::{Function, Slots, Sources};
pub use image::{Image, address_of, defined};
pub use matching::{LIMIT, Matches};
pub use nearest::Nearest;
pub use pattern::Pattern;
pub use reach::{Reach, Reason, reach};
pub use short::short;
pub use source::{Source, open};
