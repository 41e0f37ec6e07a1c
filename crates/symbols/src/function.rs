use std::ops::BitOr;

/// A function that a `sym:` rule (a regex for function names) can select: one address with all its
/// names, or one import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function<'a> {
    /// The function's address in the file. In a process, the function is at the sum of this address and the module's
    /// load bias. `None` for an import, which is defined in another module.
    pub address: Option<u64>,
    /// Size of the function in bytes; 0 if the file does not contain the size.
    pub size: u64,
    /// The mangled names, without symbol versions. Names from the dynamic symbol table come first.
    pub names: Vec<&'a [u8]>,
    pub sources: Sources,
    /// True if the function is an ifunc, which only selects another function at run time.
    pub is_ifunc: bool,
    /// True if the function may be Go code, which does not follow the C calling convention.
    pub is_go: bool,
    /// True if calls may pass values in registers that other calls do not preserve, as vector and
    /// SVE calls do (`STO_AARCH64_VARIANT_PCS` of the ELF ABI supplement for AArch64).
    pub is_variant_call: bool,
    /// The kinds of GOT slots through which this module calls the function, if it is an import.
    pub slots: Slots,
    /// True for an import that its file does not mark as a function and for which it has no jump slot, so that the
    /// import may be a variable.
    pub may_be_data: bool,
}

/// The symbol tables in which a function was found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources {
    /// True if `.dynsym` defines the function.
    pub dynamic: bool,
    /// True if `.symtab` of the file itself contains the function.
    pub table: bool,
    /// True if `.symtab` of the separate debug file contains the function.
    pub debug: bool,
    /// True if `.dynsym` contains the function as an undefined symbol.
    pub import: bool,
}

/// The kinds of GOT slots that a module has for an import.
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
