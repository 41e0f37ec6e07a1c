//! Demangles names: C++ (Itanium) and Rust (legacy and v0).

use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Longest demangled name in bytes. Names can expand greatly, because they refer to parts of themselves.
const LONGEST_TEXT: usize = 1 << 16;

/// Returns a name demangled as `ns::Class<int>::f(int, char)`, without the return type of a template, and without the
/// hash of a Rust name; `None` if it is not mangled.
pub fn demangle(name: &[u8]) -> Option<String> {
    let mut shown = None;
    any(name, |text| {
        shown = Some(text.to_owned());
        true
    });
    shown
}

/// Returns true if `accept` accepts the demangled name, without or with the return type of a template.
pub fn any(name: &[u8], mut accept: impl FnMut(&str) -> bool) -> bool {
    if !is_mangled(name) {
        return false;
    }
    if let Some(text) = rust(name) {
        return accept(&text);
    }
    // The parser expects names that compilers make; a damaged name may make it panic.
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

/// Returns true if it ends with a Rust hash. Other C++ names could also be demangled as Rust's, but less well.
fn is_rust_legacy(name: &str) -> bool {
    let Some(end) = name.rfind("17h").map(|hash| &name[hash + 3..]) else {
        return false;
    };
    let digits = end.bytes().take_while(u8::is_ascii_hexdigit).count();
    // The closing E is not taken for a digit only because Rust writes lower-case digits.
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
    // Only functions that are templates themselves are mangled with their return type.
    let long = match &short {
        Some(short) if short.contains(">(") => text(DemangleOptions::new()),
        _ => None,
    };
    let long = long.filter(|long| Some(long) != short.as_ref());
    [short, long]
}

/// Text of bounded length.
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
        // Each argument is a pair of the one before, so the last has 2^n times the first.
        let mut name = String::from("_Z1f1A");
        name.push_str("St4pairIS_S_E");
        for step in 0..40 {
            name.push_str(&format!("St4pairIS{}_S{0}_E", 1 + step % 9));
        }
        let text = demangle(name.as_bytes());
        assert!(text.is_none_or(|text| text.len() <= LONGEST_TEXT));
    }
}
