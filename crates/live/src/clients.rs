//! The connected clients: reads their requests and writes answers. The sizes of requests and answers are
//! limited.

use core::time::Duration;
use std::time::Instant;

use tllmprof_control::{ControlEvent, LONGEST};

use crate::socket::{Moved, Socket};

/// The largest number of bytes that are read from a client before another client is served.
const READ_BYTES: usize = 4 << 10;
/// The largest number of bytes that are queued for a client that does not read. A client with more queued
/// bytes is disconnected.
const MAX_QUEUED_BYTES: usize = 64 << 10;
/// The longest time without data from a client that waits for no window (range of iterations to capture). After this
/// time the client is disconnected.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes received from a client, which are split into lines.
#[derive(Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns the next complete line, or an error if the line is too long. Returns `None` if no line is
    /// complete.
    pub(crate) fn next(&mut self) -> Option<Result<Vec<u8>, ()>> {
        match self.0.iter().position(|byte| *byte == b'\n') {
            Some(end) if end <= LONGEST => {
                let rest = self.0.split_off(end + 1);
                let mut line = core::mem::replace(&mut self.0, rest);
                line.pop();
                Some(Ok(line))
            }
            None if self.0.len() <= LONGEST => None,
            _ => Some(Err(())),
        }
    }
}

/// A connection to a client.
pub(crate) struct Client {
    /// The number of the connection, counted since the server started.
    pub number: u64,
    socket: Socket,
    lines: Lines,
    out: Vec<u8>,
    /// The time at which the client last sent something.
    since: Instant,
    /// True if nothing more is to be read from the client, and only queued data has to be written.
    is_done: bool,
    is_gone: bool,
}

impl Client {
    pub(crate) fn new(number: u64, socket: Socket) -> Self {
        Self {
            number,
            socket,
            lines: Lines::default(),
            out: Vec::new(),
            since: Instant::now(),
            is_done: false,
            is_gone: false,
        }
    }

    pub(crate) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the time at which the client last sent something.
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    /// Returns true if data is queued to be written to the client.
    pub(crate) const fn has_more(&self) -> bool {
        !self.out.is_empty()
    }

    /// Returns true if the connection can be closed. `waits` is true if the client waits for a window (a range of
    /// iterations to capture). A client that waits may be silent.
    pub(crate) fn is_over(&self, waits: bool, now: Instant) -> bool {
        let is_idle = !waits && now.saturating_duration_since(self.since) >= SILENCE_TIMEOUT;
        self.is_gone || is_idle || self.is_done && self.out.is_empty()
    }

    /// Reads the received bytes, and returns the first line if it is complete. Later calls return further
    /// lines, after other clients have been served.
    pub(crate) fn line(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; READ_BYTES];
        let has_room = self.lines.0.len() <= LONGEST;
        if !self.is_done && has_room {
            match self.socket.read(&mut buffer) {
                Moved::Bytes(length) => {
                    self.since = Instant::now();
                    self.lines.add(&buffer[..length]);
                }
                Moved::Later => {}
                Moved::Gone => self.is_gone = true,
            }
        }
        match self.lines.next()? {
            Ok(line) => Some(line),
            Err(()) => {
                if !self.is_done {
                    let why = format!("a line has more than {LONGEST} bytes");
                    self.say(&ControlEvent::refused(why));
                }
                self.is_done = true;
                None
            }
        }
    }

    /// Returns true if a complete line has been received and not yet returned. Returns false if nothing more is to be
    /// read from the client.
    pub(crate) fn has_line(&self) -> bool {
        !self.is_done && self.lines.0.contains(&b'\n')
    }

    pub(crate) fn say(&mut self, event: &ControlEvent) {
        self.out.extend_from_slice(event.to_line().as_bytes());
        self.is_gone |= self.out.len() > MAX_QUEUED_BYTES;
        self.write();
    }

    /// Writes as much of the queued data as the socket accepts.
    pub(crate) fn write(&mut self) {
        while !self.out.is_empty() && !self.is_gone {
            match self.socket.write(&self.out) {
                Moved::Bytes(length) => drop(self.out.drain(..length)),
                Moved::Later => return,
                Moved::Gone => self.is_gone = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_lines_however_they_come() {
        let mut lines = Lines::default();
        lines.add(b"one\ntw");
        assert_eq!(lines.next(), Some(Ok(b"one".to_vec())));
        assert_eq!(lines.next(), None);
        lines.add(b"o\n\nthree");
        assert_eq!(lines.next(), Some(Ok(b"two".to_vec())));
        assert_eq!(lines.next(), Some(Ok(Vec::new())));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_none() {
        let mut lines = Lines::default();
        lines.add(&[b'x'; LONGEST]);
        assert_eq!(lines.next(), None);
        lines.add(b"\n");
        assert_eq!(lines.next(), Some(Ok(vec![b'x'; LONGEST])));
        lines.add(&[b'x'; LONGEST + 1]);
        assert_eq!(lines.next(), Some(Err(())));
        lines.add(b"\n{}\n");
        assert_eq!(lines.next(), Some(Err(())));
    }
}
