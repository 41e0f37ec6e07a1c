//! The strings of a record, as a reader keeps them.

use std::collections::HashMap;

use crate::event::StringId;

/// The maximum total size of the texts that a reader keeps, in bytes. Strings beyond this limit or [`COUNT_LIMIT`] are
/// only counted, and read as `?`.
const TEXT_LIMIT: usize = 256 << 20;
/// The maximum number of strings that a reader keeps.
const COUNT_LIMIT: usize = 1 << 22;

/// The texts of a record, by their ids.
#[derive(Default, Debug)]
pub struct Strings {
    text: String,
    places: HashMap<StringId, (u32, u16)>,
    left_out: u64,
}

impl Strings {
    /// Adds a string. If an id occurs several times, the first text is kept. Invalid UTF-8 is replaced.
    pub fn add(&mut self, id: StringId, bytes: &[u8]) {
        if self.places.contains_key(&id) {
            return;
        }
        let text = String::from_utf8_lossy(bytes);
        let (at, length) = (self.text.len(), text.len());
        let room = at + length <= TEXT_LIMIT && self.places.len() < COUNT_LIMIT;
        match u16::try_from(length) {
            Ok(length) if room => {
                self.text.push_str(&text);
                self.places.insert(id, (at as u32, length));
            }
            _ => self.left_out += 1,
        }
    }

    /// Returns the text with this id, or `?` if it is not known.
    #[must_use]
    pub fn get(&self, id: StringId) -> &str {
        self.places
            .get(&id)
            .and_then(|(at, length)| self.text.get(*at as usize..*at as usize + *length as usize))
            .unwrap_or("?")
    }

    /// Returns the number of strings that were left out because of the limits.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_text_of_an_id_stays() {
        let mut strings = Strings::default();
        strings.add(1, b"one");
        strings.add(1, b"two");
        strings.add(7, b"\xff bad");
        assert_eq!(strings.get(1), "one");
        assert_eq!(strings.get(7), "\u{fffd} bad");
        assert_eq!(strings.get(2), "?");
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let mut strings = Strings::default();
        let text = [b'x'; 4096];
        let fit = (TEXT_LIMIT / text.len()) as u32;
        for id in 0..fit + 3 {
            strings.add(id, &text);
        }
        assert_eq!(strings.left_out(), 3);
        assert_eq!(strings.get(fit), "?");
        assert_eq!(strings.get(fit - 1).len(), text.len());
    }
}
