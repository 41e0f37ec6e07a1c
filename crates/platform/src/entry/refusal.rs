//! Why a function's entry is left as it is.

use core::fmt;

/// Why a function's entry is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // what only patching finds
pub enum Refusal {
    EntryPoint,
    /// Entries are not patched on this processor; the function's code is known.
    #[cfg(target_arch = "aarch64")]
    Processor {
        /// It may look at its return address.
        looks_back: bool,
    },
    VariantCall,
    UnknownSize,
    Ifunc,
    Go,
    Unreadable,
    Changed,
    TooShort,
    Undecodable,
    Call,
    Immovable,
    Loops,
    Table,
    NoRoom,
    NotWritable,
    Threads,
    /// Of a function whose end is to be awaited.
    LooksBack,
    ShadowStack,
    TooMany,
    EndsIn,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EntryPoint => "the process begins there, and no call leads to it",
            #[cfg(target_arch = "aarch64")]
            Self::Processor { .. } => "entries are patched on x86-64 only",
            Self::VariantCall => "it may take arguments in registers that other calls do not keep (variant PCS)",
            Self::UnknownSize => "its size is not known",
            Self::Ifunc => "it only says which function is meant (IFUNC)",
            Self::Go => "it is Go's own and does not keep to the C calling convention",
            Self::Unreadable => "its file cannot be read",
            Self::Changed => "its code is not what its file holds: a debugger's or another tool's hook",
            Self::TooShort => "it is too short for a jump",
            Self::Undecodable => "its code cannot be decoded",
            Self::Call => "it begins with a call",
            Self::Immovable => "it begins with an instruction that cannot be moved",
            Self::Loops => "it branches back to its entry",
            Self::Table => "a jump table leads to its entry",
            Self::NoRoom => "there is no room for executable memory near it",
            Self::NotWritable => "the system does not let code be changed",
            Self::EndsIn => "it ends in another function that counts, or another in it",
            Self::Threads => "other threads are running, and its first instruction has no room for a jump in one store",
            Self::LooksBack => "it may look at its return address",
            Self::ShadowStack => "the processor guards return addresses",
            Self::TooMany => "too many functions have been scopes before",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_words_of_its_own() {
        let refusals = [
            Refusal::EntryPoint,
            Refusal::VariantCall,
            Refusal::UnknownSize,
            Refusal::Ifunc,
            Refusal::Go,
            Refusal::Unreadable,
            Refusal::Changed,
            Refusal::TooShort,
            Refusal::Undecodable,
            Refusal::Call,
            Refusal::Immovable,
            Refusal::Loops,
            Refusal::Table,
            Refusal::NoRoom,
            Refusal::NotWritable,
            Refusal::Threads,
            Refusal::LooksBack,
            Refusal::ShadowStack,
            Refusal::TooMany,
            Refusal::EndsIn,
        ];
        let words: std::collections::HashSet<_> = refusals.iter().map(Refusal::to_string).collect();
        assert_eq!(words.len(), refusals.len());
    }
}
