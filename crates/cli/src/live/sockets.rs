//! The sockets of listening processes, and the processes that own them.

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

use super::beyond;
use super::connection::{self, Connection, Reached, Who};
use crate::failure::worded;
use crate::output;

/// Delay before a socket is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Time within which a process in another container creates its socket.
const MAKING: Duration = Duration::from_secs(60);

/// A listening process, and its status when it was asked.
pub struct Process {
    pub socket: PathBuf,
    pub connection: Connection,
    pub status: Status,
}

/// A folder of sockets, and its owner.
struct Folder {
    path: PathBuf,
    owner: u32,
    /// `Some` for a folder in another container; `true` if that has another user namespace.
    beyond: Option<bool>,
}

/// All processes that listen to this user and can be captured, ordered by run, rank and number. Files of dead
/// processes are removed.
pub fn listening() -> Vec<Process> {
    listening_but(&[])
}

/// Same as [`listening`], without the processes whose sockets are known already.
pub fn listening_but(known: &[&Path]) -> Vec<Process> {
    can_be_captured(all_but(known, None, true))
}

/// Same as [`listening`], for a command that names its processes and reports itself why one of them does not answer.
pub fn listening_to_named() -> Vec<Process> {
    can_be_captured(all_but(&[], None, false))
}

fn can_be_captured(mut processes: Vec<Process>) -> Vec<Process> {
    processes.retain(|process| process.status.phase != Phase::Detached);
    processes
}

/// The process with this number on this machine, whether it can be captured or not.
pub fn find(pid: u64) -> Option<Process> {
    let mut all = keep_local(all_but(&[], Some(pid), false)).into_iter();
    all.find(|process| process.status.pid == pid)
}

/// All processes on this machine, whether they can be captured or not.
pub fn all_here() -> Vec<Process> {
    keep_local(all_but(&[], None, true))
}

fn keep_local(mut all: Vec<Process>) -> Vec<Process> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    all.retain(|process| {
        process.status.host == host || process.connection.is_seen_as(process.status.pid)
    });
    all
}

/// All processes except those with known sockets. `only`: the process that is meant, for searching other containers.
/// `says`: log the processes that do not answer.
fn all_but(known: &[&Path], only: Option<u64>, says: bool) -> Vec<Process> {
    let user = rustix::process::geteuid().as_raw();
    let mut sockets = Vec::new();
    for folder in folders(user, only) {
        // Root might otherwise remove a file that another user put in the folder's place.
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

/// Removes socket files of this user's processes on this machine that have ended. Running processes are not contacted.
pub fn sweep() {
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

/// The process that created a file in a folder of sockets, if it is in this container.
fn process_here(entry: &fs::DirEntry) -> Option<u32> {
    let host = rustix::system::uname();
    let host = OsStr::from_bytes(host.nodename().to_bytes());
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    place::process_here(&entry.file_name(), host, place::namespace(&namespace)?)
}

/// Returns whether the process that began to create a socket is gone. For a process of another container this is
/// unknown, but creating one takes less than a minute.
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

/// The sort key of processes.
pub fn order(status: &Status) -> (&Option<String>, &str, Option<u64>, u64) {
    (&status.run, &status.host, status.rank, status.pid)
}

/// Connects to the process of a socket, if there is one.
fn reach(socket: &Path, who: &Who) -> anyhow::Result<Option<(Connection, Status)>> {
    match Connection::open(socket, who)? {
        Reached::Listens(mut connection) => {
            let status = connection.status()?;
            Ok(Some((connection, status)))
        }
        Reached::Nobody => Ok(None),
    }
}

/// The process of a socket, if there is one; otherwise the socket file is removed if it belongs to this user.
fn process(socket: &Path, who: &Who, is_ours: bool, says: bool) -> Option<Process> {
    let reached = reach(socket, who).or_else(|_| {
        // The host may have closed the listening socket; the library opens a new one on a connection attempt.
        thread::sleep(AGAIN);
        reach(socket, who)
    });
    match reached {
        Ok(Some((connection, status))) => Some(Process {
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

/// The folder that the variable names.
fn named() -> Option<PathBuf> {
    let value = env::var_os("TLLMPROF_CONTROL")?;
    match Control::parse(&value) {
        Ok(Control::Folder(folder)) => Some(folder),
        _ => None,
    }
}

/// Folders in which sockets of this container may be that this user can use: the folder that the variable names, and
/// the users' own folders. A user who logs in, or comes by `kubectl exec`, does not have the server's variables.
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

/// Folders of sockets that are safe to use: those of [`own_places`], and those in other containers.
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

/// The folder, if it exists and belongs to no other user.
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
