//! Decides in which ways calls of a function can be intercepted.

use std::fmt;

use crate::elf::Machine;
use crate::function::Function;
use crate::image::Image;

/// The way in which calls of a function can be intercepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The function is an import. Its calls from the importing module can be intercepted through a GOT slot of that
    /// module.
    Import,
    /// Calls can be intercepted through the GOT slots of other modules and through `dlsym`. The function's first
    /// instructions can be patched, too, unless the field gives a reason against it.
    Exported(Option<Reason>),
    /// Calls can be intercepted only with a patch of the function's first instructions.
    Entry,
    No(Reason),
}

/// The reason why a function's first instructions, or the GOT slot of an import, cannot be patched.
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

/// Size in bytes of the jump instruction that a patch writes over a function's first instructions. A shorter function
/// cannot be patched.
const JUMP_BYTES: u64 = 5;

/// Returns the way in which calls of a function of `image` can be intercepted. The result depends only on the file, not
/// on a process that has loaded it.
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
    /// Returns one word that names this way of interception.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Exported(_) => "exported",
            Self::Entry => "entry",
            Self::No(_) => "no",
        }
    }

    /// Returns the reason why the function's first instructions or its GOT slot cannot be patched. Returns `None` if
    /// nothing prevents this patch.
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
