//! Matches function names with the regex of a rule (`sym:…`, which selects functions to count).

use memchr::memchr;
use memchr::memmem::Finder;
use regex::bytes::Regex;

use crate::demangle;
use crate::table::LONGEST_NAME;
use crate::words::{self, Words};

/// A regex with its required words: each name that matches the regex contains at least one of these words. Only names
/// with such a word have to be demangled. A large table has only a few of these names.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    words: Option<Words>,
    texts: Option<Vec<Finder<'static>>>,
}

impl Pattern {
    /// Prepares a regex that the parser of rules has compiled, with Unicode support disabled.
    pub fn new(regex: &Regex) -> Self {
        let texts = words::texts(regex.as_str());
        Self {
            regex: regex.clone(),
            words: words::required(regex.as_str()),
            texts: texts.map(|texts| {
                let texts = texts.iter();
                texts.map(|text| Finder::new(text).into_owned()).collect()
            }),
        }
    }

    pub const fn regex(&self) -> &Regex {
        &self.regex
    }

    /// Returns true if the regex matches the name as written, or demangled with or without the
    /// return type of a template.
    pub fn is_match(&self, name: &[u8]) -> bool {
        self.is_match_as_written(name)
            || demangle::any(name, |text| self.is_match_as_written(text.as_bytes()))
    }

    fn is_match_as_written(&self, text: &[u8]) -> bool {
        let texts = self.texts.as_ref();
        texts.is_none_or(|texts| texts.iter().any(|one| one.find(text).is_some()))
            && self.regex.is_match(text)
    }

    pub(crate) fn search<'a>(&self, strings: &'a [u8]) -> WordHits<'a> {
        let Some(words) = &self.words else {
            return WordHits {
                strings,
                hits: None,
            };
        };
        let folded = words.ignore_case.then(|| strings.to_ascii_lowercase());
        let text = folded.as_deref().unwrap_or(strings);
        let mut hits: Vec<usize> = Vec::new();
        for word in &words.any {
            hits.extend(Finder::new(word).find_iter(text));
        }
        hits.sort_unstable();
        WordHits {
            strings,
            hits: Some(hits),
        }
    }
}

/// The positions in a table of strings at which the required words of a pattern occur. Each name that matches the
/// pattern contains at least one of these words.
#[derive(Default)]
pub(crate) struct WordHits<'a> {
    strings: &'a [u8],
    /// The sorted positions at which the words occur; `None` if the pattern has no words, so that
    /// every name may match.
    hits: Option<Vec<usize>>,
}

impl WordHits<'_> {
    /// Returns false if the name at the offset `at` in the table of strings cannot match, because
    /// it neither contains nor may encode one of the pattern's words.
    pub(crate) fn may_match(&self, at: u32) -> bool {
        let Some(hits) = &self.hits else {
            return true;
        };
        let at = at as usize;
        let next = hits.partition_point(|&hit| hit < at);
        let has_word = hits.get(next).is_some_and(|&hit| {
            let before = self.strings.get(at..hit).unwrap_or_default();
            before.len() < LONGEST_NAME && memchr(0, before).is_none()
        });
        has_word || self.is_encoded(at)
    }

    /// Returns true if the name at `at` may stand for words that it does not contain literally.
    /// Rust's v0 mangling writes constant strings in hexadecimal digits.
    fn is_encoded(&self, at: usize) -> bool {
        let rest = self.strings.get(at..).unwrap_or_default();
        rest.starts_with(b"_R")
            && rest
                .iter()
                .take(LONGEST_NAME)
                .take_while(|byte| **byte != 0)
                .any(|byte| *byte == b'K')
    }
}
