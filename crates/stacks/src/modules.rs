//! The names of native functions in a record. A name consists of a module and an offset in it. The
//! reader of the record finds the symbol.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use core::hash::BuildHasherDefault;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use tllmprof_platform::elf;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, NO_STRING, StringId};

/// The most addresses whose names are stored.
const MAX_NAMES: usize = 1 << 16;

struct MappedModule {
    start: usize,
    end: usize,
    /// The difference between an address in memory and the corresponding address in the module's
    /// file.
    base: usize,
    /// The address of the module's table for unwinding, if it has one.
    unwind_table: Option<usize>,
    path: PathBuf,
}

/// The modules of the process, and the names of code addresses in them.
#[derive(Default)]
pub(crate) struct Modules {
    known: Vec<MappedModule>,
    /// The loader's count of module loads and unloads at the time when the list of modules was
    /// read.
    changes: Option<u64>,
    names: HashMap<usize, StringId, BuildHasherDefault<OfAddress>>,
}

impl Modules {
    /// Reads the list of modules again if modules were loaded or unloaded since it was last read. Returns true if the
    /// list was read again.
    pub(crate) fn look(&mut self) -> bool {
        let changes = elf::changes();
        if self.changes.replace(changes) == Some(changes) {
            return false;
        }
        self.names.clear();
        self.known.clear();
        elf::with_modules(|modules| {
            self.known.extend(modules.iter().map(|module| MappedModule {
                start: module.start,
                end: module.end,
                base: module.base,
                unwind_table: module.unwind_table(),
                path: Path::new(OsStr::from_bytes(module.path().to_bytes())).to_owned(),
            }));
        });
        for module in self
            .known
            .iter_mut()
            .filter(|module| module.path.as_os_str().is_empty())
        {
            module.path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        }
        self.known.sort_unstable_by_key(|module| module.start);
        true
    }

    /// Returns the address of the unwind table of the module that contains `address`; `None` if there is no such module
    /// or it has no table.
    pub(crate) fn unwind_table(&self, address: usize) -> Option<usize> {
        self.containing(address)?.unwind_table
    }

    fn containing(&self, address: usize) -> Option<&MappedModule> {
        let after = self.known.partition_point(|module| module.start <= address);
        let module = self.known.get(after.checked_sub(1)?)?;
        (address < module.end).then_some(module)
    }

    /// Returns the id of the record's string that names the code at an address; `NO_STRING` if the name cannot be
    /// written to the record.
    pub(crate) fn string(&mut self, address: usize) -> StringId {
        if let Some(id) = self.names.get(&address) {
            return *id;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        let id = recorder::id_of(&self.name(address));
        if id != NO_STRING {
            self.names.insert(address, id);
        }
        id
    }

    /// Returns the text `MODULE+0xOFFSET`. All code outside modules gets the same name, because its
    /// addresses mean nothing to a reader.
    fn name(&self, address: usize) -> String {
        let Some(module) = self.containing(address) else {
            return "[no module]".to_owned();
        };
        let mut name = module.path.to_string_lossy().into_owned();
        let _ = write!(name, "+{:#x}", address.wrapping_sub(module.base));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_named_by_its_module() {
        let mut modules = Modules::default();
        modules.look();
        let ours = modules.name(Modules::look as *const () as usize);
        let (module, offset) = ours.rsplit_once("+0x").unwrap();
        assert_eq!(Path::new(module), std::env::current_exe().unwrap());
        assert!(u64::from_str_radix(offset, 16).unwrap() > 0);
        let libc = modules.name(libc::getpid as *const () as usize);
        assert!(libc.contains("libc"), "{libc}");
        assert_eq!(modules.name(16), "[no module]");
    }
}
