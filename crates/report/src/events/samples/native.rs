//! The names of native functions, which a record has as `MODULE+0xOFFSET`.
//!
//! They are looked up in the module's file where the record was made on this machine since it was started: another
//! machine's file of the same name may be another one.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use tllmprof_symbols::{Image, demangle};

use super::frames::Function;
use crate::events::facts::{Facts, name};

/// How many modules are looked into.
const MODULES: usize = 64;

/// The functions of the modules that were looked into so far.
#[derive(Debug, Default)]
pub struct Modules {
    is_here: bool,
    known: HashMap<String, Vec<Symbol>>,
}

/// A function in a file, by the address that the file gives it.
#[derive(Debug)]
struct Symbol {
    start: u64,
    end: u64,
    /// Mangled.
    name: Vec<u8>,
}

impl Modules {
    /// Of a record.
    pub fn of(facts: &Facts) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let is_here = boot.is_ok_and(|boot| !facts.boot.is_empty() && boot.trim() == facts.boot);
        Self {
            is_here,
            known: HashMap::new(),
        }
    }

    /// A native function.
    pub fn function(&mut self, text: &str) -> Function {
        let found = text.rsplit_once("+0x").and_then(|(module, offset)| {
            let offset = u64::from_str_radix(offset, 16).ok()?;
            self.symbol(module, offset)
        });
        let name = name(found.as_deref().unwrap_or(text));
        let label = match found {
            Some(_) => name.clone(),
            None => name.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        Function { name, label }
    }

    fn symbol(&mut self, module: &str, offset: u64) -> Option<String> {
        let is_known = self.known.contains_key(module) || self.known.len() < MODULES;
        if !self.is_here || !is_known || !Path::new(module).is_absolute() {
            return None;
        }
        let symbols = self
            .known
            .entry(module.to_owned())
            .or_insert_with(|| symbols(Path::new(module)));
        let after = symbols.partition_point(|symbol| symbol.start <= offset);
        let symbol = symbols.get(after.checked_sub(1)?)?;
        let lossy = || String::from_utf8_lossy(&symbol.name).into_owned();
        (offset < symbol.end).then(|| demangle(&symbol.name).unwrap_or_else(lossy))
    }
}

/// The functions of a file in the order of their addresses; none where it cannot be read.
fn symbols(file: &Path) -> Vec<Symbol> {
    let Ok(image) = Image::open(file) else {
        return Vec::new();
    };
    let functions = image.functions();
    let mut symbols: Vec<_> = functions
        .iter()
        .filter_map(|function| {
            let start = function.address?;
            Some(Symbol {
                start,
                end: start.saturating_add(function.size),
                name: function.names.first()?.to_vec(),
            })
        })
        .collect();
    symbols.sort_unstable_by_key(|symbol| symbol.start);
    symbols
}
