//! Finds the control sockets of processes that have loaded the tllmprof library, and the processes that listen on
//! these sockets.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tllmprof_config::Control;
use tllmprof_control::{Phase, Status, place};

use super::connection::{self, Connection, Reached, Who};
use crate::beyond;
use crate::failure::worded;
use crate::output;

/// Delay before a second attempt to connect to a control socket.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum time that a process in another container is assumed to need to create its control socket.
const MAKING: Duration = Duration::from_secs(60);

/// A process that listens on a control socket, and its status at the time when it was found.
pub(crate) struct ListeningProcess {
    pub socket: PathBuf,
    pub connection: Connection,
    pub status: Status,
}

/// A folder that contains control sockets, and the user who owns the folder.
struct Folder {
    path: PathBuf,
    owner: u32,
    /// `None` if the folder is in this command's container. `Some(true)` if it is in a container with another user
    /// namespace, and `Some(false)` if it is in any other container.
    beyond: Option<bool>,
}

/// Returns all processes that this user can connect to and capture, sorted by run, host, rank and process id. Removes
/// socket files of processes that have ended.
pub(super) fn listening() -> Vec<ListeningProcess> {
    listening_but(&[])
}

/// Same as [`listening`], without the processes whose sockets are in `known`.
pub(super) fn listening_but(known: &[&Path]) -> Vec<ListeningProcess> {
    can_be_captured(all_but(known, None, true))
}

/// Same as [`listening`], for commands whose user named the processes. Processes that do not answer are not logged,
/// because these commands report them themselves.
pub(super) fn listening_to_named() -> Vec<ListeningProcess> {
    can_be_captured(all_but(&[], None, false))
}

fn can_be_captured(mut processes: Vec<ListeningProcess>) -> Vec<ListeningProcess> {
    processes.retain(|process| process.status.phase != Phase::Detached);
    processes
}

/// Returns the process with this id on this machine, even if it cannot be captured.
pub(super) fn find(pid: u64) -> Option<ListeningProcess> {
    let mut all = keep_local(all_but(&[], Some(pid), false)).into_iter();
    all.find(|process| process.status.pid == pid)
}

/// Returns all processes on this machine that listen on a control socket, including those that cannot be captured.
pub(super) fn all_here() -> Vec<ListeningProcess> {
    keep_local(all_but(&[], None, true))
}

fn keep_local(mut all: Vec<ListeningProcess>) -> Vec<ListeningProcess> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    all.retain(|process| {
        process.status.host == host || process.connection.is_seen_as(process.status.pid)
    });
    all
}

/// Returns all processes that listen on a control socket, except those whose sockets are in `known`. `only` restricts
/// the search in other containers to one process. If `says` is true, processes that do not answer are logged.
fn all_but(known: &[&Path], only: Option<u64>, says: bool) -> Vec<ListeningProcess> {
    let user = rustix::process::geteuid().as_raw();
    let mut sockets = Vec::new();
    for folder in folders(user, only) {
        // Socket files are removed only in folders of this container that this user owns. In another user's folder,
        // that user could use symbolic links to make root remove files elsewhere.
        let is_ours = folder.owner == user && folder.beyond.is_none();
        for entry in entries(&folder.path) {
            let path = entry.path();
            if place::is_begun_name(&entry.file_name()) && is_ours && is_left(&entry) {
                let _ = fs::remove_file(&path);
            }
            if place::is_name(&entry.file_name()) && !known.contains(&path.as_path()) {
                let who = Who {
                    allowed: [folder.owner, user, 0],
                    connect_as: (folder.beyond == Some(true) && user == 0).then_some(folder.owner),
                };
                sockets.push((path, who, is_ours));
            }
        }
    }
    let look = |(socket, who, is_ours): &(PathBuf, Who, bool)| process(socket, who, *is_ours, says);
    let mut processes: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = sockets
            .iter()
            .map(|socket| scope.spawn(move || look(socket)))
            .collect();
        all.into_iter()
            .filter_map(|thread| thread.join().ok().flatten())
            .collect()
    });
    processes.sort_by(|a, b| order(&a.status).cmp(&order(&b.status)));
    processes
}

fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// Removes socket files that processes of this user on this machine left when they ended. Running processes are not
/// contacted.
pub(crate) fn sweep() {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |path: &PathBuf| {
        let status = fs::symlink_metadata(path);
        status.is_ok_and(|status| status.is_dir() && status.uid() == user)
    };
    for folder in own_places(user).into_iter().filter(is_ours) {
        for entry in entries(&folder) {
            let is_left = match place::is_begun_name(&entry.file_name()) {
                true => is_left(&entry),
                false => {
                    process_here(&entry).is_some_and(|pid| !beyond::has_library(pid.into()))
                        && connection::is_nobodys(&entry.path())
                }
            };
            if is_left {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Returns the process that created a file in a folder of sockets, if it is a process of this container on this
/// machine. Returns `None` otherwise.
fn process_here(entry: &fs::DirEntry) -> Option<u32> {
    let host = rustix::system::uname();
    let host = OsStr::from_bytes(host.nodename().to_bytes());
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    place::process_here(&entry.file_name(), host, place::namespace(&namespace)?)
}

/// Returns true if the process that began to create a socket has ended. For a process of another container, this is
/// assumed if the file is older than [`MAKING`], because creating a socket takes less time.
fn is_left(entry: &fs::DirEntry) -> bool {
    match process_here(entry) {
        Some(pid) => !beyond::has_library(pid.into()),
        None => {
            let modified = entry.metadata().and_then(|status| status.modified());
            let age = modified.map(|modified| modified.elapsed().unwrap_or_default());
            age.is_ok_and(|age| age > MAKING)
        }
    }
}

/// Returns the key by which processes are sorted: run, host, rank and process id.
pub(crate) fn order(status: &Status) -> (&Option<String>, &str, Option<u64>, u64) {
    (&status.run, &status.host, status.rank, status.pid)
}

/// Connects to a control socket and asks the process for its status. Returns `None` if no process listens on the
/// socket.
fn reach(socket: &Path, who: &Who) -> anyhow::Result<Option<(Connection, Status)>> {
    match Connection::open(socket, who)? {
        Reached::Listens(mut connection) => {
            let status = connection.status()?;
            Ok(Some((connection, status)))
        }
        Reached::Nobody => Ok(None),
    }
}

/// Returns the process that listens on a control socket. If no process listens and `is_ours` is true, removes the
/// socket file. If the process cannot be reached and `says` is true, logs the error.
fn process(socket: &Path, who: &Who, is_ours: bool, says: bool) -> Option<ListeningProcess> {
    let reached = reach(socket, who).or_else(|_| {
        // The program may have closed the library's listening socket. After a failed attempt to connect, the library
        // opens a new socket.
        thread::sleep(AGAIN);
        reach(socket, who)
    });
    match reached {
        Ok(Some((connection, status))) => Some(ListeningProcess {
            socket: socket.to_owned(),
            connection,
            status,
        }),
        Ok(None) => {
            if is_ours {
                let _ = fs::remove_file(socket);
            }
            None
        }
        Err(_) if !says => None,
        Err(error) => {
            let (socket, error) = (socket.display(), error.to_string());
            output::say(format_args!(
                "{socket}: it does not answer: {}",
                worded(&error)
            ));
            None
        }
    }
}

/// Returns the folder of control sockets that the variable `TLLMPROF_CONTROL` names. `None` if it names none.
fn named() -> Option<PathBuf> {
    let value = env::var_os("TLLMPROF_CONTROL")?;
    match Control::parse(&value) {
        Ok(Control::Folder(folder)) => Some(folder),
        _ => None,
    }
}

/// Returns folders of this container that may contain sockets for this user: the folder that `TLLMPROF_CONTROL` names,
/// and the default folders. The defaults matter because a user who logs in, or uses `kubectl exec`, does not have the
/// environment variables of the processes that listen on the sockets.
fn own_places(user: u32) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    paths.extend(named());
    paths.extend(env::var_os("XDG_RUNTIME_DIR").map(|runtime| place::below(Path::new(&runtime))));
    if user == 0 {
        paths.extend(entries(Path::new("/run/user")).map(|entry| place::below(&entry.path())));
        let ours = entries(Path::new("/tmp")).filter(|entry| place::is_of_user(&entry.file_name()));
        paths.extend(ours.map(|entry| entry.path()));
    } else {
        paths.insert(place::below(Path::new(&format!("/run/user/{user}"))));
        paths.insert(place::of_user(user));
    }
    paths
}

/// Returns the folders that may contain control sockets: those of [`own_places`], and those in other containers.
/// Folders whose owner cannot be trusted are left out.
fn folders(user: u32, only: Option<u64>) -> Vec<Folder> {
    let mut folders: Vec<_> = own_places(user)
        .into_iter()
        .filter_map(|path| folder(path, user))
        .collect();
    for beyond::Folder {
        path,
        is_other_users,
    } in beyond::folders(named().as_deref(), only)
    {
        let Ok(status) = fs::symlink_metadata(&path) else {
            continue;
        };
        let owner = status.uid();
        let is_known = folders.iter().any(|folder| {
            fs::symlink_metadata(&folder.path)
                .is_ok_and(|here| (here.dev(), here.ino()) == (status.dev(), status.ino()))
        });
        if !is_known && (user == 0 || owner == user) {
            folders.push(Folder {
                path,
                owner,
                beyond: Some(is_other_users),
            });
        }
    }
    folders
}

/// Returns the folder of sockets at `path`, if it exists and its owner can be trusted. Returns `None` otherwise. Logs
/// the reason if the path exists but cannot be used.
fn folder(path: PathBuf, user: u32) -> Option<Folder> {
    let status = fs::symlink_metadata(&path).ok()?;
    let owner = status.uid();
    let why = if !status.is_dir() {
        "it is not a folder".to_owned()
    } else if user != 0 && owner != user && owner != 0 {
        format!("it belongs to user {owner}")
    } else {
        return Some(Folder {
            path,
            owner,
            beyond: None,
        });
    };
    output::say(format_args!("{}: {why}; it is left alone", path.display()));
    None
}
