//! Splits sources of several languages into comments and code.

use std::ffi::OsStr;
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    Rust,
    /// C, C++ or CUDA.
    C,
    TypeScript,
    Python,
}

impl Language {
    /// Returns the language of a file, given its path and its text. `None` if the language is not one of those above.
    pub(crate) fn find(path: &Path, text: &str) -> Option<Self> {
        match path.extension().and_then(OsStr::to_str) {
            Some("rs") => Some(Self::Rust),
            Some("c" | "h" | "cpp" | "cu") => Some(Self::C),
            Some("ts") => Some(Self::TypeScript),
            Some("py") => Some(Self::Python),
            None if text.starts_with("#!/usr/bin/env python3") => Some(Self::Python),
            _ => None,
        }
    }
}

/// A line of a comment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Comment {
    pub line: usize,
    /// The text of the line, without comment markers.
    pub text: String,
    /// True for `///`, `//!`, `/**`, or a Python docstring.
    pub is_doc: bool,
}

/// A source, divided into comments and code.
#[derive(Default, Debug)]
pub(crate) struct Source {
    /// The lines of all comments, in the order of the file.
    pub comments: Vec<Comment>,
    /// The source without comments and without the contents of strings. Line numbers stay the same.
    pub code: String,
}

impl Source {
    pub(crate) fn scan(text: &str, language: Language) -> Self {
        let mut source = Self::default();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let begun = source.code.rsplit('\n').next().unwrap_or_default();
            let (length, is_comment) = if let Some(length) = comment(rest, language) {
                (length, true)
            } else if let Some(length) = string(rest, begun, language) {
                let is_docstring = language == Language::Python && is_triple(rest);
                (length, is_docstring && begun.trim().is_empty())
            } else {
                source.code.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            };
            let (found, after) = rest.split_at(length);
            if is_comment {
                source.add(found);
            }
            let line_ends = found.chars().filter(|c| *c == '\n');
            source.code.extend(line_ends);
            rest = after;
        }
        source
    }

    /// Adds the lines of a comment to `comments`.
    fn add(&mut self, found: &str) {
        let is_doc = ["///", "//!", "/**", "\"\"\"", "'''"]
            .iter()
            .any(|marker| found.starts_with(marker));
        let first = 1 + self.code.matches('\n').count();
        let lines = (first..).zip(found.lines()).map(|(line, text)| {
            let markers = ['/', '!', '*', '#', '"', '\'', ' ', '\t'];
            let text = text.trim_matches(&markers[..]).to_owned();
            Comment { line, text, is_doc }
        });
        self.comments.extend(lines);
    }

    /// Returns the first line of each paragraph of the doc comments.
    pub(crate) fn doc_paragraphs(&self) -> impl Iterator<Item = &Comment> {
        let doc = |comment: &&Comment| comment.is_doc;
        let mut before = None;
        self.comments.iter().filter(doc).filter(move |comment| {
            let is_continued = before == Some(comment.line - 1);
            before = (!comment.text.is_empty()).then_some(comment.line);
            !is_continued
        })
    }
}

/// Returns the length, in bytes, of the comment at the beginning of the text, or `None` if there is no comment.
fn comment(text: &str, language: Language) -> Option<usize> {
    let line = if language == Language::Python {
        "#"
    } else {
        "//"
    };
    if text.starts_with(line) {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    let has_blocks = language != Language::Python;
    let inside = text.strip_prefix("/*").filter(|_| has_blocks)?;
    Some(inside.find("*/").map_or(text.len(), |end| end + 4))
}

fn is_triple(text: &str) -> bool {
    text.starts_with("\"\"\"") || text.starts_with("'''")
}

/// Returns the length, in bytes, of the string or character literal at the beginning of the text, or `None` if there is
/// none. `begun` is the code before that literal on the same line.
fn string(text: &str, begun: &str, language: Language) -> Option<usize> {
    let quote = text.chars().next()?;
    let is_own_word = !begun.ends_with(|c: char| c.is_alphanumeric() && !matches!(c, 'b' | 'c'));
    match (language, quote) {
        (Language::Rust, 'r') if is_own_word => raw(text),
        (Language::Rust, '"') => Some(closed(text, quote, true)),
        (Language::Rust, '\'') => character(text),
        (Language::Python, '"' | '\'') if is_triple(text) => {
            let end = text[3..].find(&text[..3]);
            Some(end.map_or(text.len(), |end| end + 6))
        }
        (Language::TypeScript, '`') => Some(closed(text, quote, true)),
        (Language::C | Language::TypeScript | Language::Python, '"' | '\'') => {
            Some(closed(text, quote, false))
        }
        _ => None,
    }
}

/// Returns the length, in bytes, of a raw string of Rust, such as `r#"a"#`.
fn raw(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let inside = text[1 + hashes..].strip_prefix('"')?;
    let end = inside.find(&format!("\"{}", "#".repeat(hashes)))?;
    Some(2 + hashes + end + 1 + hashes)
}

/// Returns the length, in bytes, of a character literal of Rust. Returns `None` for a lifetime, which also begins with
/// a quote.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    match first {
        '\\' => Some(closed(text, '\'', false)),
        _ => chars
            .next()
            .filter(|(_, c)| *c == '\'')
            .map(|(at, _)| at + 1),
    }
}

/// Returns the length, in bytes, of a string with escapes, including both quotes. If `has_lines` is false, a string
/// without a closing quote ends at the end of its line.
fn closed(text: &str, quote: char, has_lines: bool) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '\n' if !has_lines => return at,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
fn lines(text: &str, language: Language) -> Vec<(usize, String, bool)> {
    let comments = Source::scan(text, language).comments.into_iter();
    comments
        .map(|one| (one.line, one.text, one.is_doc))
        .collect()
}

#[test]
fn comments_of_rust_are_outside_its_strings() {
    let text = "//! One.\nlet a = '\"'; // two\nlet b = r#\"// \"no\" \"#; let c = \"\\\" // no\n// no\"; fn of<'a>() {} /* three\n * four */\nlet d = b'\\''; /// five";
    let wanted = [
        (1, "One.", true),
        (2, "two", false),
        (4, "three", false),
        (5, "four", false),
        (6, "five", true),
    ];
    let wanted = wanted.map(|(line, text, is_doc)| (line, text.to_owned(), is_doc));
    assert_eq!(lines(text, Language::Rust), wanted);
    let code = Source::scan(text, Language::Rust).code;
    assert_eq!(code.lines().nth(3), Some("; fn of<'a>() {} "));
    assert_eq!(code.lines().count(), 6, "{code}");
}

#[test]
fn comments_of_other_languages_are_found() {
    let found = |text, language| {
        let found = lines(text, language).into_iter();
        found
            .map(|(line, text, is_doc)| format!("{line} {text} {is_doc}"))
            .collect::<Vec<_>>()
    };
    let python = "#!x\n\"\"\"One.\n\nTwo.\n\"\"\"\na = '#' # three\nb = \"\"\"no\n# no\"\"\"\nit's = 1 # no\nc # four";
    assert_eq!(
        found(python, Language::Python),
        [
            "1 x false",
            "2 One. true",
            "3  true",
            "4 Two. true",
            "5  true",
            "6 three false",
            "10 four false"
        ]
    );
    let c = "char a = '\"'; /* one */ char *b = \"// no\"; // two";
    assert_eq!(found(c, Language::C), ["1 one false", "1 two false"]);
    let script = "/** One. */ const a = `// ${no}\n// no`; // two";
    assert_eq!(
        found(script, Language::TypeScript),
        ["1 One. true", "2 two false"]
    );
}

#[test]
fn a_paragraph_of_a_doc_comment_begins_after_a_blank_line() {
    let text = "/// One\n/// two.\n///\n/// Three.\nfn a() {} // no\n/// Four.\n";
    let source = Source::scan(text, Language::Rust);
    let opened: Vec<_> = source.doc_paragraphs().map(|one| &*one.text).collect();
    assert_eq!(opened, ["One", "Three.", "Four."]);
}
