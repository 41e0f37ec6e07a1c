//! The functions in a module's file that match a `sym:` rule.

use std::ffi::CString;
use std::path::Path;

use tllmprof_symbols::{Image, Pattern, demangle};

/// A function that matches a `sym:` rule: its address, size, names and properties, as the symbol table of its module's
/// file gives them.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct MatchedFunction {
    /// The function's address in its file's symbol table, relative to the module's base.
    pub address: usize,
    pub size: usize,
    /// The function's demangled name.
    pub name: String,
    /// Names by which other modules may refer to the function.
    pub exported: Vec<CString>,
    pub is_ifunc: bool,
    pub is_go: bool,
    pub is_variant_call: bool,
    /// True for the entry point of the process, which no code calls.
    pub is_entry_point: bool,
}

/// Returns the functions in the file at `path` that match `pattern`, at most `limit`, and true if more functions match.
/// Fails if the file cannot be read.
pub(super) fn matching(
    path: &Path,
    pattern: &Pattern,
    limit: usize,
) -> Result<(Vec<MatchedFunction>, bool), ()> {
    let image = Image::open(path).map_err(drop)?;
    let matches = image.matching(pattern, limit);
    let defined = matches.functions.iter().filter_map(|function| {
        let name = function.names.first()?;
        let exported = function.names.iter().filter(|_| function.sources.dynamic);
        Some(MatchedFunction {
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

#[cfg(test)]
mod tests {
    use regex::bytes::Regex;
    use tllmprof_symbols::LIMIT;

    use super::*;

    fn pattern(regex: &str) -> Pattern {
        Pattern::new(&Regex::new(regex).unwrap())
    }

    #[test]
    fn a_function_is_found_by_the_name_that_a_user_would_call_it_by() {
        let us = std::env::current_exe().unwrap();
        let name = "named::functions::matching$";
        let (found, more) = matching(&us, &pattern(name), LIMIT).unwrap();
        let [function] = found.as_slice() else {
            panic!("{} functions", found.len());
        };
        assert!(!more && function.size > 0 && function.name.ends_with("functions::matching"));
        let module = tllmprof_platform::elf::containing(matching as *const () as usize).unwrap();
        let address = module.base.wrapping_add(function.address);
        assert_eq!(address, matching as *const () as usize);
        let is_odd = function.is_ifunc || function.is_go || function.is_variant_call;
        assert!(!is_odd && !function.is_entry_point);
        assert!(function.exported.is_empty(), "a program exports nothing");

        let (start, _) = matching(&us, &pattern("^_start$"), LIMIT).unwrap();
        assert!(start.iter().all(|function| function.is_entry_point) && !start.is_empty());
        let (none, more) = matching(&us, &pattern("^no function is called so$"), LIMIT).unwrap();
        assert!(none.is_empty() && !more);
        let (_, more) = matching(&us, &pattern("core"), LIMIT).unwrap();
        assert!(more, "more than can be followed");
    }

    #[test]
    fn what_is_no_program_has_no_functions() {
        for path in ["/proc/self/status", "/no/such/file", "/"] {
            assert!(
                matching(Path::new(path), &pattern("."), LIMIT).is_err(),
                "{path}"
            );
        }
    }
}
