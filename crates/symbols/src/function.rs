use std::ops::BitOr;

/// A function that a rule can name: one address with all its names, or one import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function<'a> {
    /// The address in the file; a process adds the module's load bias. `None` for an import, which lies in another
    /// module.
    pub address: Option<u64>,
    /// Size in bytes; 0 if the file does not contain it.
    pub size: u64,
    /// The names as in the file, that is mangled, without versions; those of the dynamic symbol table come first.
    pub names: Vec<&'a [u8]>,
    pub sources: Sources,
    /// True if the function only selects another function at run time.
    pub is_ifunc: bool,
    /// True if it is Go code, whose callers do not follow the C calling convention.
    pub is_go: bool,
    /// True if its calls may use registers that other calls may lose on the way (`STO_AARCH64_VARIANT_PCS` of the ELF
    /// ABI supplement for AArch64: vector and SVE calls).
    pub is_variant_call: bool,
    /// The GOT slots through which this module calls another one's function.
    pub slots: Slots,
    /// True for an import that the file does not mark as a function.
    pub may_be_data: bool,
}

/// The symbol tables that contain a function.
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

/// The kinds of GOT slots that an import has.
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
