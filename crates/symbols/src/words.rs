//! Finds words that a name must contain so that a regex can match it. A name without these words
//! need not be demangled.
//!
//! A mangled name contains all identifiers of the demangled name verbatim, even if it uses
//! abbreviations: an abbreviation refers to earlier text of the name. Words that the demanglers
//! add, such as types, operators and numbers, need not be in a mangled name. So this module never
//! requires such words.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Words {
    /// The words. Each name that matches the regex contains at least one of them.
    pub any: Vec<Vec<u8>>,
    /// True if the words are in lower case and must be compared with names in lower case.
    pub ignore_case: bool,
}

/// Maximum number of words that a regex may require. Names are searched for each word, so a regex with more
/// alternatives is treated as one that requires no word.
const MAX_WORDS: usize = 16;

/// Returns the required words of a regex: each name that matches the regex contains at least one of them. Returns
/// `None` if there are no such words.
pub(crate) fn required(regex: &str) -> Option<Words> {
    let mut words = any_of(&parse(regex)?, false, false, best_word)?;
    if words.ignore_case {
        for word in &mut words.any {
            word.make_ascii_lowercase();
        }
    }
    Some(words)
}

/// Returns texts such that every match of the regex contains at least one of them. Returns `None` if there are no such
/// texts, or if the regex ignores case. A search for these texts is much faster than the regex.
pub(crate) fn texts(regex: &str) -> Option<Vec<Vec<u8>>> {
    let texts = any_of(&parse(regex)?, false, false, |text, _, _| Some(text))?;
    (!texts.ignore_case).then_some(texts.any)
}

/// Parses a regex with the same options as the parser of rules.
fn parse(regex: &str) -> Option<Hir> {
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
    parser.parse(regex).ok()
}

/// Returns all words in a regex, for messages about rules that match nothing. The words are
/// probably the names that the author meant.
pub(crate) fn all(regex: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    if let Some(hir) = parse(regex) {
        all_in(std::slice::from_ref(&hir), &mut words);
    }
    words
}

fn all_in(mut parts: &[Hir], words: &mut Vec<Vec<u8>>) {
    while let Some((first, behind)) = parts.split_first() {
        if let Some((fixed, behind)) = fixed(parts) {
            let found = fixed.text.split(|byte| !is_word(*byte));
            words.extend(found.filter(|word| !word.is_empty()).map(<[u8]>::to_vec));
            parts = behind;
            continue;
        }
        match first.kind() {
            HirKind::Capture(capture) => all_in(std::slice::from_ref(&capture.sub), words),
            HirKind::Repetition(repetition) => {
                all_in(std::slice::from_ref(&repetition.sub), words);
            }
            HirKind::Concat(parts) => all_in(parts, words),
            HirKind::Alternation(parts) => {
                for part in parts {
                    all_in(std::slice::from_ref(part), words);
                }
            }
            _ => {}
        }
        parts = behind;
    }
}

/// A function that selects part of a text. The first flag is true if no identifier extends beyond the left end of the
/// text. The second flag is true if no identifier extends beyond the right end.
type Pick = fn(&[u8], bool, bool) -> Option<&[u8]>;

/// Finds texts such that every match of `hir` contains at least one of them. Returns the part of each text that `pick`
/// selects. `whole_left` is true if no identifier extends beyond the left end of the match, and `whole_right` is true
/// if none extends beyond the right end.
fn any_of(hir: &Hir, whole_left: bool, whole_right: bool, pick: Pick) -> Option<Words> {
    match hir.kind() {
        HirKind::Capture(capture) => any_of(&capture.sub, whole_left, whole_right, pick),
        HirKind::Repetition(repetition) if repetition.min == 0 => None,
        HirKind::Repetition(repetition) => any_of(&repetition.sub, false, false, pick),
        HirKind::Alternation(alternatives) => {
            let mut all = Words {
                any: Vec::new(),
                ignore_case: false,
            };
            for alternative in alternatives {
                let words = any_of(alternative, whole_left, whole_right, pick)?;
                all.any.extend(words.any);
                all.ignore_case |= words.ignore_case;
            }
            (all.any.len() <= MAX_WORDS).then_some(all)
        }
        HirKind::Concat(parts) => best_of(parts, whole_left, whole_right, pick),
        _ => best_of(std::slice::from_ref(hir), whole_left, whole_right, pick),
    }
}

/// A text that is the same in every match, apart from upper and lower case if `ignore_case` is true.
struct Fixed {
    text: Vec<u8>,
    ignore_case: bool,
}

/// Returns the required words of one of these consecutive parts of a regex. Chooses the part whose shortest word is
/// longest, because the words of this part exclude the most names. Returns `None` if no part requires a word.
fn best_of(parts: &[Hir], whole_left: bool, whole_right: bool, pick: Pick) -> Option<Words> {
    let mut found: Vec<Words> = Vec::new();
    let mut rest = parts;
    let mut at_edge = whole_left;
    while let Some((first, behind)) = rest.split_first() {
        let (fixed, behind) = match fixed(rest) {
            Some(both) => both,
            None => {
                let alone = matches!(
                    first.kind(),
                    HirKind::Capture(_) | HirKind::Repetition(_) | HirKind::Alternation(_)
                );
                if alone {
                    found.extend(any_of(first, at_edge, ends_word(behind, whole_right), pick));
                }
                at_edge = is_edge(first);
                rest = behind;
                continue;
            }
        };
        let word = pick(&fixed.text, at_edge, ends_word(behind, whole_right));
        found.extend(word.map(|word| Words {
            any: vec![word.to_vec()],
            ignore_case: fixed.ignore_case,
        }));
        at_edge = false;
        rest = behind;
    }
    let shortest = |words: &Words| words.any.iter().map(Vec::len).min();
    found.into_iter().max_by_key(shortest)
}

fn ends_word(behind: &[Hir], whole_right: bool) -> bool {
    behind.first().map_or(whole_right, is_edge)
}

/// Returns true if `hir` is an assertion at which a match or a word must begin or end, such as `^`
/// or `\b`.
fn is_edge(hir: &Hir) -> bool {
    let HirKind::Look(look) = hir.kind() else {
        return false;
    };
    !matches!(look, Look::WordAsciiNegate | Look::WordUnicodeNegate)
}

/// Returns the fixed text at the start of `parts`, and the parts after it. Returns `None` if `parts` do not start with
/// fixed text.
fn fixed(parts: &[Hir]) -> Option<(Fixed, &[Hir])> {
    let mut fixed = Fixed {
        text: Vec::new(),
        ignore_case: false,
    };
    let mut rest = parts;
    while let Some((first, behind)) = rest.split_first() {
        match first.kind() {
            HirKind::Literal(literal) => fixed.text.extend(&literal.0),
            HirKind::Class(class) => match letter(class) {
                Some(letter) => {
                    fixed.text.push(letter);
                    fixed.ignore_case = true;
                }
                None => break,
            },
            _ => break,
        }
        rest = behind;
    }
    (!fixed.text.is_empty()).then_some((fixed, rest))
}

/// If the class consists of one letter in upper and lower case, returns the letter in lower case.
fn letter(class: &Class) -> Option<u8> {
    let Class::Bytes(class) = class else {
        return None;
    };
    let [large, small] = class.ranges() else {
        return None;
    };
    let is_letter = large.start() == large.end()
        && small.start() == small.end()
        && small.start().is_ascii_lowercase()
        && large.start() == small.start().to_ascii_uppercase();
    is_letter.then(|| small.start())
}

/// Returns the longest word in `text` that no demangler adds, or `None` if there is none. The flags are those of
/// [`Pick`].
fn best_word(text: &[u8], whole_left: bool, whole_right: bool) -> Option<&[u8]> {
    let mut best: Option<&[u8]> = None;
    let mut start = 0;
    while start < text.len() {
        let length = text[start..].iter().take_while(|b| is_word(**b)).count();
        let end = start + length;
        let word = &text[start..end];
        let left = whole_left || start > 0;
        let right = whole_right || end < text.len();
        if length > best.map_or(0, <[u8]>::len) && !is_generated(word, left, right) {
            best = Some(word);
        }
        start = end + 1;
    }
    best
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns true if a demangler may add the word. If a flag is false, the word may be only a part of an identifier,
/// which extends beyond this end of the word.
fn is_generated(word: &[u8], whole_left: bool, whole_right: bool) -> bool {
    let digits = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Demanglers may add a number, with or without the suffix of its type, so a number cannot be a
    // required word.
    if word[digits..].len() <= 3 && word[digits..].iter().all(|b| b"uUlL".contains(b)) {
        return true;
    }
    GENERATED.iter().any(|generated| {
        let (generated, word) = (generated.as_bytes(), word);
        match (whole_left, whole_right) {
            (true, true) => generated.eq_ignore_ascii_case(word),
            (true, false) => starts_with(generated, word),
            (false, true) => {
                let end = generated.len().checked_sub(word.len());
                end.is_some_and(|end| starts_with(&generated[end..], word))
            }
            (false, false) => generated
                .windows(word.len().max(1))
                .any(|part| part.eq_ignore_ascii_case(word)),
        }
    })
}

fn starts_with(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(word))
}

/// Words that demanglers write for abbreviations in a mangled name. The words are from the strings
/// of `cpp_demangle` 0.5 (`src/ast.rs`) and `rustc-demangle` 0.1. Words that occur with a number
/// are listed together with the number.
#[rustfmt::skip]
const GENERATED: &[&str] = &[
    // These names have abbreviations in Itanium mangling.
    "std", "allocator", "basic_string", "string", "basic_istream", "basic_ostream", "basic_iostream",
    "istream", "ostream", "iostream", "char_traits", "nullptr_t", "anonymous", "namespace", "_GLOBAL_",
    "id", "objc_object", "abi",
    // Words that demanglers write in the names of C++ types.
    "void", "wchar_t", "bool", "char", "signed", "unsigned", "short", "int", "long", "__int128",
    "float", "double", "__float128", "_Float16", "_Float32", "_Float64", "_Float128", "_Float32x",
    "_Float64x", "_Float128x", "_BitInt", "_Accum", "_Fract", "_Sat", "char8_t", "char16_t", "char32_t",
    "bfloat16_t", "half", "decimal32", "decimal64", "decimal128", "auto", "decltype", "nullptr",
    "const", "volatile", "restrict", "complex", "imaginary", "_Complex", "_Imaginary", "__vector",
    "vector", "noexcept", "throw", "transaction_safe", "enum", "class", "union", "struct", "typename",
    "template", "extension",
    // Words that demanglers write for C++ operators and expressions.
    "operator", "new", "delete", "co_await", "sizeof", "alignof", "typeid", "dynamic_cast",
    "static_cast", "const_cast", "reinterpret_cast", "this", "true", "false", "literal", "requires",
    "concept", "enable_if", "and", "or", "not", "compl",
    // Words that demanglers write for code and data that are not functions in the source.
    "lambda", "unnamed", "type", "parm", "default", "arg", "clone", "vtable", "vtt", "VTT", "typeinfo",
    "name", "fn", "for", "guard", "variable", "reference", "temporary", "construction", "in", "virtual",
    "non", "override", "covariant", "return", "thunk", "to", "at", "offset", "TLS", "init", "wrapper",
    "function", "transaction", "global", "constructors", "destructors", "keyed", "block", "_block_invoke",
    "invocation", "base", "complete", "object", "allocating", "constructor", "destructor", "deleting",
    "java", "resource", "initializer", "module", "attached", "friend", "initial", "inline", "part",
    // Words that the Rust demangler writes.
    "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize", "f16", "f32",
    "f64", "f128", "str", "as", "dyn", "impl", "mut", "ref", "unsafe", "extern", "closure", "shim",
    "coroutine", "C",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(regex: &str) -> Vec<String> {
        required(regex).map_or_else(Vec::new, |words| {
            let words = words.any.into_iter().map(|w| String::from_utf8(w).unwrap());
            words.collect()
        })
    }

    #[test]
    fn words_that_every_match_holds() {
        assert_eq!(words("^llama_decode$"), ["llama_decode"]);
        assert_eq!(words(r"ns::Class<int>::decode\("), ["decode"]);
        assert_eq!(words("prefill|decode"), ["prefill", "decode"]);
        assert_eq!(words("(prefill|decode)_x"), ["prefill", "decode"]);
        assert_eq!(words("(?:forward)+_now"), ["forward"]);
        assert_eq!(words("Engine.*stepping"), ["stepping"]);
        assert_eq!(words("^(?:run)$"), ["run"]);
        assert_eq!(words("(decode)?|x"), [""; 0]);
        assert_eq!(words("(?:decode)*"), [""; 0]);
        assert_eq!(words("[ab]"), [""; 0]);
        assert_eq!(words(""), [""; 0]);
    }

    #[test]
    fn what_demanglers_write_is_no_such_word() {
        for regex in [
            "operator",
            "tor<",
            "std::",
            "::string",
            "unsigned",
            "lambda",
            "^16",
            "3ul",
            "str",
            r"operator\(\)",
            "(?i)OPERATOR",
            "f",
        ] {
            assert_eq!(words(regex), [""; 0], "{regex}");
        }
        // A whole word is required if it differs from every generated word, even if a generated word
        // contains it.
        assert_eq!(words("^tor$"), ["tor"]);
        assert_eq!(words(r"\bper::"), ["per"]);
        assert_eq!(words(r"per\b"), [""; 0]);
        assert_eq!(words(r"gine\b"), ["gine"]);
        assert_eq!(words(r"ator\b"), [""; 0]);
        assert_eq!(words("^oper"), [""; 0]);
    }

    #[test]
    fn case_is_ignored_where_the_regex_does() {
        let words = required("(?i)Decode_2").unwrap();
        assert!(words.ignore_case);
        assert_eq!(words.any, [b"decode_2"]);
        let words = required("(?i:PRE)fill|Decode").unwrap();
        assert!(words.ignore_case);
        assert_eq!(words.any, [&b"prefill"[..], b"decode"]);
    }

    #[test]
    fn texts_hold_also_what_demanglers_write() {
        assert_eq!(
            texts(r"^std::operator\(\)"),
            Some(vec![b"std::operator()".to_vec()])
        );
        assert_eq!(texts("(?i)step"), None);
        assert_eq!(texts("a*"), None);
    }

    #[test]
    fn the_words_say_what_was_meant() {
        for (regex, meant) in [
            (r"^ns::Class::\w+_decode\(", "ns Class _decode"),
            ("step|forward", "step forward"),
            (r"\bstep\b", "step"),
            ("(?i)Step", "step"),
            ("(llama)+_x", "llama _x"),
            (".*", ""),
        ] {
            let words = all(regex).join(&b' ');
            assert_eq!(String::from_utf8(words).unwrap(), meant, "{regex}");
        }
    }
}
