//! The texts of a trace, each once.

use std::collections::HashMap;

use tllmprof_record::{NO_STRING, StringId};

/// Maximum number of different texts to keep, and of their bytes. Further texts are empty.
const COUNT: usize = 1 << 20;
const BYTES: usize = 128 << 20;

/// Texts by the numbers that the recording gives them, from 1 on.
#[derive(Debug, Default)]
pub struct Names {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<str>, StringId>,
    bytes: usize,
}

impl Names {
    /// The number of a text.
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

    /// A text by its number; empty where it has none.
    pub fn get(&self, number: StringId) -> &str {
        let at = (number as usize).checked_sub(1);
        at.and_then(|at| self.texts.get(at)).map_or("", |text| text)
    }

    /// All of them, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (StringId, &str)> {
        (1..).zip(self.texts.iter().map(|text| &**text))
    }
}
