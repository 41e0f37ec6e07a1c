//! A connection to a process that listens.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_control::{Event, LONGEST, Request, Status};

/// How long a process may take to answer what it can answer at once.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Connection {
    reader: BufReader<UnixStream>,
    /// The beginning of a line whose rest had not come in time.
    begun: Vec<u8>,
}

/// Whoever may listen there.
pub enum Reached {
    Listens(Connection),
    /// The process is gone.
    Nobody,
}

impl Connection {
    /// # Errors
    /// Where it cannot be reached, or is another user's.
    pub fn to(socket: &Path, users: &[u32]) -> Result<Reached> {
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(Reached::Nobody),
            Err(error) => return Err(error.into()),
        };
        let user = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
        if !users.contains(&user) {
            bail!("user {user} listens there");
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Reached::Listens(Self::over(stream)))
    }

    pub(super) fn over(stream: UnixStream) -> Self {
        Self {
            reader: BufReader::new(stream),
            begun: Vec::new(),
        }
    }

    /// Another handle, to write by.
    ///
    /// # Errors
    /// Where there is none to be had.
    pub fn writer(&self) -> io::Result<Writer> {
        Ok(Writer(self.reader.get_ref().try_clone()?))
    }

    /// Sets how long [`Connection::next`] waits.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_for(&self, patience: Option<Duration>) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(patience)
    }

    /// The next event.
    ///
    /// # Errors
    /// Where none comes in time, the other side is gone, or it says something else.
    pub fn next(&mut self) -> io::Result<Event> {
        let longest = 4 * LONGEST as u64;
        let read = self
            .reader
            .by_ref()
            .take(longest)
            .read_until(b'\n', &mut self.begun);
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let line = std::mem::take(&mut self.begun);
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Event::from_line(line).map_err(io::Error::other)
    }

    /// # Errors
    /// As of [`Connection::next`].
    pub fn status(&mut self) -> io::Result<Status> {
        self.ask(&Request::Status)?;
        loop {
            if let Event::Status(status) = self.next()? {
                return Ok(*status);
            }
        }
    }

    /// Gives up the window that was accepted, and waits until it is over, at most for so long.
    ///
    /// # Errors
    /// As of [`Connection::next`].
    pub fn release(&mut self, patience: Duration) -> io::Result<()> {
        self.wait_for(Some(patience))?;
        self.ask(&Request::Stop)?;
        // The window may be over by itself, before the request or behind it, which is refused then. What is said of this
        // one is behind the refusal.
        self.ask(&Request::Status)?;
        let (mut is_over, mut is_answered) = (false, false);
        while !(is_over && is_answered) {
            match self.next()? {
                Event::Closed(_) => is_over = true,
                Event::Status(_) => is_answered = true,
                _ => {}
            }
        }
        self.wait_for(Some(PATIENCE))
    }

    /// # Errors
    /// Where the other side is gone.
    pub fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.reader
            .get_mut()
            .write_all(request.to_line().as_bytes())
    }
}

/// Writes to a process while another thread reads of it.
pub struct Writer(UnixStream);

impl Writer {
    /// # Errors
    /// Where the other side is gone.
    pub fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.0.write_all(request.to_line().as_bytes())
    }
}

/// Whether an error of a connection says that the process has ended.
pub fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_whose_end_comes_late_is_read_whole() {
        let (mut process, stream) = UnixStream::pair().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let mut connection = Connection::over(stream);
        let line = Event::Status(Box::default()).to_line();
        let (begin, end) = line.split_at(line.len() / 2);
        process.write_all(begin.as_bytes()).unwrap();
        let late = connection.next().unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        process.write_all(end.as_bytes()).unwrap();
        assert!(matches!(connection.next(), Ok(Event::Status(_))));
        drop(process);
        let gone = connection.next().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }
}
