//! Where the sockets of processes lie.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes of a socket's path that the kernel takes.
pub const LONGEST: usize = 107;

/// What the names of sockets end with.
const EXTENSION: &str = "sock";
/// What they end with until the socket listens.
const BEGUN: &str = "bind";

/// The folder of a user's sockets below `$XDG_RUNTIME_DIR`, which is the user's alone.
pub fn below(runtime: &Path) -> PathBuf {
    runtime.join("tllmprof")
}

/// The folder of a user's sockets where there is no such place.
pub fn of_user(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/tllmprof-{user}"))
}

/// Whether a folder has a name as [`of_user`] gives it.
pub fn is_of_user(name: &OsStr) -> bool {
    let user = name
        .to_str()
        .and_then(|name| name.strip_prefix("tllmprof-"));
    user.is_some_and(|user| user.parse::<u32>().is_ok())
}

/// The name of a process's socket in a folder of one namespace of processes.
pub fn name(pid: u32) -> String {
    format!("{pid}.{EXTENSION}")
}

/// The name in a folder that containers share, in which processes have the same numbers.
pub fn shared_name(host: &OsStr, namespace: u64, pid: u32) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let host = host.as_bytes().iter().copied();
    let host: String = host
        .map(|byte| if is_plain(&byte) { byte.into() } else { '_' })
        .take(64)
        .collect();
    format!("{host}-{namespace}-{pid}.{EXTENSION}")
}

/// The path under which a socket is made: a client that is refused takes the file for a dead process's, so it gets its
/// name when it listens.
pub fn begun(socket: &Path) -> PathBuf {
    socket.with_extension(BEGUN)
}

/// Whether a file of that name may be a socket of ours.
pub fn is_name(name: &OsStr) -> bool {
    number(name, EXTENSION).is_some()
}

/// Whether a file of that name may be a socket of ours that did not listen yet.
pub fn is_begun_name(name: &OsStr) -> bool {
    number(name, BEGUN).is_some()
}

/// The process that has a file of that name, if it is one of this host and namespace.
pub fn process_here(file: &OsStr, host: &OsStr, namespace: u64) -> Option<u32> {
    let pid = number(file, EXTENSION).or_else(|| number(file, BEGUN))?;
    let stem = Path::new(file).file_stem()?;
    let names = [name(pid), shared_name(host, namespace, pid)];
    let is_its = |name: &String| Path::new(name).file_stem() == Some(stem);
    names.iter().any(is_its).then_some(pid)
}

/// The process's number in a name that ends so.
fn number(name: &OsStr, extension: &str) -> Option<u32> {
    let stem = name.to_str()?.strip_suffix(extension)?.strip_suffix('.')?;
    let pid = stem.rsplit('-').next().unwrap_or(stem);
    let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| pid.parse().ok()).flatten()
}

/// The number of a namespace of processes, as the link `/proc/PID/ns/pid` names it.
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
