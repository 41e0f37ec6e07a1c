//! Finds the functions of an image that match a pattern.

use std::collections::{BTreeMap, BTreeSet};

use crate::function::{Function, Slots, Sources};
use crate::image::Image;
use crate::pattern::Pattern;
use crate::table::{SymbolEntry, SymbolTable};

/// Maximum number of functions that a `sym:` rule may match. A rule that matches more functions is refused.
pub const LIMIT: usize = 64;

/// The functions that a pattern matches.
#[derive(Debug)]
pub struct Matches<'a> {
    /// The functions in the order of their addresses, then the imports in the order of their names.
    /// Their number is at most the `limit` of [`Image::matching`].
    pub functions: Vec<Function<'a>>,
    /// True if more functions match than the `limit` of [`Image::matching`].
    pub more: bool,
}

impl Image {
    /// Returns all functions in the order of their addresses, then the imports in the order of
    /// their names.
    pub fn functions(&self) -> Vec<Function<'_>> {
        let mut functions = self.defined(|_| true);
        functions.extend(self.imports(|_, _| true).into_values());
        functions
    }

    /// Returns functions for which `pattern` matches at least one name, at most `limit`, and whether
    /// there are more.
    pub fn matching(&self, pattern: &Pattern, limit: usize) -> Matches<'_> {
        let mut addresses = BTreeSet::new();
        for table in &self.tables {
            let search = pattern.search(table.strings());
            for entry in table.functions(&self.elf) {
                // Skip names at an address that is known to match: most functions are in two
                // tables, with the same name.
                if search.may_match(entry.name)
                    && !addresses.contains(&entry.address)
                    && let Some(name) = table.name(entry.name)
                    && pattern.is_match(name)
                {
                    addresses.insert(entry.address);
                    if addresses.len() > limit {
                        break;
                    }
                }
            }
        }
        let search = self
            .dynamic()
            .map(|table| pattern.search(table.strings()))
            .unwrap_or_default();
        let imports = self.imports(|at, name| search.may_match(at) && pattern.is_match(name));
        let mut functions = if addresses.is_empty() {
            Vec::new()
        } else {
            self.defined(|address| addresses.contains(&address))
        };
        functions.extend(imports.into_values());
        let more = functions.len() > limit;
        functions.truncate(limit);
        Matches { functions, more }
    }

    /// Returns the functions at the addresses for which `wanted` returns true, in the order of the
    /// addresses.
    fn defined(&self, wanted: impl Fn(u64) -> bool) -> Vec<Function<'_>> {
        let mut entries: Vec<(SymbolEntry, &SymbolTable)> = Vec::new();
        for table in &self.tables {
            let functions = table.functions(&self.elf);
            entries.extend(
                functions
                    .filter(|entry| wanted(entry.address))
                    .map(|entry| (entry, table)),
            );
        }
        // The sort is stable, so of several names for an address, those from the first table come
        // first.
        entries.sort_by_key(|(entry, _)| entry.address);
        let mut functions: Vec<Function<'_>> = Vec::new();
        for (entry, table) in entries {
            let Some(name) = table.name(entry.name) else {
                continue;
            };
            if let Some(last) = functions.last_mut()
                && last.address == Some(entry.address)
            {
                if !last.names.contains(&name) {
                    last.names.push(name);
                }
                last.size = last.size.max(entry.size);
                last.sources = last.sources | table.sources;
                last.is_ifunc |= entry.is_ifunc;
                last.is_variant_call |= entry.is_variant_call;
            } else {
                functions.push(Function {
                    address: Some(entry.address),
                    size: entry.size,
                    names: vec![name],
                    sources: table.sources,
                    is_ifunc: entry.is_ifunc,
                    is_go: self.is_go(entry.address),
                    is_variant_call: entry.is_variant_call,
                    slots: Slots::default(),
                    may_be_data: false,
                });
            }
        }
        functions
    }

    /// Returns the imports for which `wanted` returns true. `wanted` gets the offset of the name in
    /// the table of strings, and the name.
    fn imports(&self, wanted: impl Fn(u32, &[u8]) -> bool) -> BTreeMap<&[u8], Function<'_>> {
        let mut imports: BTreeMap<&[u8], Function<'_>> = BTreeMap::new();
        let Some(table) = self.dynamic() else {
            return imports;
        };
        for symbol in table.undefined(self.elf.machine) {
            let Some(name) = table.name(symbol.name) else {
                continue;
            };
            if !wanted(symbol.name, name) {
                continue;
            }
            let slots = self.slots.get(symbol.index).copied().unwrap_or_default();
            // If the file imports a name in several versions, the name occurs several times. It becomes one function.
            let import = imports.entry(name).or_insert_with(|| Function {
                address: None,
                size: 0,
                names: vec![name],
                sources: Sources {
                    import: true,
                    ..Sources::default()
                },
                is_ifunc: false,
                is_go: false,
                is_variant_call: symbol.is_variant_call,
                slots,
                may_be_data: false,
            });
            import.slots = import.slots | slots;
            import.may_be_data |= !symbol.is_typed && !slots.jump_slot;
        }
        imports
    }

    fn dynamic(&self) -> Option<&SymbolTable> {
        self.tables.iter().find(|table| table.sources.dynamic)
    }
}
