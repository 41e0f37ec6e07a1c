//! The log of the stand-in for CUDA (`STANDIN_LOG`): one line per driver call, in the order in which the calls arrived,
//! and a second line when a wait returns.

use std::fs;
use std::path::Path;

/// A line of the log: `SEQUENCE PID TID [MARK] FUNCTION ARGUMENT via=RUNTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The line's number, counted from 0 in each process.
    pub sequence: u64,
    pub pid: u32,
    pub tid: u32,
    /// The reason why the driver refused the call, such as `ILLEGAL` during a stream capture; empty if the driver
    /// accepted the call.
    pub mark: String,
    /// The driver's name for the function. A wait has a second line, `…_end`, when it returns.
    pub function: String,
    /// The value of the function's first argument.
    pub argument: u64,
    /// The CUDA runtime that made the call: `cudart12`, `cudart13`, `cudart_static`, or `-` for none.
    pub via: String,
}

/// Reads a log. A missing file is an empty log. Panics on a line that the stand-in for CUDA did not write.
pub(crate) fn read_log(path: &Path) -> Vec<Record> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => panic!("read {}: {e}", path.display()),
    };
    // If a process ends while one of its threads writes, the last line may be unfinished. It is dropped.
    let end = text.rfind('\n').map_or(0, |last| last + 1);
    text[..end]
        .lines()
        .map(|line| parse(line).unwrap_or_else(|| panic!("not a line of the stand-in's: {line}")))
        .collect()
}

fn parse(line: &str) -> Option<Record> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mark = match words.len() {
        7 => words.remove(3),
        6 => "",
        _ => return None,
    };
    Some(Record {
        sequence: words[0].parse().ok()?,
        pid: words[1].parse().ok()?,
        tid: words[2].parse().ok()?,
        mark: mark.to_owned(),
        function: words[3].to_owned(),
        argument: u64::from_str_radix(words[4].strip_prefix("0x")?, 16).ok()?,
        via: words[5].strip_prefix("via=")?.to_owned(),
    })
}
