//! The paths of the control sockets of processes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The largest length of a socket's path in bytes, which the kernel limits.
pub const LONGEST: usize = 107;

/// The extension of a socket's file name, once the socket listens.
const EXTENSION: &str = "sock";
/// The extension of a socket's file name as long as the socket does not listen yet.
const BIND_EXTENSION: &str = "bind";

/// Returns the folder for sockets in `runtime`, which is the value of `$XDG_RUNTIME_DIR`. Only the user can access that
/// folder.
pub fn below(runtime: &Path) -> PathBuf {
    runtime.join("tllmprof")
}

/// Returns the folder for the sockets of user `user`, for the case that `$XDG_RUNTIME_DIR` cannot be used.
pub fn of_user(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/tllmprof-{user}"))
}

/// Returns true if a folder's name has the form that [`of_user`] produces.
pub fn is_of_user(name: &OsStr) -> bool {
    let user = name
        .to_str()
        .and_then(|name| name.strip_prefix("tllmprof-"));
    user.is_some_and(|user| user.parse::<u32>().is_ok())
}

/// Returns the file name of a process's socket, in a folder that only one PID namespace uses.
pub fn name(pid: u32) -> String {
    format!("{pid}.{EXTENSION}")
}

/// Returns the file name of a process's socket in a folder that containers share. Processes in different
/// containers may have the same id, so the name includes the host and the PID namespace.
pub fn shared_name(host: &OsStr, namespace: u64, pid: u32) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let host = host.as_bytes().iter().copied();
    let host: String = host
        .map(|byte| if is_plain(&byte) { byte.into() } else { '_' })
        .take(64)
        .collect();
    format!("{host}-{namespace}-{pid}.{EXTENSION}")
}

/// Returns the path at which a socket is created. The socket gets its final name only once it listens. A client assumes
/// that a process has ended if the socket with the final name refuses connections.
pub fn begun(socket: &Path) -> PathBuf {
    socket.with_extension(BIND_EXTENSION)
}

/// Returns true if a file with this name may be a control socket of tllmprof.
pub fn is_name(name: &OsStr) -> bool {
    number(name, EXTENSION).is_some()
}

/// Returns true if a file with this name may be a control socket of tllmprof that does not listen yet.
pub fn is_begun_name(name: &OsStr) -> bool {
    number(name, BIND_EXTENSION).is_some()
}

/// Returns the id of the process that a socket with this name belongs to, if the process is on this host and
/// in this PID namespace.
pub fn process_here(file: &OsStr, host: &OsStr, namespace: u64) -> Option<u32> {
    let pid = number(file, EXTENSION).or_else(|| number(file, BIND_EXTENSION))?;
    let stem = Path::new(file).file_stem()?;
    let names = [name(pid), shared_name(host, namespace, pid)];
    let is_its = |name: &String| Path::new(name).file_stem() == Some(stem);
    names.iter().any(is_its).then_some(pid)
}

/// Returns the process id that is part of a socket's file name with this extension.
fn number(name: &OsStr, extension: &str) -> Option<u32> {
    let stem = name.to_str()?.strip_suffix(extension)?.strip_suffix('.')?;
    let pid = stem.rsplit('-').next().unwrap_or(stem);
    let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| pid.parse().ok()).flatten()
}

/// Returns the id of a PID namespace, from the target of the link `/proc/PID/ns/pid`.
pub fn namespace(link: &Path) -> Option<u64> {
    let link = link.to_str()?;
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_again() {
        let shared = shared_name(OsStr::from_bytes(b"a/b\xff.c"), 4_026_531_836, 7);
        assert_eq!(shared, "a_b_.c-4026531836-7.sock");
        for ours in [name(7).as_str(), &shared] {
            assert!(is_name(OsStr::new(ours)), "{ours}");
        }
        let host = OsStr::from_bytes(b"a/b\xff.c");
        for (file, process) in [
            ("7.sock", Some(7)),
            ("7.bind", Some(7)),
            (shared.as_str(), Some(7)),
            ("a_b_.c-4026531836-7.bind", Some(7)),
            ("a_b_.c-4026531837-7.bind", None),
            ("other-4026531836-7.sock", None),
            ("7.sock.bind", None),
            ("99999999999.bind", None),
        ] {
            assert_eq!(
                process_here(OsStr::new(file), host, 4_026_531_836),
                process,
                "{file}"
            );
        }
        assert_eq!(
            begun(Path::new("/d/a.b-7.sock")),
            Path::new("/d/a.b-7.bind")
        );
        assert!(is_begun_name(OsStr::new("7.bind")) && !is_begun_name(OsStr::new("7.sock")));
        assert_eq!(namespace(Path::new("pid:[12]")), Some(12));
        for other in [
            "",
            ".sock",
            "x.sock",
            "7",
            "7.bind",
            "7.sock.new",
            "a-.sock",
        ] {
            assert!(!is_name(OsStr::new(other)), "{other}");
        }
    }
}
