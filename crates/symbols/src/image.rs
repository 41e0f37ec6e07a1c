use std::ops::Range;
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf;

use crate::debug;
use crate::elf::Elf;
use crate::error::SymbolsError;
use crate::function::{Slots, Sources};
use crate::imports;
use crate::source::{Source, open};
use crate::table::SymbolTable;

/// The symbols of an ELF file.
pub struct Image {
    pub elf: Elf,
    /// The separate debug file from which the symbol table was read, if any.
    pub debug_file: Option<PathBuf>,
    /// The file's symbol tables. If an address has several names, those from earlier tables come
    /// first.
    pub(crate) tables: Vec<SymbolTable>,
    /// The kinds of GOT slots of each dynamic symbol, by the symbol's index.
    pub(crate) slots: Vec<Slots>,
    go: Go,
}

/// The parts of the file's code that follow Go's calling convention.
enum Go {
    None,
    Text(Range<u64>),
    /// The file contains Go code, but the symbols that would show which code is Go were stripped.
    Unknown,
}

/// Returns those of `names` that are defined in the file's own `.symtab`, compared exactly. Returns
/// an empty list if the file has no such table or cannot be read.
pub fn defined<'a>(source: &(impl Source + ?Sized), names: &[&'a str]) -> Vec<&'a str> {
    let table = own_table(source);
    let mut defined = names.to_vec();
    defined.retain(|name| {
        let address = table
            .as_ref()
            .and_then(|table| table.address_of(name.as_bytes()));
        address.is_some_and(|address| address != 0)
    });
    defined
}

/// Returns the address in the file of the symbol `name`, which may be of any type, from the file's
/// own `.symtab`. Returns `None` if there is no such symbol or table, if the file cannot be read,
/// or if the table is too large.
pub fn address_of(source: &(impl Source + ?Sized), name: &str) -> Option<u64> {
    /// Size of the largest symbol table that is read, in bytes: a million symbols.
    const MAX_TABLE_BYTES: u64 = 24 << 20;
    let elf = Elf::read(source).ok()?;
    let mut tables = elf.of_kind(elf::SHT_SYMTAB);
    if tables.any(|table| table.sh_size.get(LE) > MAX_TABLE_BYTES) {
        return None;
    }
    let address = own_table(source)?.address_of(name.as_bytes())?;
    (address != 0).then_some(address)
}

fn own_table(source: &(impl Source + ?Sized)) -> Option<SymbolTable> {
    let elf = Elf::read(source).ok()?;
    let read = SymbolTable::read(source, &elf, elf::SHT_SYMTAB, Sources::default());
    read.ok().flatten()
}

impl Image {
    /// Reads the symbols of a file. If the file has no `.symtab`, also reads its debug file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a supported ELF file, or is damaged. A debug file that
    /// does not match is ignored.
    pub fn open(path: &Path) -> Result<Self, SymbolsError> {
        Self::open_with(path, Path::new(debug::DEBUG_ROOT))
    }

    /// Does the same as [`Image::open`], but looks for debug files below the folder `debug_root` instead of
    /// [`debug::DEBUG_ROOT`].
    ///
    /// # Errors
    /// Returns the same errors as [`Image::open`].
    pub fn open_with(path: &Path, debug_root: &Path) -> Result<Self, SymbolsError> {
        let file = open(path)?;
        let mut image = Self::read(&file)?;
        if image.is_stripped()
            && let Some((path, file, elf)) = debug::find(path, &file, &image.elf, debug_root)
        {
            let sources = Sources {
                debug: true,
                ..Sources::default()
            };
            if let Ok(Some(table)) = SymbolTable::read(&file, &elf, elf::SHT_SYMTAB, sources) {
                image.tables.push(table);
                image.debug_file = Some(path);
                image.go = go(&image.elf, &image.tables);
            }
        }
        Ok(image)
    }

    /// Reads the symbols of the file only, without a debug file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a supported ELF file, or is damaged.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Self, SymbolsError> {
        let elf = Elf::read(source)?;
        let (mut tables, mut slots) = (Vec::new(), Vec::new());
        let dynamic = Sources {
            dynamic: true,
            ..Sources::default()
        };
        if let Some(table) = SymbolTable::read(source, &elf, elf::SHT_DYNSYM, dynamic)? {
            slots = imports::slots(source, &elf, table.len())?;
            tables.push(table);
        }
        let own = Sources {
            table: true,
            ..Sources::default()
        };
        tables.extend(SymbolTable::read(source, &elf, elf::SHT_SYMTAB, own)?);
        Ok(Self {
            go: go(&elf, &tables),
            elf,
            debug_file: None,
            tables,
            slots,
        })
    }

    /// Returns true if only the dynamic symbols are known.
    pub fn is_stripped(&self) -> bool {
        !self.tables.iter().any(|table| !table.sources.dynamic)
    }

    /// Returns true if the code at `address` may be Go code.
    pub fn is_go(&self, address: u64) -> bool {
        match &self.go {
            Go::None => false,
            Go::Text(range) => range.contains(&address),
            Go::Unknown => true,
        }
    }

    /// Returns the number of symbols of all types in all tables.
    pub fn symbols(&self) -> usize {
        self.tables.iter().map(SymbolTable::len).sum()
    }
}

fn go(elf: &Elf, tables: &[SymbolTable]) -> Go {
    let sections: [&[u8]; 4] = [
        b".gopclntab",
        b".data.rel.ro.gopclntab",
        b".go.buildinfo",
        b".note.go.buildid",
    ];
    if !sections.iter().any(|name| elf.named(name).is_some()) {
        return Go::None;
    }
    let find = |name: &[u8]| tables.iter().find_map(|table| table.address_of(name));
    match (find(b"runtime.text"), find(b"runtime.etext")) {
        (Some(start), Some(end)) if start < end => Go::Text(start..end),
        _ => Go::Unknown,
    }
}
