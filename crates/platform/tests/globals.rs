//! Tests that every mutable static of the preloaded library is declared with `lifecycle::global!`, which states how a
//! fork and a restart of the interpreter affect it.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemStatic, Macro, Meta, StaticMutability, Type};

/// Crates that are not part of the preloaded library: the crates of the `tllmprof` command, and those that only the
/// fuzzer uses.
const OUTSIDE: [&str; 6] = ["cli", "export", "fuzzed", "nsys", "page", "report"];
/// Crates that use the Python interpreter. Their statics must also state the effect of a restart of the
/// interpreter.
const INTERPRETER: [&str; 2] = ["crates/python/", "crates/router/"];
/// The file that defines `global!`. Statics in the bodies of its macros are not checked.
const MACROS: &str = "crates/platform/src/lifecycle.rs";
/// Types without interior mutability. A static of one of these types need not be declared with `global!`.
const PLAIN: [&str; 21] = [
    "bool",
    "char",
    "i8",
    "i16",
    "i32",
    "i64",
    "isize",
    "u8",
    "u16",
    "u32",
    "u64",
    "usize",
    "str",
    "CStr",
    "Handlers",
    "JumpsAt",
    "Layout",
    "MethodDef",
    "Needs",
    "OwnHeap",
    "Wiring",
];

/// Returns one line for each wrong mutable static of a file. A static is wrong if it is not declared with `global!`, or
/// if its declaration has a `restart` attribute where it must not have one, or lacks a required one.
fn wrong(path: &str, source: &str) -> Vec<String> {
    let file = syn::parse_file(source).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut statics = Statics {
        path,
        wrong: Vec::new(),
    };
    if !is_for_tests(&file.attrs) {
        statics.visit_file(&file);
    }
    statics.wrong
}

struct Statics<'a> {
    path: &'a str,
    wrong: Vec<String>,
}

impl Statics<'_> {
    fn note(&mut self, at: &impl Spanned, what: &str) {
        let line = at.span().start().line;
        self.wrong.push(format!("{}:{line}: {what}", self.path));
    }

    /// Checks that each static in a call of `global!` has a `restart` attribute if its crate uses the Python
    /// interpreter ([`INTERPRETER`]), and has none otherwise.
    fn declared(&mut self, tokens: &TokenStream) {
        let body = |input: ParseStream<'_>| {
            if input.peek2(syn::Token![:]) {
                input.parse::<syn::Ident>()?;
                input.parse::<syn::Token![:]>()?;
                input.parse::<syn::Ident>()?;
                input.parse::<syn::Token![;]>()?;
            }
            let mut statics = Vec::new();
            while !input.is_empty() {
                statics.push(input.parse::<ItemStatic>()?);
            }
            Ok(statics)
        };
        let statics = match body.parse2(tokens.clone()) {
            Ok(statics) => statics,
            Err(error) => return self.note(&error.span(), &format!("{error}")),
        };
        let may_restart = INTERPRETER.iter().any(|krate| self.path.starts_with(krate));
        for item in statics {
            let says = |what| item.attrs.iter().any(|attr| attr.path().is_ident(what));
            if says("restart") != may_restart {
                let says = if may_restart { "does not say" } else { "says" };
                self.note(&item, &format!("{} {says} what a restart does", item.ident));
            }
        }
    }

    /// Searches the tokens of a macro call other than `global!` for statics, which the macro may define when it is
    /// expanded.
    fn look_into(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) if !is_call_of_global(&tokens[..index]) => {
                    self.look_into(group.stream());
                }
                TokenTree::Ident(ident) if ident == "static" => {
                    let lifetime = index.checked_sub(1).and_then(|before| tokens.get(before));
                    let is_lifetime =
                        matches!(lifetime, Some(TokenTree::Punct(mark)) if mark.as_char() == '\'');
                    if !is_lifetime {
                        self.note(ident, "a static of a macro, not declared with global!");
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns true if these tokens end with `global!`.
fn is_call_of_global(before: &[TokenTree]) -> bool {
    matches!(
        before,
        [.., TokenTree::Ident(name), TokenTree::Punct(mark)] if name == "global" && mark.as_char() == '!'
    )
}

/// Returns true if the item is compiled only for tests, or only with a Cargo feature that the library is built without.
fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg")
            && attr
                .parse_args::<Meta>()
                .is_ok_and(|what| what.path().is_ident("test") || what.path().is_ident("feature"))
    })
}

fn is_plain(kind: &Type) -> bool {
    match kind {
        Type::Array(array) => is_plain(&array.elem),
        Type::Slice(slice) => is_plain(&slice.elem),
        Type::Reference(reference) => reference.mutability.is_none() && is_plain(&reference.elem),
        Type::Tuple(tuple) => tuple.elems.iter().all(is_plain),
        // A reference to a trait object is allowed: its target has no state, or is a static that is checked
        // itself.
        Type::FnPtr(_) | Type::TraitObject(_) => true,
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            last.arguments.is_none() && PLAIN.iter().any(|plain| last.ident == plain)
        }),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Statics<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        // A table that the linker builds, or an element of such a table, needs no declaration.
        let is_row = item.attrs.iter().any(|attr| {
            let last = attr.path().segments.last();
            last.is_some_and(|last| last.ident == "distributed_slice")
        });
        let is_mutable = !matches!(item.mutability, StaticMutability::None);
        if is_mutable || !is_row && !is_plain(&item.ty) {
            self.note(
                item,
                &format!("{} is not declared with global!", item.ident),
            );
        }
        visit::visit_item_static(self, item);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        if call
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "global")
        {
            self.declared(&call.tokens);
        } else if self.path != MACROS {
            self.look_into(call.tokens.clone());
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_static_says_what_becomes_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    for krate in fs::read_dir(root.join("crates")).expect("the crates") {
        let krate = krate.expect("a crate").path();
        if !OUTSIDE.iter().any(|name| krate.ends_with(name)) {
            sources(&krate.join("src"), &mut files);
        }
    }
    assert!(files.len() > 100, "{} files", files.len());
    let mut all = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).expect("below the root");
        let source = fs::read_to_string(&file).expect("a source");
        all.extend(wrong(&path.to_string_lossy(), &source));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn what_is_not_declared_is_found() {
    let undeclared = [
        "static COUNT: AtomicU64 = AtomicU64::new(0);",
        "static STATE: core::cell::OnceCell<u8> = OnceCell::new();",
        "static TABLE: [(u8, Lock<()>); 1] = [(0, Lock::new(()))];",
        "static OURS: Unknown = Unknown;",
        "static mut NUMBER: u8 = 0;",
        "fn inner() { static ONCE: AtomicBool = AtomicBool::new(false); }",
        "impl X { fn inner() { if true { static A: Published<u8> = Published::none(); } } }",
        "macro_rules! hidden { () => { static SAID: AtomicBool = AtomicBool::new(false); }; }",
        "thread_local! { static CELL: Cell<u8> = const { Cell::new(0) }; }",
        "lifecycle::global! { #[fork(reset)] static A: u8 = 0 }",
        "lifecycle::global! { #[fork(reset)] #[restart(reset)] static A: u8 = 0; }",
    ];
    for source in undeclared {
        assert_eq!(
            wrong("crates/session/src/x.rs", source).len(),
            1,
            "{source}"
        );
    }
    let silent = "lifecycle::global! { stage: Sinks; /// Doc.\n #[fork(reset)] static A: u8 = 0; }";
    assert_eq!(wrong("crates/python/src/x.rs", silent).len(), 1);
    let fine = [
        silent,
        "static NAMES: [&str; 1] = [\"a\"];",
        "#[linkme::distributed_slice(ALL)] static ROW: Row = Row { act };",
        "static EVENTS: &[(&CStr, MethodDef)] = &[];",
        "fn inner(text: &'static str) -> bool { matches!(text, _x if is::<&'static str>()) }",
        "macro_rules! once { () => {{ $crate::global! { #[fork(reset)] static A: u8 = 0; } }}; }",
        "#[cfg(test)] mod tests { static A: AtomicU8 = AtomicU8::new(0); }",
        "#![cfg(feature = \"builder\")] static A: AtomicU8 = AtomicU8::new(0);",
    ];
    for source in fine {
        assert_eq!(
            wrong("crates/session/src/x.rs", source),
            [""; 0],
            "{source}"
        );
    }
}
