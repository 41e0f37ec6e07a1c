//! Tests of comments and names: words that comments avoid, and names that say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::source::{Language, Source};
use super::words::{WORDS, root};

/// Words that comments must avoid in addition to [`WORDS`]; messages may contain them. Each entry is a pattern of whole
/// words, and a better word.
const IN_COMMENTS: [(&str, &str); 4] = [
    ("behind", "after"),
    ("alone", "only"),
    ("go(es)? on", "continues"),
    ("so many", "that number of"),
];
/// Limit for the number of doc comments, in all files, that begin with one of [`OPENINGS`]: there must be fewer. The
/// limit is not 0, because the help texts of options begin in this way.
const MAX_OPENINGS: usize = 200;
/// Limit for the number of comment lines, in all files, that contain a word from [`WORDS`] or [`IN_COMMENTS`]: there
/// must be fewer.
const MAX_WORDS: usize = 150;
/// Words that begin a clause. A doc comment has to begin with a sentence or a noun phrase instead.
const OPENINGS: &str = r"^(What|Whether|How|Where|Which)(?-u:\b)";
/// A pattern of names that do not say what the function or constant is for.
const NAMES: &str = r"(?-u:\b)(fn of|(const|static) (MOST|PATIENCE|LOOK))(?-u:\b)";

/// A pattern of the types and traits that a module defines. Associated types, such as `Output`, and types inside
/// functions do not match, because they are indented.
const TYPES: &str = r"(?m)^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait|type) ([A-Z][A-Za-z0-9_]*)";
/// Maximum number of files that define a type of the same name. With more, a reader could not guess which type is
/// meant.
const MAX_TYPES_OF_A_NAME: usize = 2;

/// Every source of the repository in one of the known languages. The name of each is its path below the repository's
/// root.
static SOURCES: LazyLock<Vec<(String, Source)>> = LazyLock::new(|| {
    let mut found = Vec::new();
    for folder in [
        "bench", "crates", "examples", "fuzz", "scripts", "src", "tests",
    ] {
        collect(&root().join(folder), &mut found);
    }
    found.push(root().join("build.rs"));
    found.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        let language = Language::find(&path, &text)?;
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        Some((name, Source::scan(&text, language)))
    };
    let all: Vec<_> = found.into_iter().filter_map(read).collect();
    let comments: usize = all.iter().map(|(_, source)| source.comments.len()).sum();
    assert!(
        comments > 10_000,
        "{comments} comments in {} files",
        all.len()
    );
    all
});

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            let is_made =
                matches!(&*name, "target" | "node_modules" | "dist") || name.starts_with('.');
            if !is_made {
                collect(&entry.path(), found);
            }
        } else {
            found.push(entry.path());
        }
    }
}

/// Returns a pattern that finds any word from [`WORDS`] or [`IN_COMMENTS`] in a text in lower case.
fn any_word() -> Regex {
    let words = WORDS.iter().chain(&IN_COMMENTS).map(|(word, _)| *word);
    let words = words.collect::<Vec<_>>().join("|").to_lowercase();
    Regex::new(&format!(r"(?-u:\b)(?:{words})(?-u:\b|$)")).unwrap()
}

/// Returns the comment lines that `choose` selects in all sources, each with its file and line number.
fn faults(choose: impl Fn(&Source) -> Vec<(usize, String)>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, source) in SOURCES.iter() {
        let all = choose(source).into_iter();
        found.extend(all.map(|(line, text)| format!("{name}:{line}: {text}")));
    }
    found
}

#[test]
fn doc_comments_are_sentences_or_say_what_the_thing_is() {
    let opening = Regex::new(OPENINGS).unwrap();
    let found = faults(|source| {
        let opened = source.doc_paragraphs();
        let bad = opened.filter(|comment| opening.is_match(&comment.text));
        bad.map(|comment| (comment.line, comment.text.clone()))
            .collect()
    });
    let count = found.len();
    assert!(
        count < MAX_OPENINGS,
        "{count} doc comments begin with such a word\n{}",
        found.join("\n")
    );
}

#[test]
fn comments_use_the_words_of_the_field() {
    let words = any_word();
    let found = faults(|source| {
        let bad = source.comments.iter().filter_map(|comment| {
            let text = comment.text.to_lowercase();
            let word = words.find(&text)?.as_str();
            Some((comment.line, format!("{word:?} in {}", comment.text)))
        });
        bad.collect()
    });
    let count = found.len();
    assert!(
        count < MAX_WORDS,
        "{count} comment lines have such a word\n{}",
        found.join("\n")
    );
}

#[test]
fn names_say_what_they_are_for() {
    let names = Regex::new(NAMES).unwrap();
    let found = faults(|source| {
        let lines = (1..).zip(source.code.lines());
        let bad = lines.filter(|(_, line)| names.is_match(line));
        bad.map(|(number, line)| (number, line.trim().to_owned()))
            .collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_name_stands_for_one_type_or_two() {
    let types = Regex::new(TYPES).unwrap();
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, source) in SOURCES.iter() {
        let is_test = name.split(['/', '.']).any(|part| part == "tests");
        if is_test || !(name.starts_with("crates/") || name.starts_with("src/")) {
            continue;
        }
        for found in types.captures_iter(&source.code) {
            let name_of_type = found.get(1).unwrap().as_str();
            files.entry(name_of_type).or_default().insert(name);
        }
    }
    assert!(files.len() > 1_000, "{} names", files.len());
    let overused = files
        .iter()
        .filter(|(_, files)| files.len() > MAX_TYPES_OF_A_NAME);
    let overused: Vec<_> = overused
        .map(|(name, files)| format!("{name}: {files:?}"))
        .collect();
    assert!(
        overused.is_empty(),
        "names that stand for more than two types each\n{}",
        overused.join("\n")
    );
}

#[test]
fn words_are_found_in_comments() {
    let words = any_word();
    for bad in [
        "the one behind it",
        "It goes on",
        "Nobody waits",
        "so many of them",
        "it Tells",
    ] {
        assert!(words.is_match(&bad.to_lowercase()), "{bad}");
    }
    for good in ["a standalone program", "the one after it", "many of them"] {
        assert!(!words.is_match(good), "{good}");
    }
}
