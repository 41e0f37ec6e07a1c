//! Whoever has connected: lines in, lines out, both within bounds.

use core::time::Duration;
use std::time::Instant;

use tllmprof_control::{Event, LONGEST};

use crate::socket::{Moved, Socket};

/// Bytes that are read of a client before the next has its turn.
const READ: usize = 4 << 10;
/// Bytes that wait for a client that does not read.
const WAITING: usize = 64 << 10;
/// How long a client may say nothing that waits for nothing.
const IDLE: Duration = Duration::from_secs(30);

/// Bytes that become lines.
#[derive(Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole line; an error where it becomes too long to be one.
    pub fn next(&mut self) -> Option<Result<Vec<u8>, ()>> {
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

/// A connection.
pub struct Client {
    /// Which of all that there were.
    pub number: u64,
    socket: Socket,
    lines: Lines,
    out: Vec<u8>,
    /// When it said something last.
    since: Instant,
    /// Nothing more is read of it.
    is_done: bool,
    is_gone: bool,
}

impl Client {
    pub fn new(number: u64, socket: Socket) -> Self {
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

    pub const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Since when it has said nothing.
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Whether something waits to be written.
    pub const fn has_more(&self) -> bool {
        !self.out.is_empty()
    }

    /// Whether nothing is left to be done for it. One that `waits` may do so in silence.
    pub fn is_over(&self, waits: bool, now: Instant) -> bool {
        let is_idle = !waits && now.saturating_duration_since(self.since) >= IDLE;
        self.is_gone || is_idle || self.is_done && self.out.is_empty()
    }

    /// Reads what is there; the first line, if one is whole. The others wait for the next turn.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; READ];
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
                    self.say(&Event::refused(why));
                }
                self.is_done = true;
                None
            }
        }
    }

    /// Whether a whole line waits.
    pub fn has_line(&self) -> bool {
        !self.is_done && self.lines.0.contains(&b'\n')
    }

    pub fn say(&mut self, event: &Event) {
        self.out.extend_from_slice(event.to_line().as_bytes());
        self.is_gone |= self.out.len() > WAITING;
        self.write();
    }

    /// Writes what it takes.
    pub fn write(&mut self) {
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
