//! Names by number: each text once.

use std::collections::HashMap;

use crate::columns::Columns;

#[derive(Default, Debug)]
pub struct Names {
    numbers: HashMap<String, u32>,
    /// And the part of it that people know it by; empty: the whole.
    texts: Vec<(String, String)>,
}

impl Names {
    /// The number of a name.
    pub fn number(&mut self, name: String, short: String) -> u32 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push((name.clone(), short));
        self.numbers.insert(name, number);
        number
    }

    pub fn put(&self, columns: &mut Columns) {
        columns.number(self.texts.len() as u64);
        for (text, short) in &self.texts {
            columns.text(text);
            columns.text(short);
        }
    }
}
