//! A connection to the control socket of a process.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use tllmprof_control::{ControlEvent, LONGEST, Request, Status};

use crate::beyond;

/// Time that a process has to answer a request that it can answer at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Connection {
    reader: BufReader<UnixStream>,
    /// The beginning of a line that was received, if the rest of the line has not arrived yet.
    begun: Vec<u8>,
    /// The id of the process at the other end, in the PID namespace of this command. `None` if the process has no id in
    /// that namespace.
    peer: Option<u64>,
}

/// The users who may own the other end of a socket, and the user as whom to connect.
pub(crate) struct Who {
    /// The ids of the users whose processes are trusted.
    pub allowed: [u32; 3],
    /// The user id as which root connects to a process in another user namespace, where root's own id is unknown.
    /// `None` to connect as the current user.
    pub connect_as: Option<u32>,
}

/// The result of trying to connect to the socket file of a process.
pub(crate) enum Reached {
    Listens(Connection),
    /// No process listens on the socket any more. The socket file was left by a process that has ended.
    Nobody,
}

impl Connection {
    /// Connects to the process of a socket.
    ///
    /// # Errors
    /// The socket cannot be reached, or the listening process runs as a user that is not in `who.allowed`.
    pub(crate) fn open(socket: &Path, who: &Who) -> Result<Reached> {
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
        // The kernel reports 0 if the process has no id in the PID namespace of this command.
        connection.peer = u64::try_from(peer.pid).ok().filter(|pid| *pid != 0);
        Ok(Reached::Listens(connection))
    }

    /// Returns true if the kernel reports `pid` as the id of the connected process in this PID namespace.
    pub(crate) fn is_seen_as(&self, pid: u64) -> bool {
        self.peer == Some(pid)
    }

    pub(super) fn from_stream(stream: UnixStream) -> Self {
        Self {
            reader: BufReader::new(stream),
            begun: Vec::new(),
            peer: None,
        }
    }

    /// Returns another handle of the connection, for writing while `self` reads.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub(crate) fn writer(&self) -> io::Result<Writer> {
        Ok(Writer(self.reader.get_ref().try_clone()?))
    }

    /// Sets the longest time that [`Connection::next`] waits for an event. `None` means no limit.
    ///
    /// # Errors
    /// The system refuses the timeout.
    pub(crate) fn wait_for(&self, patience: Option<Duration>) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(patience)
    }

    /// Returns the next event. The process id in the event is replaced by the id in the PID namespace of this command,
    /// if the process has such an id.
    ///
    /// # Errors
    /// No event arrives in time, the process has ended, or the line that it sent is not an event.
    pub(crate) fn next(&mut self) -> io::Result<ControlEvent> {
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
        let mut event = ControlEvent::from_line(line).map_err(io::Error::other)?;
        if let ControlEvent::Status(status) = &mut event
            && let Some(peer) = self.peer
            && peer != status.pid
            && beyond::own_number(peer) == Some(status.pid)
        {
            status.pid = peer;
        }
        Ok(event)
    }

    /// Asks for the status of the process, and skips other events until the status arrives.
    ///
    /// # Errors
    /// The errors of [`Connection::next`].
    pub(crate) fn status(&mut self) -> io::Result<Status> {
        self.ask(&Request::Status)?;
        loop {
            if let ControlEvent::Status(status) = self.next()? {
                return Ok(*status);
            }
        }
    }

    /// Closes the window (range of captured iterations) that the process has accepted. Waits up to `patience` for
    /// each event until the window is closed.
    ///
    /// # Errors
    /// The errors of [`Connection::next`].
    pub(crate) fn release(&mut self, patience: Duration) -> io::Result<()> {
        self.wait_for(Some(patience))?;
        self.ask(&Request::Stop)?;
        // The window (the range of captured iterations) may close by itself just before the stop request arrives. The
        // process then refuses the stop request. This refusal must be read, too, because otherwise it would be taken
        // for the answer to a later request. So a status request follows: the process answers it after the stop
        // request.
        self.ask(&Request::Status)?;
        let (mut is_over, mut is_answered) = (false, false);
        while !(is_over && is_answered) {
            match self.next()? {
                ControlEvent::Closed(_) => is_over = true,
                ControlEvent::Status(_) => is_answered = true,
                _ => {}
            }
        }
        self.wait_for(Some(ANSWER_TIMEOUT))
    }

    /// Sends a request to the process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.reader
            .get_mut()
            .write_all(request.to_line().as_bytes())
    }
}

/// Connects to a socket, as `user` if a user is given. If the path is longer than a socket address allows, the socket
/// is reached through a descriptor of its folder.
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
    // The kernel reports the user of the connecting thread to the other process. So a separate thread changes its user,
    // connects and ends, and this thread's user does not change.
    let as_user = || {
        // SAFETY: the call only takes numbers. It is made directly and not through the C library, so it changes the
        // effective user of only the calling thread.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        match set {
            0 => knock(&path),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let connected = thread::scope(|scope| scope.spawn(as_user).join());
    connected.unwrap_or_else(|_| Err(io::Error::other("an internal error")))
}

/// Connects to a socket within [`ANSWER_TIMEOUT`]. Without this limit, the call would block if the process is stopped
/// (by SIGSTOP) and the kernel's short queue of connections to it is full.
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

/// Returns the ids of the process and the user at the other end of a socket, as the kernel reports them.
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

/// The writing half of a connection, for use while another thread reads from the connection.
pub(crate) struct Writer(UnixStream);

impl Writer {
    /// Sends a request to the process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.0.write_all(request.to_line().as_bytes())
    }
}

/// Returns true if this error of a connection means that the process has ended.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns true if no process listens on the socket.
pub(crate) fn is_nobodys(socket: &Path) -> bool {
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
        let line = ControlEvent::Status(Box::default()).to_line();
        let (begin, end) = line.split_at(line.len() / 2);
        process.write_all(begin.as_bytes()).unwrap();
        let late = connection.next().unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        process.write_all(end.as_bytes()).unwrap();
        assert!(matches!(connection.next(), Ok(ControlEvent::Status(_))));
        drop(process);
        let gone = connection.next().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }
}
