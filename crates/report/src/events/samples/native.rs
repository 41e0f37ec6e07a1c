//! The names of native functions. Records contain a native function as `MODULE+0xOFFSET`.
//!
//! The function's name is looked up in the module's file only if the record was made on this
//! machine since the last boot. On another machine, a file of the same name may be different.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use tllmprof_symbols::{Image, demangle};

use super::STATIC_RUNTIME;
use super::function::{Function, Origin};
use crate::events::facts::{Facts, name};

/// Maximum number of modules (programs and libraries) whose symbols are read. Functions in further modules are shown
/// without names, as `MODULE+0xOFFSET`.
const MAX_MODULES: usize = 64;

/// The name of all functions of tllmprof's own library, which ships without symbols.
const RECORDER: &str = "tllmprof's recorder";

/// The symbols of the modules that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    is_here: bool,
    known: HashMap<String, Vec<Symbol>>,
}

/// A function in a module's file, with its address in that file.
#[derive(Debug)]
struct Symbol {
    start: u64,
    end: u64,
    /// The function's name, mangled as in the module's file.
    name: Vec<u8>,
}

impl Modules {
    /// Returns a table without symbols, for a record of the process that `facts` describes.
    pub(crate) fn new(facts: &Facts) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let is_here = boot.is_ok_and(|boot| !facts.boot.is_empty() && boot.trim() == facts.boot);
        Self {
            is_here,
            known: HashMap::new(),
        }
    }

    /// Returns the native function for a text of the form `MODULE+0xOFFSET`. If no symbol is found for the text, the
    /// text is the function's name.
    pub(crate) fn function(&mut self, text: &str) -> Function {
        let found = text.rsplit_once("+0x").and_then(|(module, offset)| {
            let offset = u64::from_str_radix(offset, 16).ok()?;
            self.symbol(module, offset)
        });
        let name = name(found.as_deref().unwrap_or(text));
        let label = match found {
            Some(_) => name.clone(),
            None => name.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        let file = text.rsplit_once("+0x").map_or("", |(module, _)| module);
        let origin = match origin(file) {
            Origin::Program if name.starts_with(STATIC_RUNTIME) => Origin::Driver,
            Origin::Program if is_of_language(&name) => Origin::Runtime,
            origin => origin,
        };
        if origin == Origin::Recorder && found.is_none() {
            return Function {
                name: RECORDER.to_owned(),
                label: RECORDER.to_owned(),
                origin,
            };
        }
        Function {
            name,
            label,
            origin,
        }
    }

    fn symbol(&mut self, module: &str, offset: u64) -> Option<String> {
        let is_known = self.known.contains_key(module) || self.known.len() < MAX_MODULES;
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
        let name = || demangle(&symbol.name).unwrap_or_else(lossy);
        (offset < symbol.end).then(|| without_version(&name()))
    }
}

/// Returns a function's name without the version of Abseil, as in `absl::lts_20260526::Mutex::Lock` and
/// `AbslInternalPerThreadSemWait_lts_20260526`.
fn without_version(name: &str) -> String {
    const BEGINS: &str = "lts_";
    let mut parts = name.split(BEGINS);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let after = &part[digits..];
        let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        match after.strip_prefix("::") {
            Some(after) if digits == 8 && plain.ends_with("::") => plain += after,
            None if digits == 8 && plain.ends_with('_') && !after.starts_with(is_of_name) => {
                plain.pop();
                plain += after;
            }
            _ => {
                plain += BEGINS;
                plain += part;
            }
        }
    }
    plain
}

/// Returns true if a native function is in the file of a program, and not in a shared library. `text` has the form
/// `MODULE+0xOFFSET`.
pub(super) fn is_in_program(text: &str) -> bool {
    let module = text.rsplit_once("+0x").map_or("", |(module, _)| module);
    let file = module.rsplit('/').next().unwrap_or_default();
    !file.is_empty() && !file.contains(".so")
}

/// Returns the kind of code in a module, which is recognized by the module's file name.
fn origin(module: &str) -> Origin {
    const ROWS: [(Origin, &[&str]); 5] = [
        (
            Origin::C,
            &[
                "libc.so",
                "libc-2",
                "libpthread",
                "librt.so",
                "librt-2",
                "ld-linux",
                "ld-musl",
                "ld-2",
                "linux-vdso",
            ],
        ),
        (
            Origin::Runtime,
            &[
                "libstdc++",
                "libc++",
                "libgcc_s",
                "libm.so",
                "libm-2",
                "libffi",
                "libgomp",
                "libomp",
                "libiomp",
            ],
        ),
        (Origin::Recorder, &["libtllmprof"]),
        (Origin::Interpreter, &["libpython", "python"]),
        (Origin::Driver, &["libcuda.so", "libcudart", "libnvidia-"]),
    ];
    let file = module.rsplit('/').next().unwrap_or_default();
    if module.contains("/lib-dynload/") {
        return Origin::Interpreter;
    }
    let begins = |names: &[&str]| names.iter().any(|name| file.starts_with(name));
    let row = ROWS.iter().find(|(_, names)| begins(names));
    row.map_or(Origin::Program, |(origin, _)| *origin)
}

/// Returns true if a function belongs to the standard library of a language, or to a similar base library (Abseil,
/// parking_lot). The function's name decides this, because parts of such libraries are compiled into other modules.
fn is_of_language(name: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "absl::",
        "AbslInternal",
        "std::",
        "core::",
        "alloc::",
        "parking_lot",
        "__gnu_cxx::",
        "_start",
    ];
    let mut depth = 0_usize;
    let mut plain = String::new();
    for character in name.chars() {
        match character {
            // A `<` at the beginning, as in `<std::…::Mutex>::lock`, encloses a type and not
            // template arguments.
            '<' if plain.is_empty() => {}
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    // In the name of a template's instance, the return type comes first; remove it.
    let plain = plain.rsplit(' ').next().unwrap_or_default();
    PREFIXES.iter().any(|prefix| plain.starts_with(prefix))
}

/// Returns the functions in a file, in the order of their addresses. The list is empty if the file
/// cannot be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_version_of_abseil() {
        for (name, expected) in [
            (
                "AbslInternalPerThreadSemWait_lts_20260526",
                "AbslInternalPerThreadSemWait",
            ),
            (
                "absl::lts_20260526::Await(absl::lts_20260526::Mutex*)",
                "absl::Await(absl::Mutex*)",
            ),
            ("results_20260526", "results_20260526"),
            ("lts_20260526_of", "lts_20260526_of"),
            ("with_lts_2026", "with_lts_2026"),
            ("with_lts_20260526x", "with_lts_20260526x"),
        ] {
            assert_eq!(without_version(name), expected);
        }
    }

    #[test]
    fn functions_of_shared_libraries_are_not_in_the_program() {
        for (text, expected) in [
            ("/srv/server+0x1b0", true),
            ("/x/site-packages/torch/lib/libtorch_cpu.so+0x10", false),
            ("/usr/lib/libfoo.so.3+0x10", false),
            ("step", false),
        ] {
            assert_eq!(is_in_program(text), expected, "{text}");
        }
    }

    #[test]
    fn the_recorders_functions_without_symbols_have_one_name() {
        let mut modules = Modules::new(&Facts::default());
        for offset in ["0x20", "0x3000"] {
            let function = modules.function(&format!("/opt/libtllmprof.so+{offset}"));
            assert_eq!(function.label, "tllmprof's recorder");
            assert_eq!(function.origin, Origin::Recorder);
        }
    }

    #[test]
    fn functions_of_languages_and_of_the_system_are_not_the_programs() {
        for (module, expected) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", Origin::C),
            ("/lib64/libpthread-2.31.so", Origin::C),
            ("/lib64/libstdc++.so.6", Origin::Runtime),
            ("/opt/tllmprof/libtllmprof.so", Origin::Recorder),
            ("/usr/lib/libpython3.12.so.1.0", Origin::Interpreter),
            ("/usr/bin/python3.12", Origin::Interpreter),
            (
                "/usr/lib/python3.12/lib-dynload/_queue.so",
                Origin::Interpreter,
            ),
            ("/usr/lib/libcuda.so.550.54.15", Origin::Driver),
            ("/opt/libcpu.so", Origin::Program),
            ("/opt/server", Origin::Program),
        ] {
            assert_eq!(origin(module), expected, "{module}");
        }
        for name in [
            "std::condition_variable::wait(std::unique_lock<std::mutex>&)",
            "void std::condition_variable::wait<take_batch()::{lambda()#1}>(int)",
            "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
            "std::sys::sync::condvar::futex::Condvar::wait",
            "AbslInternalPerThreadSemWait_lts_20260526",
        ] {
            assert!(is_of_language(name), "{name}");
        }
        for name in [
            "take_batch",
            "std::vector<int> take_batch<int>(std::string)",
            "Engine::step(std::vector<int>)",
            "stdio_flush",
        ] {
            assert!(!is_of_language(name), "{name}");
        }
    }
}
