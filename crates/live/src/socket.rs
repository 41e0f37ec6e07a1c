//! The descriptors of the listening socket and of its clients. The program in which the library runs does not know
//! these descriptors. It may close them, open other files under the same numbers, and fork.

use core::ffi::c_int;
use core::mem::{ManuallyDrop, MaybeUninit, size_of};
use core::sync::atomic::{AtomicI32, Ordering};
use core::time::Duration;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tllmprof_control::place::{self, LONGEST};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_sync::Lock;
use tllmprof_sync::kernel;

/// The lowest descriptor number for sockets. The program may expect to get lower numbers for files that it
/// opens.
const LOWEST_DESCRIPTOR: c_int = 64;
/// The largest number of clients that wait to be accepted.
const BACKLOG: c_int = 16;
/// The largest number of sockets (the listening one and its clients) that are open at the same time.
pub(crate) const MAX_DESCRIPTORS: usize = 9;
/// The longest time by which a thread that is creating the socket's file can delay the end of the process.
const NAME_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time by which the lock on the table of descriptors can delay the end of the process.
const TABLE_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// A descriptor: its number (-1 for none), and the inode by which the library recognizes that the descriptor
/// still belongs to it.
#[derive(Clone, Copy)]
struct DescriptorEntry {
    number: c_int,
    inode: u64,
}

const NO_ENTRY: DescriptorEntry = DescriptorEntry {
    number: -1,
    inode: 0,
};

/// The state of the socket's file, by which clients find the socket.
enum SocketName {
    /// The file has not been created yet.
    None,
    Made {
        path: CString,
        inode: u64,
    },
    /// The process is ending, so the file is not created any more.
    Over,
}

lifecycle::global! {
    stage: Sinks;

    /// The open descriptors, which have to be closed in the child of a fork. The lock is held while a
    /// descriptor is opened or closed.
    #[fork(by = close_in_child)]
    #[exec = "the descriptors are closed"]
    static OPEN: Lock<[DescriptorEntry; MAX_DESCRIPTORS]> = Lock::new([NO_ENTRY; MAX_DESCRIPTORS]);
    /// The descriptor number of the listening socket; -1 for none.
    #[fork(reset)]
    static LISTENER: AtomicI32 = AtomicI32::new(-1);
    /// The file of the listening socket. The child of a fork gets a file of its own. The lock is held while
    /// the file is created and while it is removed. So at the end of the process the file either exists and
    /// is removed, or is never created.
    #[fork(reset)]
    #[exit = "the socket's file is removed"]
    #[exec = "the file stays until a command that lists processes or starts one removes it"]
    static NAME: Lock<SocketName> = Lock::new(SocketName::None);
}

lifecycle::at_fork! {
    stage: lifecycle::Stage::Sinks,
    before: || OPEN.hold_over_fork(),
    parent: || OPEN.release_after_fork(),
}

/// Shuts down the listening socket, which wakes the thread that waits for clients. Returns false if the socket was not
/// open, or if the table of descriptors stayed locked.
pub(crate) fn hang_up() -> bool {
    let listener = LISTENER.load(Ordering::SeqCst);
    let Some(open) = OPEN.lock_for(TABLE_LOCK_TIMEOUT) else {
        return false;
    };
    let listens = |entry: &&DescriptorEntry| entry.number == listener && is_still(**entry);
    let is_there = listener >= 0 && open.iter().any(|entry| listens(&entry));
    // SAFETY: the descriptor belongs to the listening socket, because its inode matches.
    is_there && unsafe { libc::shutdown(listener, libc::SHUT_RDWR) == 0 }
}

/// Closes the parent's descriptors in the child of a fork.
fn close_in_child(alone: &OnlyThread) {
    OPEN.break_open(alone);
    let mut open = OPEN.lock();
    for entry in open.iter_mut() {
        close(*entry);
        *entry = NO_ENTRY;
    }
}

/// Returns true if the descriptor still refers to the file that it was opened for.
fn is_still(entry: DescriptorEntry) -> bool {
    kernel::status(entry.number).is_some_and(|status| status.st_ino == entry.inode)
}

fn close(entry: DescriptorEntry) {
    if entry.number >= 0 && is_still(entry) {
        // SAFETY: the descriptor is ours, because its inode matches.
        unsafe { libc::close(entry.number) };
    }
}

/// An open socket. Its descriptor is in `OPEN`, the table of descriptors that a forked child has to close.
pub(crate) struct Socket(DescriptorEntry);

/// The result of reading from a socket or writing to it.
pub(crate) enum Moved {
    Bytes(usize),
    /// No data can be read or written now, but this may change.
    Later,
    /// The peer has closed the connection, or the program has closed the descriptor.
    Gone,
}

impl Socket {
    /// Opens a descriptor with `open`, moves it to a high number that no program expects, and enters it in `OPEN`, the
    /// table of the library's open sockets.
    fn new(open: impl FnOnce() -> c_int) -> io::Result<Self> {
        let mut table = OPEN.lock();
        let place = table.iter_mut().find(|entry| entry.number < 0);
        let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
        let low = open();
        if low < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `low` was opened above, and nothing else uses it.
        let number = unsafe {
            let number = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR);
            libc::close(low);
            number
        };
        // The process's limit for descriptors is below the wanted number (EINVAL), or no descriptor is free (EMFILE).
        // Either way, the program has no descriptor to spare for the library.
        if number < 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let inode = kernel::status(number).map_or(0, |status| status.st_ino);
        *place = DescriptorEntry { number, inode };
        Ok(Self(*place))
    }

    /// Creates a socket that listens at `path`. Replaces a socket that an earlier process with the same id
    /// has left there. Returns `None` if this process is ending.
    ///
    /// # Errors
    /// Returns an error of the system, for example because a system call filter forbids sockets.
    pub(crate) fn listen(path: &Path) -> io::Result<Option<Self>> {
        let text = CString::new(path.as_os_str().as_bytes())?;
        let before = place::begun(path);
        let begun = CString::new(before.as_os_str().as_bytes())?;
        let bytes = begun.as_bytes();
        if bytes.len() > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` takes no pointer.
        let socket = Self::new(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        let mut address = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as libc::sa_family_t,
            sun_path: [0; 108],
        };
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = from.cast_signed() as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let mut name = NAME.lock();
        if matches!(*name, SocketName::Over) {
            return Ok(None);
        }
        // SAFETY: the strings end with a zero byte, and the address is passed with the length of its type.
        let failed = unsafe {
            // `bind` gives the socket's file the permissions of the descriptor, so the descriptor's permissions are set
            // first.
            libc::fchmod(socket.0.number, 0o600) != 0
                || {
                    libc::unlink(begun.as_ptr());
                    libc::bind(socket.0.number, (&raw const address).cast(), length) != 0
                }
                || libc::listen(socket.0.number, BACKLOG) != 0
                || libc::rename(begun.as_ptr(), text.as_ptr()) != 0
        };
        if failed {
            let error = io::Error::last_os_error();
            // SAFETY: the string ends with a zero byte.
            unsafe { libc::unlink(begun.as_ptr()) };
            return Err(error);
        }
        let inode = inode_at(&text).unwrap_or(0);
        *name = SocketName::Made { path: text, inode };
        LISTENER.store(socket.0.number, Ordering::SeqCst);
        Ok(Some(socket))
    }

    /// Returns true if the descriptor still belongs to this socket. Returns false if the program has closed the
    /// descriptor.
    pub(crate) fn is_own(&self) -> bool {
        is_still(self.0)
    }

    /// Accepts the next client of an allowed user, and closes the connections of other users. Returns `None`
    /// if no client waits.
    ///
    /// # Errors
    /// Returns an error of the system, for example because no descriptor is free. The client may then still wait.
    pub(crate) fn accept(&self) -> io::Result<Option<Self>> {
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let (none, length) = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: the pointers are null, because no address is requested.
            let client = Self::new(|| unsafe { libc::accept4(self.0.number, none, length, flags) });
            match client {
                Ok(client) if client.is_allowed() => return Ok(Some(client)),
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Returns true if the peer is root or the same user as this process, according to the kernel.
    fn is_allowed(&self) -> bool {
        let mut peer = MaybeUninit::<libc::ucred>::uninit();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, and the value is read only if the kernel has
        // written all of them.
        let user = unsafe {
            let failed = libc::getsockopt(
                self.0.number,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                peer.as_mut_ptr().cast(),
                &raw mut length,
            ) != 0;
            if failed || length as usize != size_of::<libc::ucred>() {
                return false;
            }
            peer.assume_init().uid
        };
        // SAFETY: `geteuid` takes no arguments, and always succeeds.
        user == 0 || user == unsafe { libc::geteuid() }
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Moved {
        if !self.is_own() {
            return Moved::Gone;
        }
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let read = unsafe {
            libc::recv(
                self.0.number,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match read {
            0 => Moved::Gone,
            read => moved(read),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Moved {
        if !self.is_own() {
            return Moved::Gone;
        }
        // SAFETY: the kernel only reads the bytes. If the peer has closed the connection, the call returns an
        // error and raises no signal.
        moved(unsafe {
            libc::send(
                self.0.number,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut table = OPEN.lock();
        close(self.0);
        let mine = |entry: &&mut DescriptorEntry| {
            entry.number == self.0.number && entry.inode == self.0.inode
        };
        if let Some(entry) = table.iter_mut().find(mine) {
            *entry = NO_ENTRY;
        }
    }
}

fn moved(result: isize) -> Moved {
    if let Ok(bytes) = usize::try_from(result) {
        return Moved::Bytes(bytes);
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Moved::Later,
        _ => Moved::Gone,
    }
}

/// Waits, for at most `patience`, until one of the sockets is ready: it has data to read or, if its flag is true,
/// accepts data to write. The first socket is the listening one. If `accepts` is false, clients that wait to be
/// accepted do not make it ready. Returns the ready sockets as bits (bit n for socket n), and true if the first socket
/// was shut down.
pub(crate) fn wait(
    sockets: &[(&Socket, bool)],
    accepts: bool,
    patience: Option<Duration>,
) -> (u64, bool) {
    let mut all = [libc::pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    }; MAX_DESCRIPTORS];
    for (poll, (socket, writes)) in all.iter_mut().zip(sockets) {
        poll.fd = socket.0.number;
        poll.events = libc::POLLIN | if *writes { libc::POLLOUT } else { 0 };
    }
    if !accepts {
        // Without any events, `poll` still reports that the socket was shut down.
        all[0].events = 0;
    }
    let count = sockets.len().min(MAX_DESCRIPTORS) as libc::nfds_t;
    let limit = |patience: Duration| c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
    let patience = patience.map_or(-1, limit);
    // SAFETY: the kernel writes to the array, which has at least `count` elements.
    unsafe { libc::poll(all.as_mut_ptr(), count, patience) };
    let is_ready = |(place, poll): (usize, &libc::pollfd)| u64::from(poll.revents != 0) << place;
    let ready = all.iter().enumerate().map(is_ready).sum();
    (ready, all[0].revents & libc::POLLHUP != 0)
}

fn inode_at(path: &CString) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the string ends with a zero byte, and the structure is read only if the kernel has filled it.
    unsafe {
        let failed = libc::lstat(path.as_ptr(), status.as_mut_ptr()) != 0;
        (!failed).then(|| status.assume_init().st_ino)
    }
}

/// Removes the socket's file, if it still belongs to this process. No file is created after this call. This function
/// neither allocates nor frees memory.
pub(crate) fn remove() {
    let Some(mut name) = NAME.lock_for(NAME_LOCK_TIMEOUT) else {
        return;
    };
    let made = ManuallyDrop::new(core::mem::replace(&mut *name, SocketName::Over));
    if let SocketName::Made { path, inode } = &*made
        && inode_at(path) == Some(*inode)
    {
        // SAFETY: the string ends with a zero byte.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_the_users_alone_lies_high_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.sock");
        // In this test, another process with the same id has left a file at the path.
        std::fs::write(&path, "").unwrap();
        let socket = Socket::listen(&path).unwrap().unwrap();
        assert!(socket.0.number >= LOWEST_DESCRIPTOR && socket.is_own());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let status = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(status.permissions().mode() & 0o777, 0o600);
        assert!(socket.accept().unwrap().is_none());
        let mut peer = UnixStream::connect(&path).unwrap();
        let patience = Some(Duration::from_secs(5));
        assert_eq!(wait(&[(&socket, false)], true, patience), (1, false));
        // While clients are not accepted, a client that waits does not make the socket ready.
        let none = Some(Duration::ZERO);
        assert_eq!(wait(&[(&socket, false)], false, none), (0, false));
        let client = socket.accept().unwrap().unwrap();
        peer.write_all(b"a line\n").unwrap();
        assert_eq!(
            wait(&[(&socket, false), (&client, true)], true, patience),
            (2, false)
        );
        let mut buffer = [0; 4];
        assert!(matches!(client.read(&mut buffer), Moved::Bytes(4)));
        assert!(matches!(client.read(&mut buffer), Moved::Bytes(3)));
        assert!(matches!(client.read(&mut buffer), Moved::Later));
        assert!(matches!(client.write(b"answer\n"), Moved::Bytes(7)));
        let mut answer = String::new();
        BufReader::new(&peer).read_line(&mut answer).unwrap();
        assert_eq!(answer, "answer\n");
        // The peer has closed the connection. A write without MSG_NOSIGNAL would raise SIGPIPE now,
        // which would end the test's process.
        drop(peer);
        assert!(matches!(client.read(&mut buffer), Moved::Gone));
        assert!(matches!(client.write(b"x"), Moved::Gone));
        // Simulates a program that closes the socket's descriptor, and then gets the same number for another file.
        let other = std::fs::File::open("/proc/self/maps").unwrap();
        let number = client.0.number;
        // SAFETY: `dup2` takes no pointer. It closes the socket's descriptor and uses its number again, as a program
        // may do with descriptors that it does not know.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), number) };
        assert!(!client.is_own() && matches!(client.write(b"x"), Moved::Gone));
        drop(client);
        let still = kernel::status(number).unwrap();
        assert_eq!(still.st_ino, other.metadata().unwrap().ino());
        // SAFETY: closes the descriptor that `dup2` made above.
        unsafe { libc::close(number) };
        // Simulates another process that has created a file at the socket's path. That file must
        // not be removed.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        remove();
        let mut left = String::new();
        std::fs::File::open(&path)
            .unwrap()
            .read_to_string(&mut left)
            .unwrap();
        assert_eq!(left, "another's");
        // The process is ending, so a thread that begins to listen now must create no file.
        let late = folder.path().join("late");
        std::fs::create_dir(&late).unwrap();
        assert!(Socket::listen(&late.join("7.sock")).unwrap().is_none());
        assert_eq!(std::fs::read_dir(&late).unwrap().count(), 0);
    }
}
