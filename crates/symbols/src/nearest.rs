//! Finds functions whose names are similar to the words in a rule.

use tllmprof_config::distance;

use crate::demangle::demangle;
use crate::image::Image;
use crate::pattern::Pattern;
use crate::words;

/// Maximum number of names that [`Nearest`] keeps. More names are kept than are shown to the user, because some
/// become equal when they are demangled.
const MAX_KEPT: usize = 12;
/// Maximum number of words of the pattern that are compared with names.
const MAX_WORDS: usize = 4;

/// Collects the names that are most similar to a pattern's words.
pub struct Nearest {
    words: Vec<Vec<u8>>,
    best: Vec<RankedName>,
}

/// A name with the sum of its edit distances from the pattern's words. Names are ordered by distance, then by
/// length.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedName {
    distance: usize,
    length: usize,
    name: Vec<u8>,
}

impl Nearest {
    pub fn new(pattern: &Pattern) -> Self {
        let mut words = words::all(pattern.regex().as_str());
        // Skip words of one or two letters, because they would be similar to every name. Skip very long words, too.
        words.retain(|word| (3..=64).contains(&word.len()));
        // Prefer the last words: a function's own name comes after those of its namespaces and
        // classes.
        words.reverse();
        words.truncate(MAX_WORDS);
        Self {
            words,
            best: Vec::new(),
        }
    }

    /// Compares the names of an image's functions with the pattern's words, and stores the most similar names.
    pub fn look(&mut self, image: &Image) {
        if self.words.is_empty() {
            return;
        }
        for table in &image.tables {
            let defined = table.functions(&image.elf).map(|entry| entry.name);
            let imported = table
                .undefined(image.elf.machine)
                .filter(|_| table.sources.dynamic)
                .map(|symbol| symbol.name);
            for at in defined.chain(imported) {
                if let Some(name) = table.name(at) {
                    self.consider(name);
                }
            }
        }
    }

    /// Returns the most similar names, demangled; at most `count`.
    pub fn names(&self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for candidate in &self.best {
            let raw = || String::from_utf8_lossy(&candidate.name).into_owned();
            let name = demangle(&candidate.name).unwrap_or_else(raw);
            if names.len() < count && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn consider(&mut self, name: &[u8]) {
        let mut nearest = [usize::MAX; MAX_WORDS];
        for part in identifiers(name) {
            for (word, nearest) in self.words.iter().zip(&mut nearest) {
                let limit = (word.len() / 3).max(1).min(*nearest);
                *nearest = distance(word, part, limit).unwrap_or(*nearest);
            }
        }
        if nearest.iter().all(|distance| *distance == usize::MAX) {
            return;
        }
        let sum = |(word, distance): (&Vec<u8>, usize)| distance.min(word.len());
        let distance = self.words.iter().zip(nearest).map(sum).sum();
        let length = name.len();
        let is_full = self.best.len() >= MAX_KEPT;
        if is_full
            && self
                .best
                .last()
                .is_some_and(|last| (last.distance, last.length) <= (distance, length))
        {
            return;
        }
        let candidate = RankedName {
            distance,
            length,
            name: name.to_vec(),
        };
        if let Err(place) = self.best.binary_search(&candidate) {
            self.best.insert(place, candidate);
            self.best.truncate(MAX_KEPT);
        }
    }
}

/// Returns the identifiers in a name. In a mangled name, the length of each identifier comes before
/// it. Any other name is split into words.
fn identifiers(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_mangled = name.starts_with(b"_Z") || name.starts_with(b"_R");
    let mut rest = name;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            if !is_mangled {
                let end = rest.iter().position(|byte| !is_word(*byte));
                let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
                rest = behind.get(1..).unwrap_or_default();
                return Some(part);
            }
            let start = rest.iter().position(|b| (b'1'..=b'9').contains(b))?;
            let (before, number) = rest.split_at(start);
            let digits = number.iter().take_while(|b| b.is_ascii_digit()).count();
            let length = number[..digits.min(5)]
                .iter()
                .fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
            rest = &number[digits..];
            // Skip the value of a template argument, such as `Li16E`: its digits are not a length.
            if matches!(before, [.., b'L', b'a'..=b'z']) {
                continue;
            }
            if let Some(part) = rest.get(..length)
                && part
                    .iter()
                    .all(|byte| is_word(*byte) || b"$.".contains(byte))
            {
                rest = &rest[length..];
                return Some(part);
            }
        }
        None
    })
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_mangled_and_plain_names() {
        for (name, parts) in [
            (
                "_ZN2ns6Engine4stepILi16EEEvRKNS_6ConfigE",
                "ns Engine step Config",
            ),
            ("_Z3addIiLm3EET_S0_", "add"),
            ("_RNvNtCs1234_6engine4core4step", "engine core step"),
            ("llama_decode", "llama_decode"),
            ("main.(*Server).Step", "main   Server  Step"),
            ("_Z99999999999x", ""),
            ("", ""),
        ] {
            let found: Vec<_> = identifiers(name.as_bytes())
                .map(|part| str::from_utf8(part).unwrap())
                .collect();
            assert_eq!(
                found.join(" ").replace("  ", " "),
                parts.replace("  ", " "),
                "{name}"
            );
        }
    }
}
