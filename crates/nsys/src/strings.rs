//! Assigns ids to the strings of a recording. A string has the same id in each pass over the
//! recording.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{NO_STRING, StringId};

/// Maximum number of ids.
const LIMIT: usize = 1 << 20;

/// Ids of strings, by nsys's number and by text.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    by_number: HashMap<i64, StringId>,
    by_text: HashMap<String, StringId>,
    /// Ids of range names, by nsys's number of the range's text.
    ranges: HashMap<i64, StringId>,
    last: StringId,
}

/// The strings and the rows of the call table that this pass has already passed on.
#[derive(Debug, Default)]
pub(crate) struct Written {
    strings: HashSet<StringId>,
    rows: HashSet<u8>,
}

impl Ids {
    /// Returns the id of the string with this number in nsys's table of strings.
    pub(crate) fn of_number(&mut self, number: i64) -> StringId {
        if let Some(id) = self.by_number.get(&number) {
            return *id;
        }
        let id = self.next();
        if id != NO_STRING {
            self.by_number.insert(number, id);
        }
        id
    }

    /// Returns the id of a text.
    pub(crate) fn of_text(&mut self, text: &str) -> StringId {
        if let Some(id) = self.by_text.get(text) {
            return *id;
        }
        let id = self.next();
        if id != NO_STRING {
            self.by_text.insert(text.to_owned(), id);
        }
        id
    }

    /// Returns the id of a range's name, by nsys's number of the range's text. Returns `None` if it
    /// was not added yet.
    pub(crate) fn range(&self, number: i64) -> Option<StringId> {
        self.ranges.get(&number).copied()
    }

    /// Stores the id of a range's name, for the range's text with this number.
    pub(crate) fn add_range(&mut self, number: i64, id: StringId) {
        if self.ranges.len() < LIMIT {
            self.ranges.insert(number, id);
        }
    }

    fn next(&mut self) -> StringId {
        if self.last as usize >= LIMIT {
            return NO_STRING;
        }
        self.last += 1;
        self.last
    }
}

impl Written {
    /// Returns true if the string has not been passed on before in this pass, and marks it as
    /// passed on.
    pub(crate) fn string(&mut self, id: StringId) -> bool {
        id != NO_STRING && self.strings.insert(id)
    }

    /// Returns true if the string has been passed on in this pass.
    pub(crate) fn has(&self, id: StringId) -> bool {
        self.strings.contains(&id)
    }

    /// Returns true if the row of the call table has not been passed on before in this pass, and
    /// marks it as passed on.
    pub(crate) fn row(&mut self, row: u8) -> bool {
        self.rows.insert(row)
    }
}
