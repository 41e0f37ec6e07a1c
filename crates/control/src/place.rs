//! Where the sockets of processes lie.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes of a socket's path that the kernel takes.
pub const LONGEST: usize = 107;

/// What the names of sockets end with.
const EXTENSION: &str = "sock";

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

/// Whether a file of that name may be a socket of ours.
pub fn is_name(name: &OsStr) -> bool {
    let stem = name.to_str().and_then(|name| name.strip_suffix(".sock"));
    let pid = stem.map(|stem| stem.rsplit('-').next().unwrap_or(stem));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
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
