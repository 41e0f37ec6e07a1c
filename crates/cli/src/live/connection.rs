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

/// Time within which a process has to answer a request that needs no waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Connection {
    reader: BufReader<UnixStream>,
    /// The beginning of a line whose rest has not arrived yet.
    begun: Vec<u8>,
    /// The process's number in this namespace.
    peer: Option<u64>,
}

/// The users who may own the socket, and the user who connects.
pub struct Who {
    /// Users whose processes are trusted.
    pub allowed: [u32; 3],
    /// The user as whom root connects, because root's own number is unknown in the process's user namespace.
    pub connect_as: Option<u32>,
}

/// The result of connecting to a socket.
pub enum Reached {
    Listens(Connection),
    /// The process is gone.
    Nobody,
}

impl Connection {
    /// # Errors
    /// The socket cannot be reached, or belongs to another user.
    pub fn open(socket: &Path, who: &Who) -> Result<Reached> {
        let stream = match connect(socket, who.connect_as) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(Reached::Nobody),
            Err(error) => return Err(error.into()),
        };
        let peer = peer(&stream)?;
        if !who.allowed.contains(&peer.uid) {
            bail!("user {} listens there", peer.uid);
        }
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut connection = Self::from_stream(stream);
        // 0: the process has no number in this namespace.
        connection.peer = u64::try_from(peer.pid).ok().filter(|pid| *pid != 0);
        Ok(Reached::Listens(connection))
    }

    /// Returns whether the kernel knows the process by this number in this namespace.
    pub fn is_seen_as(&self, pid: u64) -> bool {
        self.peer == Some(pid)
    }

    pub(super) fn from_stream(stream: UnixStream) -> Self {
        Self {
            reader: BufReader::new(stream),
            begun: Vec::new(),
            peer: None,
        }
    }

    /// Another handle, for writing.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub fn writer(&self) -> io::Result<Writer> {
        Ok(Writer(self.reader.get_ref().try_clone()?))
    }

    /// Sets how long [`Connection::next`] waits.
    ///
    /// # Errors
    /// The system refuses the timeout.
    pub fn wait_for(&self, patience: Option<Duration>) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(patience)
    }

    /// The next event. The process number in it is the one in this namespace, if there is one.
    ///
    /// # Errors
    /// No event arrives in time, the other side is gone, or its line is not an event.
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
    /// Those of [`Connection::next`].
    pub fn status(&mut self) -> io::Result<Status> {
        self.ask(&Request::Status)?;
        loop {
            if let Event::Status(status) = self.next()? {
                return Ok(*status);
            }
        }
    }

    /// Gives up the accepted window, and waits up to `patience` until it is over.
    ///
    /// # Errors
    /// Those of [`Connection::next`].
    pub fn release(&mut self, patience: Duration) -> io::Result<()> {
        self.wait_for(Some(patience))?;
        self.ask(&Request::Stop)?;
        // The window may close by itself, before or after the request, which is then refused. Events of this window
        // come before the answer to the status request.
        self.ask(&Request::Status)?;
        let (mut is_over, mut is_answered) = (false, false);
        while !(is_over && is_answered) {
            match self.next()? {
                Event::Closed(_) => is_over = true,
                Event::Status(_) => is_answered = true,
                _ => {}
            }
        }
        self.wait_for(Some(ANSWER_TIMEOUT))
    }

    /// # Errors
    /// The other side is gone.
    pub fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.reader
            .get_mut()
            .write_all(request.to_line().as_bytes())
    }
}

/// Connects to a socket whose path may be longer than a socket address.
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
    // The kernel takes the user from the thread that connects. This thread ends afterwards.
    let as_user = || {
        // SAFETY: the call only takes numbers, and made directly it changes the effective user of only the calling
        // thread.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        match set {
            0 => knock(&path),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let connected = thread::scope(|scope| scope.spawn(as_user).join());
    connected.unwrap_or_else(|_| Err(io::Error::other("an internal error")))
}

/// Connects within [`ANSWER_TIMEOUT`]: if a process is stopped, the kernel queues a few connections and blocks all
/// others.
fn knock(socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let stream = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, Some(ANSWER_TIMEOUT))?;
    match rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?) {
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(stream.into()),
    }
}

/// The process at the other end, as the kernel reports it.
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the structure, which consists only of numbers.
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

/// Writes to a process while another thread reads from it.
pub struct Writer(UnixStream);

impl Writer {
    /// # Errors
    /// The other side is gone.
    pub fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.0.write_all(request.to_line().as_bytes())
    }
}

/// Returns whether an error of a connection means that the process has ended.
pub fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns whether no process listens at a socket.
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
        let mut connection = Connection::from_stream(stream);
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
