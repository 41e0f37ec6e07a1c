//! Results to standard output, messages to standard error.

use std::fmt;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tllmprof_config::printable;
use tllmprof_report::write_json;

use crate::manners;

/// Messages since another has the terminal.
static KEPT: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Messages are kept meanwhile; what nobody has taken is written at the end.
pub struct Kept(());

impl Kept {
    pub fn new() -> Self {
        *kept() = Some(Vec::new());
        Self(())
    }

    /// The messages that came since the last call.
    pub fn take(&self) -> Vec<String> {
        kept().as_mut().map(mem::take).unwrap_or_default()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let left = kept().take();
        for line in left.unwrap_or_default() {
            say(format_args!("{line}"));
        }
    }
}

fn kept() -> MutexGuard<'static, Option<Vec<String>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether standard error is a terminal that may be written to.
pub fn has_terminal() -> bool {
    io::stderr().is_terminal() && kept().is_none()
}

/// Writes a result. A reader that has seen enough is no error.
pub fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes a result that is text for people.
pub fn text(text: &str) -> io::Result<()> {
    print(manners::spelled(text).as_bytes())
}

/// Writes a result bit by bit. As above.
pub fn write(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> io::Result<()> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes an error or a warning, in the form that the preloaded library uses too.
pub fn say(message: fmt::Arguments<'_>) {
    let line = printable(message);
    if let Some(kept) = kept().as_mut() {
        return kept.push(line);
    }
    // If standard error is closed, there is no other place to report that.
    let _ = writeln!(io::stderr().lock(), "tllmprof: {}", manners::spelled(&line));
}

/// Writes what is good to know, unless `--quiet` was given.
pub fn note(message: fmt::Arguments<'_>) {
    if !manners::is_quiet() {
        say(message);
    }
}

/// Writes how something is done, where `--verbose` was given.
pub fn detail(message: fmt::Arguments<'_>) {
    if manners::is_verbose() {
        say(message);
    }
}

/// Writes text of several lines to standard error.
pub fn write_error(text: &str) {
    // As above.
    let _ = io::stderr()
        .lock()
        .write_all(manners::spelled(text).as_bytes());
}

/// `text` as a string in JSON.
pub fn json_string(text: &str) -> String {
    let mut json = Vec::new();
    // A vector takes all that is written to it, and JSON is text.
    let _ = write_json(&text, &mut json);
    String::from_utf8(json)
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}
