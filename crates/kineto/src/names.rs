//! Stores each distinct text of a trace once.

use std::collections::HashMap;

use tllmprof_record::{NO_STRING, StringId};

/// Maximum number of texts that are stored. Further texts become empty.
const COUNT: usize = 1 << 20;
/// Maximum total length of the stored texts, in bytes. A text that would exceed it becomes empty.
const BYTES: usize = 128 << 20;

/// Different texts, numbered from 1 in the order of their first use. The trace is converted to the form of a tllmprof
/// record, which uses these numbers as string ids.
#[derive(Debug, Default)]
pub struct StringTable {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<str>, StringId>,
    bytes: usize,
}

impl StringTable {
    /// Returns the number of a text. A new text gets the next free number, or `NO_STRING` if the table is full.
    pub fn number(&mut self, text: &str) -> StringId {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.texts.len() >= COUNT || self.bytes + text.len() > BYTES {
            return NO_STRING;
        }
        self.bytes += text.len();
        self.texts.push(text.into());
        let number = self.texts.len() as StringId;
        self.numbers.insert(text.into(), number);
        number
    }

    /// Returns the text with the number `number`; an empty text if no text has that number.
    pub fn get(&self, number: StringId) -> &str {
        let at = (number as usize).checked_sub(1);
        at.and_then(|at| self.texts.get(at)).map_or("", |text| text)
    }

    /// Returns all texts with their numbers, of which the first is 1.
    pub fn all(&self) -> impl Iterator<Item = (StringId, &str)> {
        (1..).zip(self.texts.iter().map(|text| &**text))
    }
}
