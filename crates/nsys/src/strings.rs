//! Assigns ids to the strings of an export that is read in the form of a tllmprof record. The data are read in several
//! passes, and a string has the same id in each pass.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{NO_STRING, StringId};

/// Maximum number of ids of strings. Further strings have no id.
const LIMIT: usize = 1 << 20;

/// Ids of strings, found by nsys's number of the string or by its text.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    by_number: HashMap<i64, StringId>,
    by_text: HashMap<String, StringId>,
    /// Ids of the names of NVTX ranges, by nsys's number of the range's text.
    ranges: HashMap<i64, StringId>,
    last: StringId,
}

/// The strings, and the rows of the table of CUDA calls, that the current pass over the data has already passed to
/// its caller.
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

    /// Returns the id of a text. A text that has no id yet gets the next one. Once [`LIMIT`] ids are in use, the result
    /// for a new text is [`NO_STRING`].
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

    /// Returns the id of a range's name. `number` is nsys's number of the range's text. Returns
    /// `None` if no id was stored for that number.
    pub(crate) fn range(&self, number: i64) -> Option<StringId> {
        self.ranges.get(&number).copied()
    }

    /// Stores the id of a range's name. `number` is nsys's number of the range's text.
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
    /// Returns true if the caller of this pass has not received the string yet, and marks the
    /// string as passed on.
    pub(crate) fn string(&mut self, id: StringId) -> bool {
        id != NO_STRING && self.strings.insert(id)
    }

    /// Returns true if the caller of this pass has received the string.
    pub(crate) fn has(&self, id: StringId) -> bool {
        self.strings.contains(&id)
    }

    /// Returns true if the caller of this pass has not received this row of the table of CUDA calls yet, and marks
    /// the row as passed on.
    pub(crate) fn row(&mut self, row: u8) -> bool {
        self.rows.insert(row)
    }
}
