//! Tests that `docs/messages.md` contains every line that the library can print, and no other line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of which the library consists.
const CRATES: [&str; 12] = [
    "sync",
    "platform",
    "steps",
    "session",
    "recorder",
    "scopes",
    "capture",
    "python",
    "router",
    "stacks",
    "live",
    "intercept",
];

/// For each file, the number of calls that print a line whose text is made by another function. The test cannot read
/// such a text from the call.
const MADE_ELSEWHERE: [(&str, usize); 10] = [
    ("capture/src/lib.rs", 1),
    ("intercept/src/bypass.rs", 1),
    ("python/src/functions/report.rs", 2),
    ("python/src/torch/profiler.rs", 2),
    ("python/src/totals.rs", 2),
    ("python/src/trouble.rs", 1),
    ("router/src/lib.rs", 2),
    ("session/src/activity.rs", 2),
    ("session/src/ending.rs", 1),
    ("session/src/filtered.rs", 1),
];

/// Files whose string literals are all lines that the library prints, or parts of such lines.
const TEXTS: [&str; 19] = [
    "capture/src/cupti/mod.rs",
    "capture/src/cupti/refusal.rs",
    "intercept/src/bypass.rs",
    "intercept/src/named/followed.rs",
    "intercept/src/nvtx/ranges.rs",
    "live/src/folder.rs",
    "platform/src/entry/refusal.rs",
    "platform/src/maps.rs",
    "python/src/functions/replaced.rs",
    "python/src/functions/report.rs",
    "python/src/stacks/mod.rs",
    "python/src/trouble.rs",
    "recorder/src/failure.rs",
    "recorder/src/file.rs",
    "recorder/src/space.rs",
    "recorder/src/state.rs",
    "session/src/ending.rs",
    "session/src/refusal.rs",
    "stacks/src/native.rs",
];

/// A string literal with fewer words is not a line of output, but a name or a separator.
const LEAST_WORDS: usize = 3;

#[test]
fn the_page_has_every_line_of_the_library() {
    let page = fs::read_to_string(repo().join("docs/messages.md")).expect("the page");
    let rows = rows(&page);
    let mut elsewhere = BTreeMap::new();
    let mut missing = Vec::new();
    for (name, text) in sources() {
        if Path::new(&name).extension().is_some_and(|it| it == "py") {
            let texts = said_in_python(&text);
            missing.extend(texts.into_iter().filter(|text| !page.contains(text)));
            continue;
        }
        for (level, line) in said(&text) {
            if line.chars().all(|c| c == '…') {
                *elsewhere.entry(name.clone()).or_insert(0) += 1;
            } else if !rows.contains(&(line.clone(), level.clone())) {
                missing.push(format!("{line} ({level})"));
            }
        }
        if TEXTS.contains(&name.as_str()) {
            let texts = literals(&text).into_iter();
            missing.extend(texts.filter(|text| is_text(text) && !page.contains(text.as_str())));
        }
    }
    assert!(
        missing.is_empty(),
        "docs/messages.md lacks these lines, as they stand in backticks: {missing:#?}"
    );
    let known = MADE_ELSEWHERE.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(
        elsewhere,
        BTreeMap::from(known),
        "lines whose text is made elsewhere: the file that makes it belongs to TEXTS, and its lines to docs/messages.md"
    );
}

#[test]
fn the_page_has_no_line_that_the_library_cannot_print() {
    let page = fs::read_to_string(repo().join("docs/messages.md")).expect("the page");
    let mut texts = String::new();
    for (name, text) in sources() {
        let all = match name.ends_with(".py") {
            true => said_in_python(&text),
            false => literals(&text),
        };
        texts.extend(all.iter().flat_map(|text| [text, "\n"]));
    }
    // The texts about wrong variables are in `config`, a crate that is not one of [`CRATES`].
    for name in ["unknown.rs", "error.rs"] {
        let path = repo().join("crates/config/src").join(name);
        let text = fs::read_to_string(path).expect("a source");
        texts.extend(literals(&text).iter().flat_map(|text| [text, "\n"]));
    }
    let stale: Vec<_> = quoted(&page)
        .filter(|line| {
            let pieces = line
                .split('…')
                .map(|piece| piece.trim_matches([' ', ';', ':', ',', '.']));
            pieces
                .filter(|piece| piece.len() >= 6)
                .any(|piece| !texts.contains(piece))
        })
        .collect();
    assert!(stale.is_empty(), "no source has these: {stale:#?}");
}

/// Returns the lines in the page's tables, with their log levels.
fn rows(page: &str) -> BTreeSet<(String, String)> {
    let rows = page.lines().filter_map(|line| {
        let (text, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (level, _) = rest.split_once(" |")?;
        Some((text.replace("\\|", "|"), level.to_owned()))
    });
    rows.collect()
}

/// Returns the lines, or parts of lines, that the page quotes in the first cells of its tables and in its lists.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| {
        let begun = line
            .strip_prefix("| `")
            .or_else(|| line.strip_prefix("- `"))?;
        begun.split_once('`').map(|(text, _)| text)
    })
}

/// Returns the library's sources without their tests. The name of each is its path below `crates`.
fn sources() -> Vec<(String, String)> {
    let crates = repo().join("crates");
    let mut files: Vec<PathBuf> = Vec::new();
    for name in CRATES {
        collect(&crates.join(name).join("src"), &mut files);
    }
    let named = files.into_iter().map(|path| {
        let name = path.strip_prefix(&crates).expect("a crate's");
        let text = fs::read_to_string(&path).expect("a source");
        let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        (name.display().to_string(), text[..end].to_owned())
    });
    named.collect()
}

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // `log.rs` defines the functions with which all code prints. Its only string literals are in its tests, so
        // the file is left out.
        if ["tests", "tests.rs", "log.rs"]
            .iter()
            .any(|left| name == *left)
        {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs" || it == "py") {
            files.push(path);
        }
    }
}

/// Returns the level and the text of each line that a source prints.
fn said(source: &str) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for call in ["say!(", "once!(", "log::line("] {
        for (at, _) in source.match_indices(call) {
            let rest = &source[at + call.len()..];
            let Some((level, rest)) = rest.split_once(',') else {
                continue;
            };
            let rest = rest.trim_start();
            let rest = rest.strip_prefix("format_args!(").unwrap_or(rest);
            let text = rest.strip_prefix('"').map(|rest| literal(rest).0);
            // A `log::line` call has no string literal with the whole text. So the call counts as a line whose text
            // comes from another function ([`MADE_ELSEWHERE`]), and its level is not compared.
            if call == "log::line(" {
                said.push((String::new(), "…".to_owned()));
            } else {
                let text = text.unwrap_or_else(|| "…".to_owned());
                said.push((level.trim().to_lowercase(), shape(&text)));
            }
        }
    }
    said
}

/// Returns the texts, or parts of texts, that a Python source prints.
fn said_in_python(source: &str) -> Vec<String> {
    let mut said = Vec::new();
    for call in [" warn(", " info(", " say("] {
        for (at, _) in source.match_indices(call) {
            let mut rest = source[at + call.len()..].trim_start();
            // If the text begins with an expression, that expression is skipped up to the string literal.
            if let Some((before, _)) = rest.split_once('"')
                && !before.contains([')', '\n'])
            {
                rest = &rest[before.len()..];
            }
            let mut text = String::new();
            while let Some(begun) = rest.strip_prefix('"') {
                let (piece, length) = literal(begun);
                text.push_str(&piece);
                rest = begun[length..].trim_start();
            }
            let text = text.replace("%s", "…").replace("%d", "…");
            said.extend(Some(text).filter(|text| is_text(text)));
        }
    }
    said
}

/// Returns the string literals of a source, except those in comments and attributes.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = source.split_inclusive('\n');
    let code: String = lines
        .filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("#["))
        .collect();
    let mut rest = code.as_str();
    while let Some(at) = rest.find('"') {
        // C strings (`c"…"`) contain Python code or names, and no lines of output, so they are skipped.
        let before = &rest[..at];
        let is_other = [" c", "(c"].iter().any(|end| before.ends_with(end));
        let is_char = before.ends_with('\'') || before.ends_with("'\\");
        rest = &rest[at + 1..];
        if is_char {
            continue;
        }
        let (text, length) = literal(rest);
        rest = &rest[length..];
        if !is_other {
            found.push(shape(&text).trim_matches([' ', ';', ':', ',']).to_owned());
        }
    }
    found
}

/// Returns the value of a string literal whose opening quote has been read, and its length with the closing quote.
fn literal(begun: &str) -> (String, usize) {
    let mut text = String::new();
    let mut chars = begun.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, other)) => text.push(other),
                None => {}
            },
            _ => text.push(c),
        }
    }
    (text, begun.len())
}

/// Returns a format string with `…` in place of each placeholder.
fn shape(format: &str) -> String {
    let mut out = String::new();
    let mut depth = 0;
    for c in format.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                out.push('…');
            }
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

fn is_text(text: &str) -> bool {
    text.split_whitespace().count() >= LEAST_WORDS
}
