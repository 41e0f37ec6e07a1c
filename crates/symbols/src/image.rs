use std::ops::Range;
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf;

use crate::debug;
use crate::elf::Elf;
use crate::error::Error;
use crate::function::{Slots, Sources};
use crate::imports;
use crate::source::{Source, open};
use crate::table::Table;

/// A file's symbols.
pub struct Image {
    pub elf: Elf,
    /// The separate file that its symbol table was read from.
    pub debug_file: Option<PathBuf>,
    /// In the order in which their names are preferred.
    pub(crate) tables: Vec<Table>,
    /// Of each dynamic symbol, by index.
    pub(crate) slots: Vec<Slots>,
    go: Go,
}

/// Which code keeps to Go's calling convention.
enum Go {
    None,
    Text(Range<u64>),
    /// Some does, and the table that would say which is stripped away.
    Unknown,
}

/// Which of `names` the file's own symbol table defines, exactly as the file has them; none where it
/// has no such table or cannot be read.
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

/// The address, in the file, of the symbol `name` of the file's own symbol table, whatever it is; none where it has no
/// such table or cannot be read, or where the table is larger than any for which it is worth while.
pub fn address_of(source: &(impl Source + ?Sized), name: &str) -> Option<u64> {
    /// A million symbols.
    const LARGEST: u64 = 24 << 20;
    let elf = Elf::read(source).ok()?;
    let mut tables = elf.of_kind(elf::SHT_SYMTAB);
    if tables.any(|table| table.sh_size.get(LE) > LARGEST) {
        return None;
    }
    let address = own_table(source)?.address_of(name.as_bytes())?;
    (address != 0).then_some(address)
}

fn own_table(source: &(impl Source + ?Sized)) -> Option<Table> {
    let elf = Elf::read(source).ok()?;
    let read = Table::read(source, &elf, elf::SHT_SYMTAB, Sources::default());
    read.ok().flatten()
}

impl Image {
    /// Reads a file, and its debug file if it has no symbol table of its own.
    ///
    /// # Errors
    /// The file cannot be read, is of another kind, or damaged. A debug file that does not fit is
    /// as good as none.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, Path::new(debug::DEBUG_ROOT))
    }

    /// [`Image::open`] with debug files installed below another folder than [`debug::DEBUG_ROOT`].
    ///
    /// # Errors
    /// The same.
    pub fn open_with(path: &Path, debug_root: &Path) -> Result<Self, Error> {
        let file = open(path)?;
        let mut image = Self::read(&file)?;
        if image.is_stripped()
            && let Some((path, file, elf)) = debug::find(path, &file, &image.elf, debug_root)
        {
            let sources = Sources {
                debug: true,
                ..Sources::default()
            };
            if let Ok(Some(table)) = Table::read(&file, &elf, elf::SHT_SYMTAB, sources) {
                image.tables.push(table);
                image.debug_file = Some(path);
                image.go = go(&image.elf, &image.tables);
            }
        }
        Ok(image)
    }

    /// Reads a file alone.
    ///
    /// # Errors
    /// It cannot be read, is of another kind, or damaged.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Self, Error> {
        let elf = Elf::read(source)?;
        let (mut tables, mut slots) = (Vec::new(), Vec::new());
        let dynamic = Sources {
            dynamic: true,
            ..Sources::default()
        };
        if let Some(table) = Table::read(source, &elf, elf::SHT_DYNSYM, dynamic)? {
            slots = imports::slots(source, &elf, table.len())?;
            tables.push(table);
        }
        let own = Sources {
            table: true,
            ..Sources::default()
        };
        tables.extend(Table::read(source, &elf, elf::SHT_SYMTAB, own)?);
        Ok(Self {
            go: go(&elf, &tables),
            elf,
            debug_file: None,
            tables,
            slots,
        })
    }

    /// Whether only its dynamic symbols are known.
    pub fn is_stripped(&self) -> bool {
        !self.tables.iter().any(|table| !table.sources.dynamic)
    }

    /// Whether the code at `address` may be Go's own.
    pub fn is_go(&self, address: u64) -> bool {
        match &self.go {
            Go::None => false,
            Go::Text(range) => range.contains(&address),
            Go::Unknown => true,
        }
    }

    /// How many symbols its tables have, of whatever kind.
    pub fn symbols(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }
}

fn go(elf: &Elf, tables: &[Table]) -> Go {
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
