//! Errors about values of settings that cannot be used.

use std::ffi::OsStr;
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use crate::printable::Printing;

/// Maximum number of characters of a setting's value that an error message repeats.
const SHOWN: usize = 200;

/// The problem with a setting's value, and a description of valid values. The name of the variable is added later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub problem: String,
    pub wanted: String,
}

impl Problem {
    pub fn new(problem: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            wanted: wanted.into(),
        }
    }

    /// Adds the name and the value of the variable, which the problem does not contain yet.
    pub fn in_variable(self, name: &str, value: &OsStr) -> BadValue {
        BadValue {
            name: name.to_owned(),
            value: shown(value),
            problem: self.problem,
            wanted: self.wanted,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (wanted: {})", self.problem, self.wanted)
    }
}

impl std::error::Error for Problem {}

/// The error about a variable whose value cannot be used. Its message is always a single line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadValue {
    /// The name of the variable that was set. A variable can have several names.
    pub name: String,
    /// The variable's value in printable form: escaped, and cut after 200 characters.
    pub value: String,
    pub problem: String,
    pub wanted: String,
}

impl BadValue {
    /// Returns the problem without the variable's name and value, for a message that begins with something else that
    /// the user typed, such as an option.
    pub fn why(&self) -> String {
        format!("{} (wanted: {})", self.problem, self.wanted)
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=\"{}\": {}", self.name, self.value, self.why())
    }
}

impl std::error::Error for BadValue {}

/// Returns `value` in printable form: without line breaks, control characters and terminal sequences, and cut after
/// [`SHOWN`] characters. Bytes that are not UTF-8 are shown as `\xNN`.
pub fn shown(value: &OsStr) -> String {
    let mut out = String::new();
    let mut left = SHOWN;
    for chunk in value.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if left == 0 {
                return out + "…";
            }
            left -= 1;
            match c {
                '"' => out.push_str("\\\""),
                // Writing to a `String` cannot fail.
                _ => drop(Printing(&mut out).write_char(c)),
            }
        }
        for byte in chunk.invalid() {
            if left == 0 {
                return out + "…";
            }
            left -= 1;
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Returns a part of a setting's value in quotes, for an error message.
pub(crate) fn quoted(part: &str) -> String {
    format!("\"{}\"", shown(OsStr::new(part)))
}

/// Returns the value of a setting as text, or a problem if the value is not UTF-8.
pub(crate) fn text(value: &OsStr) -> Result<&str, Problem> {
    value
        .to_str()
        .ok_or_else(|| Problem::new("it is not UTF-8", "plain text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(value: &[u8]) -> String {
        Problem::new("what is wrong", "what was wanted")
            .in_variable("NAME", OsStr::from_bytes(value))
            .to_string()
    }

    #[test]
    fn has_the_documented_form() {
        assert_eq!(
            bad(b"a b"),
            "NAME=\"a b\": what is wrong (wanted: what was wanted)"
        );
    }

    #[test]
    fn stays_on_one_line() {
        assert_eq!(
            bad(b"a\nb\r\x1b[31m\"\\(\xff"),
            "NAME=\"a\\nb\\r\\u{1b}[31m\\\"\\(\\xff\": what is wrong (wanted: what was wanted)"
        );
    }

    #[test]
    fn is_cut() {
        assert_eq!(shown(OsStr::new(&"é".repeat(200))), "é".repeat(200));
        assert_eq!(shown(OsStr::new(&"é".repeat(201))), "é".repeat(200) + "…");
        assert_eq!(
            shown(OsStr::from_bytes(&[0xff; 300])),
            "\\xff".repeat(200) + "…"
        );
    }
}
