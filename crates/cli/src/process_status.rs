//! The status of a process, as read from `/proc/PID/stat`.

use std::fs;
use std::str::FromStr;

/// The fields of a process's `stat` file. The name of a process may contain parentheses, and need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProcessStatus {
    pub name: String,
    /// The fields after the name, beginning with the third field of the file (the state).
    fields: Vec<String>,
}

impl ProcessStatus {
    /// Reads the status of a process. Returns `None` if the process does not exist or cannot be read.
    pub(crate) fn read(number: u64) -> Option<Self> {
        let text = fs::read(format!("/proc/{number}/stat")).ok()?;
        Self::parse(&String::from_utf8_lossy(&text))
    }

    pub(crate) fn parse(stat: &str) -> Option<Self> {
        let (begin, rest) = stat.rsplit_once(") ")?;
        Some(Self {
            name: begin.split_once('(')?.1.to_owned(),
            fields: rest.split_whitespace().map(str::to_owned).collect(),
        })
    }

    /// Returns a field by its number in the manual page proc_pid_stat(5). The smallest number is 3.
    pub(crate) fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.fields.get(number.checked_sub(3)?)?.parse().ok()
    }

    /// Returns the letter of the process's state, such as `T` for a stopped process.
    pub(crate) fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Returns true if the process has ended and only its entry is left, because its parent has not reaped it. The state
    /// is that of the main thread, which may end before the other threads.
    pub(crate) fn has_ended(&self) -> bool {
        let threads = 20;
        matches!(self.state(), Some('Z' | 'X'))
            && self.field(threads).is_none_or(|all: u64| all <= 1)
    }

    pub(crate) fn parent(&self) -> Option<u64> {
        self.field(4)
    }
}
