//! Tests of the vocabulary: words that messages and documents avoid, and the words to use instead.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Words that string literals of the crates and documents avoid. Each is a pattern of whole words, with better words.
pub(crate) const WORDS: [(&str, &str); 29] = [
    ("tells?|told|telling", "log, report, show, warn"),
    ("lets? (it |them )?be", "leaves alone"),
    ("sees? to (it|that|a|an|the)", "installs, makes sure"),
    ("(that|which|who) (is|are) well", "is healthy"),
    ("(comes?|came) to nothing", "has no effect"),
    ("nothing (comes|came) of", "has no effect"),
    ("neither comes nor goes", "is never attached or detached"),
    ("`[^`]+` is without", "set X to disable it"),
    ("demands", "requires"),
    ("mend(s|ed|ing)?", "fix"),
    ("gated", "control, switch"),
    ("hinders?", "prevent"),
    ("of no use", "cannot be used"),
    ("as it were", "leave it out"),
    ("in the midst", "inside, in the middle"),
    ("fulfill?(s|ed)?", "satisfy"),
    ("whoever|whosoever", "name who"),
    ("somebody|anybody('s)?|nobody('s)?", "name who"),
    ("counts? no more", "stopped counting"),
    ("not any more", "no longer"),
    ("that is no [a-z]+", "that is not a …"),
    (
        "(it|this|which|value|field) is no (UTF-8|ELF|number|record|list|text|call|folder|file|fault)",
        "is not a …",
    ),
    ("may not be executed", "is not executable"),
    ("lets (this|the) [a-z]+ not", "does not let"),
    ("are called so", "have the same name"),
    ("unlike (commands|runs|ranks)", "different"),
    ("has come to [0-9{]", "has reached"),
    ("takes? no notice", "ignores"),
    ("be had here", "be fetched, be found"),
];
/// Documents that quote other projects, or that a program generates. They are not checked.
const LEFT_OUT: [&str; 1] = ["docs/harmless.md"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Finds the files below a folder that have this extension, without tests.
pub(crate) fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() {
            if !matches!(&*name, "tests" | "target" | "node_modules" | "fuzzed") {
                files(&path, extension, found);
            }
        } else if path.extension().is_some_and(|of| of == extension) && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Returns the string literals of a source with their line numbers. Literals of its tests module are left out.
pub(crate) fn literals(source: &str) -> Vec<(usize, String)> {
    let source = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let mut found = Vec::new();
    let mut chars = source.chars().peekable();
    let (mut line, mut begun) = (1, 0);
    let mut text = None::<String>;
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match (c, &mut text) {
            ('"', None) => (text, begun) = (Some(String::new()), line),
            ('"', Some(_)) => found.extend(text.take().map(|text| (begun, text))),
            ('\\', Some(text)) => match chars.next() {
                // A backslash at the end of a line: the string continues on the next line, without that line's leading
                // blanks.
                Some('\n') => {
                    line += 1;
                    while chars.next_if(|c| *c == ' ').is_some() {}
                }
                Some(escaped) => text.extend(['\\', escaped]),
                None => {}
            },
            (c, Some(text)) => text.push(c),
            ('\'', None) => {
                // This is a character literal or a lifetime. A lifetime has no closing quote, so nothing is skipped for
                // it.
                let mut ahead = chars.clone();
                let first = ahead.next();
                if first == Some('\\') || ahead.next() == Some('\'') {
                    chars.nth(1);
                }
            }
            ('/', None) if chars.peek() == Some(&'/') => {
                while chars.next_if(|c| *c != '\n').is_some() {}
            }
            _ => {}
        }
    }
    found
}

/// A verdict of `compare`. It is part of the interface, so it stays although its word is on the list.
const VERDICT: &str = "cannot tell";

fn wrong(text: &str, words: &[(Regex, &str)]) -> Option<String> {
    let text = &text.replace(VERDICT, "");
    let small = text.to_lowercase();
    let (word, better) = words.iter().find_map(|(word, better)| {
        let found = word.find(text).or_else(|| word.find(&small))?;
        Some((found.as_str(), better))
    })?;
    Some(format!("{word:?} (better: {better})"))
}

fn compiled() -> Vec<(Regex, &'static str)> {
    WORDS
        .iter()
        .map(|(word, better)| {
            (
                Regex::new(&format!(r"(?-u:\b)(?:{word})(?-u:\b|$)")).unwrap(),
                *better,
            )
        })
        .collect()
}

#[test]
fn messages_use_the_words_of_the_field() {
    let words = compiled();
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    files(&root().join("src"), "rs", &mut sources);
    let mut found = Vec::new();
    let mut strings = 0;
    for source in &sources {
        for (line, text) in literals(&fs::read_to_string(source).unwrap()) {
            strings += 1;
            if let Some(wrong) = wrong(&text, &words) {
                found.push(format!("{}:{line}: {wrong} in {text:?}", source.display()));
            }
        }
    }
    assert!(
        strings > 3000,
        "{strings} strings in {} files",
        sources.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn documents_use_the_words_of_the_field() {
    let words = compiled();
    let mut pages = vec![root().join("README.md"), root().join("examples/README.md")];
    files(&root().join("docs"), "md", &mut pages);
    let mut found = Vec::new();
    for page in &pages {
        if LEFT_OUT.iter().any(|name| page.ends_with(name)) {
            continue;
        }
        for (number, line) in (1..).zip(fs::read_to_string(page).unwrap().lines()) {
            if let Some(wrong) = wrong(line, &words) {
                found.push(format!("{}:{number}: {wrong}", page.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_are_found_in_literals_alone() {
    let source = "// \"told\"\nlet a = '\"'; f::<'a>(\"one \\\n    two\", \"it told\\\" us\"); // \"told\"\n\
                  #[cfg(test)]\nmod tests { const X: &str = \"told\"; }";
    let found = literals(source);
    assert_eq!(
        found,
        [(2, "one two".to_owned()), (3, "it told\\\" us".to_owned())]
    );
    let words = compiled();
    assert!(wrong(&found[1].1, &words).is_some() && wrong("untold riches", &words).is_none());
    assert!(wrong("Told at the start", &words).is_some());
}
