//! Demangles names of C++ (Itanium scheme) and of Rust (legacy and v0 schemes).

use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Maximum length of a demangled name in bytes. A name can expand greatly, because it may refer to parts of itself.
const LONGEST_TEXT: usize = 1 << 16;

/// Returns a demangled name like `ns::Class<int>::f(int, char)`. The return type of a template and
/// the hash of a Rust name are left out. Returns `None` if the name is not mangled.
pub fn demangle(name: &[u8]) -> Option<String> {
    let mut shown = None;
    any(name, |text| {
        shown = Some(text.to_owned());
        true
    });
    shown
}

/// Calls `accept` with each demangled form of the name, and returns true as soon as `accept` does.
/// The name of a C++ function template has two forms: without and with its return type.
pub(crate) fn any(name: &[u8], mut accept: impl FnMut(&str) -> bool) -> bool {
    if !is_mangled(name) {
        return false;
    }
    if let Some(text) = rust(name) {
        return accept(&text);
    }
    // The parser expects names that compilers produce, and may panic on a damaged name. Such a name then has no
    // demangled texts.
    let texts = catch_unwind(AssertUnwindSafe(|| cpp(name))).unwrap_or_default();
    texts.iter().flatten().any(|text| accept(text))
}

fn is_mangled(name: &[u8]) -> bool {
    name.starts_with(b"_Z") || name.starts_with(b"_R") || name.starts_with(b"_GLOBAL_")
}

fn rust(name: &[u8]) -> Option<String> {
    let text = str::from_utf8(name).ok()?;
    if !text.starts_with("_R") && !is_rust_legacy(text) {
        return None;
    }
    let symbol = rustc_demangle::try_demangle(text).ok()?;
    let mut out = Bounded::default();
    write!(out, "{symbol:#}").ok()?;
    Some(out.0)
}

/// Returns true if the name contains what ends a legacy Rust name: `17h`, a hash and `E`. The Rust demangler also
/// accepts many C++ names, but formats them less well, so C++ names must not be passed to it.
fn is_rust_legacy(name: &str) -> bool {
    let Some(end) = name.rfind("17h").map(|hash| &name[hash + 3..]) else {
        return false;
    };
    let digits = end.bytes().take_while(u8::is_ascii_hexdigit).count();
    // `digits` may include the closing `E`, which is also a hexadecimal digit. Rust writes the 16 digits of the hash
    // in lower case, so an upper-case `E` after them is not one of them.
    digits >= 16 && end.as_bytes().get(16) == Some(&b'E')
}

fn cpp(name: &[u8]) -> [Option<String>; 2] {
    let Ok(symbol) = BorrowedSymbol::new(name) else {
        return [None, None];
    };
    let text = |options: DemangleOptions| {
        let mut out = Bounded::default();
        symbol.structured_demangle(&mut out, &options).ok()?;
        Some(out.0)
    };
    let short = text(DemangleOptions::new().no_return_type());
    // Only the mangled names of function templates contain a return type, so only these names have
    // a second form.
    let long = match &short {
        Some(short) if short.contains(">(") => text(DemangleOptions::new()),
        _ => None,
    };
    let long = long.filter(|long| Some(long) != short.as_ref());
    [short, long]
}

/// A text that can hold at most [`LONGEST_TEXT`] bytes.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_their_language_writes_them() {
        for (name, text) in [
            ("_ZN2ns5ClassIiE1fEic", "ns::Class<int>::f(int, char)"),
            ("_ZN2ns5twiceIiEET_S1_", "ns::twice<int>(int)"),
            ("_Z1fi.part.0", "f(int) [clone .part.0]"),
            ("_ZN6engine4step17h0123456789abcdefE", "engine::step"),
            (
                "_ZN6engine4step17h0123456789abcdefE.llvm.12345",
                "engine::step",
            ),
            ("_RNvCs1234_6engine4step", "engine::step"),
        ] {
            assert_eq!(demangle(name.as_bytes()).as_deref(), Some(text), "{name}");
        }
        for name in ["llama_decode", "", "_Z", "_R", "_ZN", "main.(*T).Step"] {
            assert_eq!(demangle(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_template_is_known_with_and_without_what_it_returns() {
        let mut texts = Vec::new();
        any(b"_ZN2ns5twiceIiEET_S1_", |text| {
            texts.push(text.to_owned());
            false
        });
        assert_eq!(texts, ["ns::twice<int>(int)", "int ns::twice<int>(int)"]);
        texts.clear();
        any(b"_ZNK2ns5ClassIiEcvT_ImEEv", |text| {
            texts.push(text.to_owned());
            false
        });
        assert_eq!(texts.len(), 1, "{texts:?}");
    }

    #[test]
    fn a_name_that_says_too_much_is_not_demangled() {
        // Each argument is a pair of two copies of the argument before it, so each is about twice as long as the one
        // before.
        let mut name = String::from("_Z1f1A");
        name.push_str("St4pairIS_S_E");
        for step in 0..40 {
            name.push_str(&format!("St4pairIS{}_S{0}_E", 1 + step % 9));
        }
        let text = demangle(name.as_bytes());
        assert!(text.is_none_or(|text| text.len() <= LONGEST_TEXT));
    }
}
