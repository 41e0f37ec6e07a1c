//! Checks that commands do not hang if a process is stopped by SIGSTOP and so does not answer.

use std::iter::from_fn;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::place::Place;

#[test]
fn a_process_that_is_stopped_is_named_in_one_line_and_holds_up_nobody() {
    let place = Place::new();
    let mut stopped = place.start(&mut place.server("500"));
    let mut other = place.start(&mut place.server("500"));
    stopped.connect();
    other.connect();
    // SAFETY: kill takes only numbers. The process is a child that has not been waited for.
    let signal = |number| unsafe { libc::kill(stopped.pid().cast_signed(), number) };
    signal(libc::SIGSTOP);
    // Clients connect until the queue of the stopped process's socket is full.
    let socket = stopped.socket();
    let waiting: Vec<_> = from_fn(|| connect_at_once(&socket)).take(4096).collect();
    assert!(waiting.len() < 4096, "the kernel lets any number wait");
    let ended = place.tllmprof(&format!("stop {}", stopped.pid()));
    let expected = format!(
        "tllmprof: {}: it is stopped, and cannot answer (SIGCONT lets it go on)\n",
        stopped.pid()
    );
    assert_eq!((ended.status.code(), ended.err()), (Some(1), expected));
    let ended = place.tllmprof(&format!("capture {} --steps 3", other.pid()));
    assert!(ended.status.success(), "{}", ended.err());
    drop(waiting);
    signal(libc::SIGCONT);
    stopped.end();
    other.end();
}

/// Connects to a socket. Returns `None` if that is not possible without waiting.
fn connect_at_once(socket: &Path) -> Option<UnixStream> {
    // SAFETY: socket takes only numbers.
    let stream = unsafe {
        libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        )
    };
    assert!(stream >= 0);
    // SAFETY: socket has just created the descriptor, and nothing else owns it.
    let stream = unsafe { UnixStream::from_raw_fd(stream) };
    // SAFETY: sockaddr_un only contains numbers, so it may be all zeros.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = socket.as_os_str().as_bytes();
    for (into, byte) in address.sun_path.iter_mut().zip(path) {
        *into = byte.cast_signed();
    }
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and the length are those of the local `address`, whose path ends with a 0
    // byte.
    let failed = unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) };
    (failed == 0).then_some(stream)
}
