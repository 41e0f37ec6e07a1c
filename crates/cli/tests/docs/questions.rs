//! Tests that a new user finds the answers to the questions in `questions.csv`: for each, one step from an index page
//! or from the book's search leads to the section that answers the question.

use std::fs;

use super::links::anchor;
use super::words::root;

/// Pages whose lines lead to other pages: the book's table of contents, and tables of tasks and of symptoms.
const INDEXES: [&str; 3] = ["SUMMARY.md", "introduction.md", "symptoms.md"];
/// The largest number of sections that a search for an answer may find. The book's search shows 30, but users do not
/// read that far.
const MAX_RESULTS: usize = 12;

/// A section of a page, as the book's search finds it.
struct Section {
    /// The link to the section: `page.md#anchor`.
    target: String,
    /// The page's title and the section's text.
    text: String,
}

/// Returns the sections of all pages of the book.
fn sections() -> Vec<Section> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let page = path.file_name().unwrap().to_string_lossy().into_owned();
        if !page.ends_with(".md") || page == "SUMMARY.md" {
            continue;
        }
        let mut title = String::new();
        let mut is_code = false;
        for line in fs::read_to_string(&path).unwrap().lines() {
            is_code ^= line.trim_start().starts_with("```");
            let level = line.bytes().take_while(|byte| *byte == b'#').count();
            if (1..=3).contains(&level) && !is_code {
                let heading = line[level..].trim();
                if level == 1 {
                    heading.clone_into(&mut title);
                }
                found.push(Section {
                    target: format!("{page}#{}", anchor(heading)),
                    text: format!("{title}\n{heading}\n"),
                });
            } else if let Some(section) = found.last_mut() {
                section.text.push_str(line);
                section.text.push('\n');
            }
        }
    }
    found
}

/// Returns true if for each of `words` the text contains that word, or a longer word that begins with it.
fn has_words(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    let in_text: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let mut words = words.split(' ').map(str::to_lowercase);
    words.all(|word| in_text.iter().any(|other| other.starts_with(&word)))
}

/// Returns true if a line of an index page contains all these words and links to the answer's page. If the index page
/// is itself the answer's page, the line needs no link.
fn is_in_index(words: &str, target: &str) -> bool {
    let page = target.split('#').next().unwrap();
    INDEXES.iter().any(|index| {
        let text = fs::read_to_string(root().join("docs").join(index)).unwrap();
        let links = |line: &&str| *index == page || line.contains(&format!("]({page}"));
        text.lines()
            .filter(links)
            .any(|line| has_words(line, words))
    })
}

/// Returns true if a search for `words` finds the section, and finds at most [`MAX_RESULTS`] sections in all.
fn is_found(sections: &[Section], words: &str, target: &str) -> bool {
    let results = sections.iter().filter(|one| has_words(&one.text, words));
    let results: Vec<_> = results.collect();
    results.len() <= MAX_RESULTS && results.iter().any(|one| one.target == target)
}

#[test]
fn questions_of_a_new_user_are_answered_in_one_step() {
    let sections = sections();
    let mut file =
        csv::Reader::from_path(root().join("crates/cli/tests/docs/questions.csv")).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in file.records() {
        let row = row.unwrap();
        let [question, words, target, answer] = [0, 1, 2, 3].map(|column| &row[column]);
        count += 1;
        let section = sections.iter().find(|one| one.target == target);
        if !section.is_some_and(|one| one.text.contains(answer)) {
            wrong.push(format!("{question} {target} does not say {answer:?}"));
        }
        if !is_in_index(words, target) && !is_found(&sections, words, target) {
            wrong.push(format!("{question} {words:?} does not lead to {target}"));
        }
    }
    assert_eq!(count, 25);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
