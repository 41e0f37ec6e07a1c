//! The ids that a recording gives to strings: the same each time it is read.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{NO_STRING, StringId};

/// Maximum number of ids.
const LIMIT: usize = 1 << 20;

/// Ids by nsys's own, and by text.
#[derive(Debug, Default)]
pub struct Ids {
    by_number: HashMap<i64, StringId>,
    by_text: HashMap<String, StringId>,
    /// Ids of names of ranges, by nsys's own.
    ranges: HashMap<i64, StringId>,
    last: StringId,
}

/// The strings and rows that this reading has passed on.
#[derive(Debug, Default)]
pub struct Written {
    strings: HashSet<StringId>,
    rows: HashSet<u8>,
}

impl Ids {
    /// The id of one of nsys's strings.
    pub fn of_number(&mut self, number: i64) -> StringId {
        if let Some(id) = self.by_number.get(&number) {
            return *id;
        }
        let id = self.next();
        if id != NO_STRING {
            self.by_number.insert(number, id);
        }
        id
    }

    /// The id of a text.
    pub fn of_text(&mut self, text: &str) -> StringId {
        if let Some(id) = self.by_text.get(text) {
            return *id;
        }
        let id = self.next();
        if id != NO_STRING {
            self.by_text.insert(text.to_owned(), id);
        }
        id
    }

    /// The id of the name of ranges that one of nsys's strings is.
    pub fn range(&self, number: i64) -> Option<StringId> {
        self.ranges.get(&number).copied()
    }

    /// Keeps that id.
    pub fn add_range(&mut self, number: i64, id: StringId) {
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
    /// Returns true if a string is passed on for the first time.
    pub fn string(&mut self, id: StringId) -> bool {
        id != NO_STRING && self.strings.insert(id)
    }

    /// Returns true if a string was passed on.
    pub fn has(&self, id: StringId) -> bool {
        self.strings.contains(&id)
    }

    /// Returns true if a row of the table of calls is passed on for the first time.
    pub fn row(&mut self, row: u8) -> bool {
        self.rows.insert(row)
    }
}
