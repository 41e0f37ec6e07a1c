//! Writes results to standard output, and messages to standard error.

use std::fmt;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, StdoutLock, Write};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tllmprof_config::printable;
use tllmprof_report::write_json;

use crate::{inherited, manners};

/// Messages that are held back while other code, such as a full-screen view, uses the terminal. `None` if messages are
/// written at once.
static KEPT: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// A guard: while it exists, messages are held back. When it is dropped, the messages that [`Kept::take`] has not
/// returned are written.
pub(crate) struct Kept(());

impl Kept {
    pub(crate) fn new() -> Self {
        *kept() = Some(Vec::new());
        Self(())
    }

    /// Removes and returns the messages that were held back since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
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

/// Returns true if standard error is a terminal and messages are not held back.
pub(crate) fn has_terminal() -> bool {
    io::stderr().is_terminal() && kept().is_none()
}

/// Makes a write fail if it exceeds the file size limit (`ulimit -f`), so that the unfinished file can be removed.
/// Without this call the kernel would end the process with SIGXFSZ.
pub(crate) fn survive_size_limits() {
    if !inherited::is_ignored(libc::SIGXFSZ) {
        // A handler is installed instead of ignoring the signal, because programs that this process starts would
        // inherit an ignored signal.
        let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    }
}

/// Returns standard output.
///
/// # Errors
/// This process has no standard output.
pub(crate) fn stdout() -> io::Result<Stdout> {
    match inherited::has_no_output() {
        true => Err(io::Error::other("standard output is closed")),
        false => Ok(io::stdout()),
    }
}

/// Writes a result to standard output. A reader that closes the pipe early is not an error.
pub(crate) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = stdout()?.lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes a text for people to standard output, in characters that the locale can show.
pub(crate) fn text(text: &str) -> io::Result<()> {
    print(manners::spelled(text).as_bytes())
}

/// Writes a result to standard output in pieces, by calling the function `write`. Like [`print`], it succeeds if the
/// reader closes the pipe early.
pub(crate) fn write(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> io::Result<()> {
    let mut stdout = BufWriter::new(stdout()?.lock());
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes an error or a warning to standard error, in the same form as the preloaded library does.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    let line = printable(message);
    if let Some(kept) = kept().as_mut() {
        return kept.push(line);
    }
    // If standard error is closed, the message cannot be reported anywhere.
    let _ = writeln!(io::stderr().lock(), "tllmprof: {}", manners::spelled(&line));
}

/// Writes an informative message to standard error, unless `--quiet` was given.
pub(crate) fn note(message: fmt::Arguments<'_>) {
    if !manners::is_quiet() {
        say(message);
    }
}

/// Writes a detailed message to standard error if `--verbose` was given, and nothing otherwise.
pub(crate) fn detail(message: fmt::Arguments<'_>) {
    if manners::is_verbose() {
        say(message);
    }
}

/// Writes a text that may have several lines to standard error.
pub(crate) fn write_error(text: &str) {
    // If standard error is closed, the text cannot be reported anywhere.
    let _ = io::stderr()
        .lock()
        .write_all(manners::spelled(text).as_bytes());
}

/// Returns a value as JSON in one line.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> String {
    let mut json = Vec::new();
    // Writing to a vector cannot fail, and JSON is always valid UTF-8.
    let _ = write_json(&value, &mut json);
    String::from_utf8(json)
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}
