//! The ways in which calls of a function can be seen.

use std::fmt;

use crate::elf::Machine;
use crate::function::Function;
use crate::image::Image;

/// The way in which calls of a function can be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Through a GOT slot of this module, which sees each of its calls of the function.
    Import,
    /// Through other modules' GOT slots and `dlsym`, and by a patched entry unless there is a reason against that.
    Exported(Option<Reason>),
    /// By a patched entry only.
    Entry,
    No(Reason),
}

/// Reason why a function's entry cannot be patched, or an import cannot be redirected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    Go,
    Ifunc,
    VariantCall,
    TooShort(u64),
    UnknownSize,
    EntryPoint,
    Machine,
    NoSlot,
    MayBeData,
}

/// Size in bytes of a jump with a 32-bit distance.
const JUMP_BYTES: u64 = 5;

/// Returns the way in which calls of one of `image`'s functions can be seen, as far as the file shows.
pub fn reach(function: &Function<'_>, image: &Image) -> Reach {
    if function.is_variant_call {
        return Reach::No(Reason::VariantCall);
    }
    let Some(address) = function.address else {
        return if !function.slots.any() {
            Reach::No(Reason::NoSlot)
        } else if function.may_be_data {
            Reach::No(Reason::MayBeData)
        } else {
            Reach::Import
        };
    };
    if function.is_go {
        return Reach::No(Reason::Go);
    }
    if function.is_ifunc {
        return Reach::No(Reason::Ifunc);
    }
    let against = not_patched(function, address, image);
    match against {
        _ if function.sources.dynamic => Reach::Exported(against),
        Some(reason) => Reach::No(reason),
        None => Reach::Entry,
    }
}

fn not_patched(function: &Function<'_>, address: u64, image: &Image) -> Option<Reason> {
    if image.elf.machine != Machine::X86_64 {
        Some(Reason::Machine)
    } else if image.elf.entry == address {
        Some(Reason::EntryPoint)
    } else if function.size == 0 {
        Some(Reason::UnknownSize)
    } else if function.size < JUMP_BYTES {
        Some(Reason::TooShort(function.size))
    } else {
        None
    }
}

impl Reach {
    /// Returns the way as one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Exported(_) => "exported",
            Self::Entry => "entry",
            Self::No(_) => "no",
        }
    }

    /// Returns the reason against the ways that are not used.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Import | Self::Entry => None,
            Self::Exported(reason) => reason,
            Self::No(reason) => Some(reason),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Go => "Go function",
            Self::Ifunc => "IFUNC resolver",
            Self::VariantCall => "variant PCS, which other calls do not keep the registers of",
            Self::TooShort(size) => return write!(f, "too short, {size} bytes"),
            Self::UnknownSize => "size not known",
            Self::EntryPoint => "where the process begins",
            Self::Machine => "entries are patched on x86-64 only",
            Self::NoSlot => "no GOT slot",
            Self::MayBeData => "may be data, it has no type",
        })
    }
}
