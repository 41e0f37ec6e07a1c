//! Processes in other containers: their ids in their own PID namespace, and the paths with which this process can open
//! their files.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::process_status::read_variables;
use tllmprof_control::place;

/// A folder in another container that may contain control sockets, over which processes receive requests of
/// `tllmprof`.
pub(crate) struct Folder {
    pub path: PathBuf,
    /// True if the container's user namespace differs from that of this command. Then the connection to a socket in
    /// the folder must be made as a user that exists in the container's namespace.
    pub is_other_users: bool,
}

fn proc_file(pid: u64, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// Returns the id that a process has in its own PID namespace. `pid` is its id in the namespace of this command.
/// Returns `None` if the process's status cannot be read.
pub(crate) fn own_number(pid: u64) -> Option<u64> {
    let status = fs::read_to_string(proc_file(pid, "status")).ok()?;
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Returns true if a path leads to other files for process `pid` than for this process, for example because process
/// `pid` runs in a container. Returns false also if this process is not permitted to find this out.
pub(crate) fn has_other_files(pid: u64) -> bool {
    let root = |process: &str| {
        let status = fs::metadata(format!("/proc/{process}/root/")).ok()?;
        let namespace = fs::read_link(format!("/proc/{process}/ns/mnt")).ok()?;
        Some((status.dev(), status.ino(), namespace))
    };
    match (root("self"), root(&pid.to_string())) {
        (Some(ours), Some(theirs)) => ours != theirs,
        _ => false,
    }
}

fn has_other_users(pid: u64) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    namespace(&pid.to_string()) != namespace("self")
}

/// Returns the path with which this process can open the file that the other process calls `path`. Symbolic links are
/// resolved as the other process resolves them, so they do not lead out of that process's root.
pub(crate) fn path_of(pid: u64, path: &Path) -> PathBuf {
    match has_other_files(pid) {
        true => below(&proc_file(pid, "root"), path),
        false => path.to_owned(),
    }
}

/// Returns a path below `root`, with all symbolic links resolved inside that root.
fn below(root: &Path, path: &Path) -> PathBuf {
    const MOST_LINKS: u32 = 40;
    let parts = |path: &Path| -> Vec<OsString> {
        let all = path.components().rev();
        all.filter_map(|part| match part {
            Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
            _ => None,
        })
        .collect()
    };
    // The parts of the path that still have to be resolved, the last part first.
    let mut rest = parts(path);
    let mut inside = PathBuf::new();
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            inside.pop();
            continue;
        }
        let next = inside.join(&part);
        match fs::read_link(root.join(&next)) {
            Ok(target) if links < MOST_LINKS => {
                links += 1;
                if target.is_absolute() {
                    inside = PathBuf::new();
                }
                rest.extend(parts(&target));
            }
            _ => inside = next,
        }
    }
    root.join(inside)
}

/// Finds folders in other containers that may contain control sockets. Only containers with a process that has loaded
/// the tllmprof library are searched. `control` is the folder that the user named, as a path inside the container. If
/// `only` is given, only the container of the process with this process id is searched.
pub(crate) fn folders(control: Option<&Path>, only: Option<u64>) -> Vec<Folder> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let own = u64::from(std::process::id());
    let all: Vec<_> = match only {
        Some(pid) => vec![pid],
        None => numbers().filter(|pid| *pid != own).collect(),
    };
    for pid in all {
        if !has_other_files(pid) || !has_library(pid) {
            continue;
        }
        let is_other_users = has_other_users(pid);
        for inside in places(pid, control) {
            let path = path_of(pid, &inside);
            let Ok(status) = fs::symlink_metadata(&path) else {
                continue;
            };
            if status.is_dir() && known.insert((status.dev(), status.ino())) {
                found.push(Folder {
                    path,
                    is_other_users,
                });
            }
        }
    }
    found
}

/// Returns the ids of all processes on this machine that `/proc` shows.
pub(crate) fn numbers() -> impl Iterator<Item = u64> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(crate) fn has_library(pid: u64) -> bool {
    let maps = fs::read(proc_file(pid, "maps")).unwrap_or_default();
    let name = b"libtllmprof.so";
    maps.windows(name.len()).any(|part| part == name)
}

/// Returns the value of an environment variable of another process, as it was when that process was started.
pub(crate) fn variable(pid: u64, name: &str) -> Option<OsString> {
    let environment = read_variables(pid).ok()?;
    let mut all = environment.split(|byte| *byte == 0);
    all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        .map(|value| OsStr::from_bytes(value).to_owned())
}

/// Returns the folders in which a process may have its control socket, as paths that are valid inside the process.
fn places(pid: u64, control: Option<&Path>) -> Vec<PathBuf> {
    let mut all: Vec<_> = control.map(Path::to_owned).into_iter().collect();
    let named = variable(pid, "TLLMPROF_CONTROL").map(PathBuf::from);
    all.extend(named.filter(|named| named.is_absolute()));
    let runtime = variable(pid, "XDG_RUNTIME_DIR").map(PathBuf::from);
    all.extend(runtime.map(|runtime| place::below(&runtime)));
    let list = |folder: &'static str| {
        let entries = fs::read_dir(path_of(pid, Path::new(folder)));
        let names = entries.into_iter().flatten().flatten();
        names.map(move |entry| Path::new(folder).join(entry.file_name()))
    };
    all.extend(list("/run/user").map(|runtime| place::below(&runtime)));
    for folder in ["/tmp", "/dev/shm"] {
        all.extend(list(folder).filter(|path| path.file_name().is_some_and(place::is_of_user)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_a_root_do_not_lead_out_of_it() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        fs::create_dir_all(root.join("run/a")).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        symlink("../../../run/a", root.join("var/up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let at = |path: &str| below(root, Path::new(path));
        assert_eq!(at("/var/run/a/b"), root.join("run/a/b"));
        assert_eq!(at("/var/up"), root.join("run/a"));
        assert_eq!(at("/../../etc/passwd"), root.join("etc/passwd"));
        assert_eq!(at("/loop"), root.join("loop"));
    }

    #[test]
    fn a_process_here_has_the_same_files_and_number() {
        let here = u64::from(std::process::id());
        assert!(!has_other_files(here) && !has_other_users(here));
        assert!(own_number(here).is_some());
        assert_eq!(path_of(here, Path::new("/a/../b")), Path::new("/a/../b"));
    }
}
