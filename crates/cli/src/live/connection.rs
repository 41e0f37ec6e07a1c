//! A connection to a process that listens.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_control::{Event, LONGEST, Request, Status};

use super::beyond;

/// How long a process may take to answer what it can answer at once.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Connection {
    reader: BufReader<UnixStream>,
    /// The beginning of a line whose rest had not come in time.
    begun: Vec<u8>,
    /// The number that the process has here.
    peer: Option<u64>,
}

/// Who may listen, and who connects.
pub struct Who {
    /// The users who may.
    pub allowed: [u32; 3],
    /// The user as whom root connects, as its own number is unknown in the process's user namespace.
    pub connect_as: Option<u32>,
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
    pub fn to(socket: &Path, who: &Who) -> Result<Reached> {
        let stream = match connect(socket, who.connect_as) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(Reached::Nobody),
            Err(error) => return Err(error.into()),
        };
        let peer = peer(&stream)?;
        if !who.allowed.contains(&peer.uid) {
            bail!("user {} listens there", peer.uid);
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut connection = Self::over(stream);
        // 0: it has no number here.
        connection.peer = u64::try_from(peer.pid).ok().filter(|pid| *pid != 0);
        Ok(Reached::Listens(connection))
    }

    /// Whether the kernel gives the process this number here.
    pub fn is_seen_as(&self, pid: u64) -> bool {
        self.peer == Some(pid)
    }

    pub(super) fn over(stream: UnixStream) -> Self {
        Self {
            reader: BufReader::new(stream),
            begun: Vec::new(),
            peer: None,
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

    /// The next event. The number of the process is the one that it has here, if it has any.
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
        let mut event = Event::from_line(line).map_err(io::Error::other)?;
        if let Event::Status(status) = &mut event
            && let Some(peer) = self.peer
            && peer != status.pid
            && beyond::own_number(peer) == Some(status.pid)
        {
            status.pid = peer;
        }
        Ok(event)
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

/// Connects to a socket whose path may be longer than an address.
fn connect(socket: &Path, user: Option<u32>) -> io::Result<UnixStream> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let is_short = socket.as_os_str().len() <= tllmprof_control::place::LONGEST;
    if is_short && user.is_none() {
        return knock(socket);
    }
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(folder)?;
    let path = Path::new("/proc/self/fd")
        .join(folder.as_raw_fd().to_string())
        .join(name);
    let Some(user) = user else {
        return knock(&path);
    };
    // The kernel takes the user from the thread that connects. This one ends then.
    let as_user = || {
        // SAFETY: the call takes numbers, and by this way it changes the effective user of the calling thread alone.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        match set {
            0 => knock(&path),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let connected = thread::scope(|scope| scope.spawn(as_user).join());
    connected.unwrap_or_else(|_| Err(io::Error::other("an internal error")))
}

/// Connects within [`PATIENCE`]: where a process is stopped, the kernel has so many wait and holds up all others.
fn knock(socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let stream = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, Some(PATIENCE))?;
    match rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?) {
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(stream.into()),
    }
}

/// Who listens at the other end, as the kernel says.
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the structure, which is of numbers alone.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        ) != 0
    };
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(peer),
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

/// Whether nobody listens at a socket.
pub fn is_nobodys(socket: &Path) -> bool {
    connect(socket, None).is_err_and(|error| is_nobody(&error))
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
