//! Numbers the names that occur on a page. The page contains each name only once and refers to it by its number.

use std::collections::HashMap;

use crate::columns::Columns;

#[derive(Default, Debug)]
pub(crate) struct NameTable {
    numbers: HashMap<String, u32>,
    /// Each name, with a short form of the name; the short form is empty if there is none.
    texts: Vec<(String, String)>,
}

impl NameTable {
    /// Returns the number of a name. A new name gets the next free number. `short` is the name's
    /// short form.
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
