//! Tests the links in README.md and docs/ to files of the repository and to headings in them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns a page's text without fenced blocks. Inline code is replaced by the word `code`.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            for (place, part) in line.split('`').enumerate() {
                out.push_str(if place % 2 == 0 { part } else { "code" });
            }
        }
        out.push('\n');
    }
    out
}

/// Returns the anchor of a heading, in the form that GitHub and mdBook generate.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let name: String = heading.chars().filter(kept).collect();
    name.to_lowercase().replace(' ', "-")
}

/// Returns the anchors of a page's headings, in the form that GitHub and mdBook generate.
pub(crate) fn anchors(text: &str) -> HashSet<String> {
    let mut seen = HashMap::<String, usize>::new();
    let mut is_code = false;
    let mut found = HashSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line
            .strip_prefix('#')
            .map(|rest| rest.trim_start_matches('#'))
            .filter(|rest| !is_code && rest.starts_with(' '))
        else {
            continue;
        };
        let name = anchor(heading.trim());
        let count = seen.entry(name.clone()).or_default();
        found.insert(match *count {
            0 => name,
            again => format!("{name}-{again}"),
        });
        *count += 1;
    }
    found
}

/// Returns the targets of links and images: the text in parentheses after `]`.
fn targets(prose: &str) -> Vec<&str> {
    let ends = prose.split("](").skip(1);
    ends.filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

/// Returns the links of a page whose target, a file or a heading in it, does not exist.
fn dead(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let folder = page.parent().unwrap();
    let mut wrong = Vec::new();
    for target in targets(&prose(&text)) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let linked = match file {
            "" => page.to_owned(),
            file => folder.join(file),
        };
        let is_dead = match fs::read_to_string(&linked) {
            _ if anchor.is_empty() => !linked.exists(),
            Ok(text) => !anchors(&text).contains(anchor),
            Err(_) => true,
        };
        if is_dead {
            wrong.push(format!("{}: {target}", page.display()));
        }
    }
    wrong
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![
        root.join("README.md"),
        root.join("examples/README.md"),
        root.join("docs/history/measured-history.md"),
    ];
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

#[test]
fn no_link_is_dead() {
    let wrong: Vec<_> = pages().iter().flat_map(|page| dead(page)).collect();
    assert!(wrong.is_empty(), "dead links:\n{}", wrong.join("\n"));
}

#[test]
fn a_dead_link_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("a.md");
    let text = "# A `b` c\n[x](#a-b-c) [y](a.md#no) ![z](z.png) [w](https://x.y)\n```\n[v](v)\n```\n`[u](u)`\n";
    fs::write(&page, text).unwrap();
    let wrong = dead(&page);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].ends_with("a.md#no") && wrong[1].ends_with("z.png"));
}

/// Readers would not find a page that is missing in the book's table of contents.
#[test]
fn the_book_has_all_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        let is_in = page.parent().unwrap().ends_with("docs") && name != "SUMMARY.md";
        assert!(
            !is_in || summary.contains(&format!("({name})")),
            "docs/SUMMARY.md does not have {name}"
        );
    }
}

#[test]
fn the_readme_is_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::metadata(root.join("README.md")).unwrap();
    assert!(readme.len() <= 8192, "README.md has {} bytes", readme.len());
}

/// Returns the crates that a crate's README lists as those that it uses.
fn uses(readme: &str) -> BTreeSet<&str> {
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("Of this workspace it uses "));
    let names = line.map(|line| line.split('`').skip(1).step_by(2));
    names.into_iter().flatten().collect()
}

/// Returns the crates of this workspace that a crate's manifest lists among its dependencies, except those for tests.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut section = "";
    let lines = manifest.lines().filter_map(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let is_used = section.ends_with("dependencies]") && !section.contains("dev-");
        let (name, _) = line
            .strip_prefix("tllmprof-")
            .filter(|_| is_used)?
            .split_once(' ')?;
        Some(name)
    });
    lines.collect()
}

/// Each crate has a README, which lists the crates that it uses. The files that the README names exist.
#[test]
fn every_crate_says_where_to_start_reading() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let readme = folder.join("README.md");
        let text = fs::read_to_string(&readme).unwrap_or_default();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert_eq!(uses(&text), dependencies(&manifest), "{}", readme.display());
        let quoted = text.split('`').skip(1).step_by(2);
        let paths: Vec<_> = quoted.filter(|path| path.starts_with("src/")).collect();
        assert!(!paths.is_empty(), "{} names no file", readme.display());
        for path in paths {
            assert!(folder.join(path).exists(), "{}: {path}", readme.display());
        }
    }
}
