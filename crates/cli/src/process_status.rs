//! The status and the environment variables of a process, as read from `/proc/PID`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

/// Reads the environment variables with which a process was started, each with a zero byte at its end. Reads them by a
/// single system call: if the process ended between two calls, the first part would look like all of them.
///
/// # Errors
/// There is no such process, or this user may not read its variables. The kernel may also refuse to show a user the
/// variables of the user's own process that has ended and has not been reaped.
pub(crate) fn read_variables(number: u64) -> io::Result<Vec<u8>> {
    let file = File::open(format!("/proc/{number}/environ"))?;
    let mut variables = vec![0; 32 << 10];
    loop {
        let length = file.read_at(&mut variables, 0)?;
        if length < variables.len() {
            variables.truncate(length);
            return Ok(variables);
        }
        variables.resize(2 * length, 0);
    }
}

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
