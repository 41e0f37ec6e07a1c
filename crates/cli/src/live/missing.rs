//! Finds out why a process that the user named does not listen on a control socket.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use tllmprof_attach::{AttachRefusal, ProcStatus};

use super::sockets;
use crate::beyond;

/// Returns the reason why a process does not listen on a control socket. The text continues a message that begins with
/// the process id.
pub(crate) fn why(pid: u64) -> String {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let about = i32::try_from(pid)
        .ok()
        .and_then(|pid| ProcStatus::from_pid(pid).ok());
    let (Ok(status), Some(about)) = (fs::metadata(&process), about) else {
        return "there is no such process here".to_owned();
    };
    if u64::from(about.process.cast_unsigned()) != pid {
        return AttachRefusal::Thread(about.process).to_string();
    }
    let user = rustix::process::geteuid().as_raw();
    if user != 0 && status.uid() != user {
        return format!(
            "it is a process of user {}; only that user and root can capture it",
            status.uid()
        );
    }
    if !beyond::has_library(pid) {
        return "it runs without the library: tllmprof attach loads it; or start it with tllmprof run, or preload the \
                library with TLLMPROF_CONTROL=1"
            .to_owned();
    }
    if matches!(about.state, 'T' | 't') {
        return "it is stopped, and cannot answer (SIGCONT lets it go on)".to_owned();
    }
    if sockets::find(pid).is_some() {
        return format!("the library is detached: tllmprof attach {pid} attaches it again");
    }
    if was_attached(pid) {
        return "the library was attached, and listens from the first CUDA call on that it sees: there was none yet"
            .to_owned();
    }
    let control = beyond::variable(pid, "TLLMPROF_CONTROL");
    match control.as_deref().map(OsStr::as_bytes) {
        None => {
            "it does not listen: it was started without TLLMPROF_CONTROL=1, which tllmprof run sets"
                .to_owned()
        }
        Some(b"0" | b"") => "it does not listen: it was started with TLLMPROF_CONTROL=0".to_owned(),
        Some([b'/', rest @ ..]) => format!(
            "it listens in /{}, if it has used CUDA: set TLLMPROF_CONTROL to that folder here, too",
            String::from_utf8_lossy(rest)
        ),
        Some(_) => "it does not listen: it has not used CUDA, or its log says why".to_owned(),
    }
}

/// Returns true if the library was attached to the running process, and not preloaded when the process started.
pub(crate) fn was_attached(pid: u64) -> bool {
    let preloaded = beyond::variable(pid, "LD_PRELOAD").unwrap_or_default();
    beyond::has_library(pid) && !has(preloaded.as_bytes(), b"tllmprof")
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|one| one == part)
}
