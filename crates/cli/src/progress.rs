//! Shows the progress of work that takes over a second, if standard error is a terminal.

use std::cell::RefCell;
use std::io::{self, Stderr, Write};
use std::time::{Duration, Instant};

use tllmprof_config::printable;
use tllmprof_record::{Damage, Entry, Header, Source};
use tllmprof_report::{Origin, Recording};

use crate::output;

/// Time that work may take before its progress is shown.
const DELAY: Duration = Duration::from_secs(1);
const WIDTH: usize = 60;
const BETWEEN: Duration = Duration::from_millis(100);

/// The progress of some work, shown on a terminal line that is removed at the end.
pub(crate) struct Progress<W: Write = Stderr> {
    /// The terminal of standard error, on which the progress is shown. `None` if standard error is not a terminal, or
    /// if messages are held back.
    terminal: Option<W>,
    what: String,
    total: u64,
    done: u64,
    /// The time at which the progress line may be updated next.
    next: Instant,
    is_shown: bool,
}

impl Progress {
    /// Returns the progress of work that begins now. It is shown if the work takes longer than [`DELAY`]. `what`
    /// describes the work to the user. `total` is the amount of work, in a unit that the caller chooses.
    pub(crate) fn new(what: String, total: u64) -> Self {
        let terminal = output::has_terminal().then(io::stderr);
        Self::with_terminal(terminal, what, total, DELAY)
    }
}

impl<W: Write> Progress<W> {
    fn with_terminal(terminal: Option<W>, what: String, total: u64, delay: Duration) -> Self {
        // The text is cut to fit one line of a narrow terminal, and control characters are
        // replaced.
        let what = printable(what);
        Self {
            terminal,
            what: what.chars().take(WIDTH).collect(),
            total,
            done: 0,
            next: Instant::now() + delay,
            is_shown: false,
        }
    }

    /// Adds `steps` to the amount of work that is done, and updates the progress line.
    pub(crate) fn advance(&mut self, steps: u64) {
        self.done = self.done.saturating_add(steps);
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + BETWEEN;
        self.is_shown = true;
        let share = u128::from(self.done) * 100 / u128::from(self.total.max(1));
        // An error is ignored: if the terminal is gone, no user can read the line.
        let _ = write!(
            terminal,
            "\r\x1b[Ktllmprof: {} {} %",
            self.what,
            share.min(100)
        );
        let _ = terminal.flush();
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        if self.is_shown
            && let Some(terminal) = &mut self.terminal
        {
            let _ = write!(terminal, "\r\x1b[K");
            let _ = terminal.flush();
        }
    }
}

/// A source of a record's bytes. Each read advances a progress line.
pub(crate) struct ProgressSource<S> {
    source: S,
    progress: RefCell<Progress>,
}

impl<S> ProgressSource<S> {
    /// Wraps a source of bytes. `bytes` is the total number of bytes that will be read, from which the percentage is
    /// computed.
    pub(crate) fn new(source: S, what: String, bytes: u64) -> Self {
        let progress = RefCell::new(Progress::new(what, bytes));
        Self { source, progress }
    }
}

impl<S: Source> Source for ProgressSource<S> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.source.read_at(buffer, offset)?;
        self.progress.borrow_mut().advance(length as u64);
        Ok(length)
    }
}

/// A recording that was made by another profiler. Reading its entries advances a progress line.
pub(crate) struct Counted<'a, R> {
    recording: &'a R,
    progress: RefCell<Progress>,
}

impl<'a, R> Counted<'a, R> {
    /// Wraps a recording. `entries` is the approximate number of entries that will be read, from which the percentage
    /// is computed.
    pub(crate) fn new(recording: &'a R, what: String, entries: u64) -> Self {
        let progress = RefCell::new(Progress::new(what, entries));
        Self {
            recording,
            progress,
        }
    }
}

impl<R: Recording> Recording for Counted<'_, R> {
    fn header(&self) -> &Header {
        self.recording.header()
    }

    fn origin(&self) -> Origin {
        self.recording.origin()
    }

    fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        self.recording.read(|entry| {
            self.progress.borrow_mut().advance(1);
            each(entry);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(has_terminal: bool, delay: Duration) -> String {
        let mut written = Vec::new();
        let terminal = has_terminal.then_some(&mut written);
        let mut progress = Progress::with_terminal(terminal, "reading x".to_owned(), 200, delay);
        progress.advance(50);
        progress.next = progress.next.min(Instant::now() + delay);
        progress.advance(140);
        drop(progress);
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn it_is_shown_in_one_line_that_goes() {
        assert_eq!(
            shown(true, Duration::ZERO),
            "\r\x1b[Ktllmprof: reading x 25 %\r\x1b[Ktllmprof: reading x 95 %\r\x1b[K"
        );
    }

    #[test]
    fn nothing_is_shown_of_what_is_short_or_without_a_terminal() {
        assert_eq!(shown(true, Duration::from_secs(3600)), "");
        assert_eq!(shown(false, Duration::ZERO), "");
    }
}
