//! Numbers the names on the page, so that the page contains each text only once.

use std::collections::HashMap;

use crate::columns::Columns;

#[derive(Default, Debug)]
pub(crate) struct NameTable {
    numbers: HashMap<String, u32>,
    /// Each name with its short form, which is empty if the name has no shorter form.
    texts: Vec<(String, String)>,
}

impl NameTable {
    /// Returns the number of a name, and adds the name if it is new.
    pub(crate) fn number(&mut self, name: String, short: String) -> u32 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push((name.clone(), short));
        self.numbers.insert(name, number);
        number
    }

    pub(crate) fn put(&self, columns: &mut Columns) {
        columns.number(self.texts.len() as u64);
        for (text, short) in &self.texts {
            columns.text(text);
            columns.text(short);
        }
    }
}
