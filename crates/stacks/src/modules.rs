//! What native functions are called in a record: their module and where in it they lie. Whoever reads the record finds
//! the symbols.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use core::hash::BuildHasherDefault;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use tllmprof_platform::elf;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, NO_STRING, StringId};

/// Addresses whose names are kept.
const MOST: usize = 1 << 16;

struct Module {
    start: usize,
    end: usize,
    /// What the addresses in its file are moved by.
    base: usize,
    path: PathBuf,
}

/// The modules of the process, and the names of addresses in them.
#[derive(Default)]
pub struct Modules {
    known: Vec<Module>,
    changes: Option<u64>,
    names: HashMap<usize, StringId, BuildHasherDefault<OfAddress>>,
}

impl Modules {
    /// Looks whether modules have come or gone.
    pub fn look(&mut self) {
        let changes = elf::changes();
        if self.changes.replace(changes) == Some(changes) {
            return;
        }
        self.names.clear();
        self.known.clear();
        elf::with_modules(|modules| {
            self.known.extend(modules.iter().map(|module| Module {
                start: module.start,
                end: module.end,
                base: module.base,
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
    }

    /// The string of the function at an address.
    pub fn string(&mut self, address: usize) -> StringId {
        if let Some(id) = self.names.get(&address) {
            return *id;
        }
        if self.names.len() >= MOST {
            self.names.clear();
        }
        let id = recorder::id_of(&self.name(address));
        if id != NO_STRING {
            self.names.insert(address, id);
        }
        id
    }

    /// `MODULE+0xOFFSET`. Code that is in no module has one name: its places say nothing to anybody.
    fn name(&self, address: usize) -> String {
        let after = self.known.partition_point(|module| module.start <= address);
        let module = after.checked_sub(1).and_then(|at| self.known.get(at));
        let Some(module) = module.filter(|module| address < module.end) else {
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
