//! The sockets that there are, and the processes behind them.

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

/// When a socket is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a process in another container may take to make its socket.
const MAKING: Duration = Duration::from_secs(60);

/// A process that listens, and what it was at when it was asked.
pub struct Process {
    pub socket: PathBuf,
    pub connection: Connection,
    pub status: Status,
}

/// A folder of sockets, and whose it is.
struct Folder {
    path: PathBuf,
    owner: u32,
    /// In another container, and of another user namespace.
    beyond: Option<bool>,
}

/// All that listen to this user and can be captured, in the order of their runs, ranks and numbers. Files of dead processes
/// are removed.
pub fn listening() -> Vec<Process> {
    listening_but(&[])
}

/// As [`listening`], without those behind sockets that are known.
pub fn listening_but(known: &[&Path]) -> Vec<Process> {
    can_be_captured(all_but(known, None, true))
}

/// As [`listening`], for a command that names its processes: why one of those does not answer is said of it.
pub fn listening_to_named() -> Vec<Process> {
    can_be_captured(all_but(&[], None, false))
}

fn can_be_captured(mut processes: Vec<Process>) -> Vec<Process> {
    processes.retain(|process| process.status.phase != Phase::Detached);
    processes
}

/// The process of this number, on this machine, whether it can be captured or not.
pub fn of(pid: u64) -> Option<Process> {
    let mut all = here(all_but(&[], Some(pid), false)).into_iter();
    all.find(|process| process.status.pid == pid)
}

/// All processes on this machine, whether they can be captured or not.
pub fn all_here() -> Vec<Process> {
    here(all_but(&[], None, true))
}

fn here(mut all: Vec<Process>) -> Vec<Process> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    all.retain(|process| {
        process.status.host == host || process.connection.is_seen_as(process.status.pid)
    });
    all
}

/// `only`: the process that is meant, where that is in another container. `says`: which do not answer.
fn all_but(known: &[&Path], only: Option<u64>, says: bool) -> Vec<Process> {
    let user = rustix::process::geteuid().as_raw();
    let mut sockets = Vec::new();
    for folder in folders(user, only) {
        // Root might remove what somebody has put in the folder's place.
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

/// Removes the files of sockets that processes of this user have left here and that are gone. No process that runs is
/// asked.
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

/// The process that has made a file in a folder of sockets, if it is one of this container.
fn process_here(entry: &fs::DirEntry) -> Option<u32> {
    let host = rustix::system::uname();
    let host = OsStr::from_bytes(host.nodename().to_bytes());
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    place::process_here(&entry.file_name(), host, place::namespace(&namespace)?)
}

/// Whether the process that has begun to make a socket is gone. Of one of another container that is not known: it takes
/// no minute.
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

/// In which order processes are listed.
pub fn order(status: &Status) -> (&Option<String>, &str, Option<u64>, u64) {
    (&status.run, &status.host, status.rank, status.pid)
}

/// Reaches the process behind a socket, if one is there.
fn reach(socket: &Path, who: &Who) -> anyhow::Result<Option<(Connection, Status)>> {
    match Connection::to(socket, who)? {
        Reached::Listens(mut connection) => {
            let status = connection.status()?;
            Ok(Some((connection, status)))
        }
        Reached::Nobody => Ok(None),
    }
}

/// The process behind a socket, if one is there; else the socket is removed if it is this user's.
fn process(socket: &Path, who: &Who, is_ours: bool, says: bool) -> Option<Process> {
    let reached = reach(socket, who).or_else(|_| {
        // One that the host has closed is made anew when somebody knocks.
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

/// Where the sockets of this container may lie that this user can use: in the folder that the variable names, and in the
/// users' own. Who logs in, or comes by `kubectl exec`, has not the variables that the server has.
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

/// As [`own_places`], those that are fit, and those of other containers.
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

/// The folder, if it is there and nobody else's.
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
