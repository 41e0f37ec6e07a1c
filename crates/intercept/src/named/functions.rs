//! Which functions of a module's file a rule names.

use std::ffi::CString;
use std::path::Path;

use tllmprof_symbols::{Image, LIMIT, Pattern, demangle};

/// A function that the rule names, as its file describes it.
pub struct Function {
    /// As in the file.
    pub address: usize,
    pub size: usize,
    /// As a user would call it.
    pub name: String,
    /// The names that other modules may know it by.
    pub exported: Vec<CString>,
    pub is_ifunc: bool,
    pub is_go: bool,
    pub is_variant_call: bool,
    /// Where the process begins: nobody calls it.
    pub is_entry_point: bool,
}

/// The functions of the file at `path` that `pattern` matches, and whether there are more than can
/// be followed. An error: the file cannot be read.
pub fn matching(path: &Path, pattern: &Pattern) -> Result<(Vec<Function>, bool), ()> {
    let image = Image::open(path).map_err(drop)?;
    let matches = image.matching(pattern, LIMIT);
    let defined = matches.functions.iter().filter_map(|function| {
        let name = function.names.first()?;
        let exported = function.names.iter().filter(|_| function.sources.dynamic);
        Some(Function {
            address: function.address? as usize,
            size: function.size as usize,
            name: demangle(name).unwrap_or_else(|| String::from_utf8_lossy(name).into_owned()),
            exported: exported
                .filter_map(|name| CString::new(*name).ok())
                .collect(),
            is_ifunc: function.is_ifunc,
            is_go: function.is_go,
            is_variant_call: function.is_variant_call,
            is_entry_point: function.address == Some(image.elf.entry),
        })
    });
    Ok((defined.collect(), matches.more))
}
