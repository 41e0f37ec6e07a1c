use std::ops::BitOr;

/// A function that a rule can name: one address with all its names, or one import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function<'a> {
    /// As in the file: where it is in a process is the module's load bias further. None for an
    /// import, which lies in another module.
    pub address: Option<u64>,
    /// In bytes; 0 if the file does not say.
    pub size: u64,
    /// As in the file, that is mangled, without versions; the dynamic symbol table's first.
    pub names: Vec<&'a [u8]>,
    pub sources: Sources,
    /// The function only says at run time which other function is meant.
    pub is_ifunc: bool,
    /// It is Go's own, and its callers do not keep to the C calling convention.
    pub is_go: bool,
    /// Its calls may use registers that others leave to be lost on the way (`STO_AARCH64_VARIANT_PCS`
    /// of the ELF ABI supplement for AArch64: vector and SVE calls).
    pub is_variant_call: bool,
    /// Through what this module calls another one's function.
    pub slots: Slots,
    /// An import of which the file does not say that it is a function.
    pub may_be_data: bool,
}

/// Tables that know a function.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources {
    /// `.dynsym`, defined.
    pub dynamic: bool,
    /// `.symtab`.
    pub table: bool,
    /// `.symtab` of the separate debug file.
    pub debug: bool,
    /// `.dynsym`, not defined.
    pub import: bool,
}

/// Kinds of GOT slots that an import has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Slots {
    pub jump_slot: bool,
    pub glob_dat: bool,
}

impl Slots {
    pub const fn any(self) -> bool {
        self.jump_slot || self.glob_dat
    }
}

impl BitOr for Sources {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self {
            dynamic: self.dynamic | other.dynamic,
            table: self.table | other.table,
            debug: self.debug | other.debug,
            import: self.import | other.import,
        }
    }
}

impl BitOr for Slots {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self {
            jump_slot: self.jump_slot | other.jump_slot,
            glob_dat: self.glob_dat | other.glob_dat,
        }
    }
}
