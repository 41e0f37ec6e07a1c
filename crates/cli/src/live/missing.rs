//! Why a process that was named does not listen.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::sockets;

/// In words, for a message that begins with the number.
pub fn why(pid: u64) -> String {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let Ok(status) = fs::metadata(&process) else {
        return "there is no such process here".to_owned();
    };
    let about = fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = |name: &str| {
        about
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map_or("", str::trim)
    };
    if let Ok(group) = line("Tgid:").parse::<u64>()
        && group != pid
    {
        return format!("it is a thread of process {group} (wanted: that number)");
    }
    let user = rustix::process::geteuid().as_raw();
    if user != 0 && status.uid() != user {
        return format!(
            "it is a process of user {}; only that user and root can capture it",
            status.uid()
        );
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let contains = |needle: &[u8]| maps.windows(needle.len()).any(|part| part == needle);
    if !contains(b"libtllmprof") {
        return "it runs without the library: tllmprof attach loads it; or start it with tllmprof run, or preload the \
                library with TLLMPROF_CONTROL=1"
            .to_owned();
    }
    if line("State:").starts_with(['T', 't']) {
        return "it is stopped, and cannot answer (SIGCONT lets it go on)".to_owned();
    }
    if sockets::of(pid).is_some() {
        return format!("the library is detached: tllmprof attach {pid} attaches it again");
    }
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    let control = environment
        .split(|byte| *byte == 0)
        .find_map(|one| one.strip_prefix(b"TLLMPROF_CONTROL="));
    match control {
        None if !is_preloaded(&environment) => {
            "the library is attached, and listens from the first CUDA call on that it sees: there was none yet".to_owned()
        }
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

/// Whether a process was started with the library, by its environment.
fn is_preloaded(environment: &[u8]) -> bool {
    let mut variables = environment.split(|byte| *byte == 0);
    let preload = variables.find_map(|one| one.strip_prefix(b"LD_PRELOAD="));
    preload.is_some_and(|preload| String::from_utf8_lossy(preload).contains("tllmprof"))
}
