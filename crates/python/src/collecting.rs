//! The collection that is under way on a thread.

use tllmprof_capture::marks::Pushed;

/// A collection that is under way.
pub struct Collecting {
    /// When it began, on the clock of [`super::time`].
    pub since: u64,
    /// When it began, in the record's ticks.
    pub ticks: u64,
    pub range: Option<Pushed>,
    /// Collections of other interpreters' that began in it, as a finaliser may run one.
    pub inner: u32,
}

impl Collecting {
    /// Gives its range up without ending it: it is another process's.
    pub fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}
