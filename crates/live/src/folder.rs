//! Chooses the folder for the control socket: one that only the user can write to, or the one that
//! `TLLMPROF_CONTROL` names.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tllmprof_config::Control;
use tllmprof_control::place;

use tllmprof_platform::log;

use crate::surroundings::Surroundings;

/// The reason why a folder cannot be used for the control socket.
#[derive(Debug)]
pub(crate) enum FolderRefusal {
    /// The folder cannot be created, or its attributes cannot be read.
    Failed(PathBuf, io::Error),
    /// The folder is unsuitable, for the reason in the text.
    Unfit(PathBuf, String),
}

impl fmt::Display for FolderRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Unfit(path, why) => write!(
                f,
                "{} {why} (TLLMPROF_CONTROL=FOLDER names another, 0 needs none)",
                path.display()
            ),
        }
    }
}

/// Returns the path for this process's control socket. Creates the socket's folder if it does not exist.
///
/// # Errors
/// Returns the reason why no folder can be used.
pub(crate) fn socket(
    surroundings: &Surroundings,
    pid: u32,
    user: u32,
) -> Result<PathBuf, FolderRefusal> {
    let Surroundings {
        settings,
        runtime,
        host,
    } = surroundings;
    if let Control::Folder(folder) = &settings.control {
        prepare(folder, user, true)?;
        return Ok(folder.join(place::shared_name(host, namespace(), pid)));
    }
    let is_users = |path: &PathBuf| {
        let status = fs::symlink_metadata(path);
        path.is_absolute() && status.is_ok_and(|status| status.is_dir() && status.uid() == user)
    };
    let is_short =
        |folder: &PathBuf| folder.join(place::name(pid)).as_os_str().len() <= place::LONGEST;
    let below = runtime
        .clone()
        .filter(is_users)
        .map(|runtime| place::below(&runtime))
        .filter(is_short);
    let folder = match below {
        // If the user's runtime folder is not writable (as in a sandbox), the folder in `/tmp` is used instead.
        Some(folder) if prepare(&folder, user, false).is_ok() => folder,
        _ => {
            let folder = place::of_user(user);
            prepare(&folder, user, false)?;
            folder
        }
    };
    Ok(folder.join(place::name(pid)))
}

/// Creates the folder if it does not exist, and checks it. It must not belong to another user, who could rename files
/// in it and so replace a socket. For the same reason, other users must not be able to write to it.
///
/// `is_named` is true if the user has chosen the folder. Such a folder may also belong to root, like the volume of a
/// Kubernetes pod, and may be writable by other users.
fn prepare(folder: &Path, user: u32, is_named: bool) -> Result<(), FolderRefusal> {
    let failed = |error| FolderRefusal::Failed(folder.to_owned(), error);
    let unfit = |why: String| Err(FolderRefusal::Unfit(folder.to_owned(), why));
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        // The folder is new. This is logged, because the user may have mistyped the name of an
        // existing folder.
        Ok(()) if is_named => log::once!(
            Info,
            "TLLMPROF_CONTROL={}: there was no such folder, it was made",
            folder.display()
        ),
        _ => {}
    }
    let status = fs::symlink_metadata(folder).map_err(failed)?;
    let owner = status.uid();
    if status.is_symlink() {
        return unfit("is a link".to_owned());
    }
    if !status.is_dir() {
        return unfit("is no folder".to_owned());
    }
    if owner != user && !(is_named && owner == 0) {
        return unfit(format!(
            "belongs to user {owner}, and this process to user {user}"
        ));
    }
    if !is_named && status.mode() & 0o022 != 0 {
        return unfit("can be written by others".to_owned());
    }
    Ok(())
}

/// Returns the id of this process's PID namespace.
fn namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    place::namespace(&link).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tllmprof_config::Settings;

    fn surroundings(control: &str, runtime: Option<&Path>) -> Surroundings {
        let settings =
            Settings::from_env(|name| (name == "TLLMPROF_CONTROL").then(|| control.into()));
        Surroundings {
            settings: Box::leak(Box::new(settings.unwrap())),
            runtime: runtime.map(Path::to_owned),
            host: "host".into(),
        }
    }

    fn user() -> u32 {
        fs::metadata("/proc/self").unwrap().uid()
    }

    #[test]
    fn the_socket_lies_in_the_users_folder_or_in_the_named_one() {
        let scratch = tempfile::tempdir().unwrap();
        let here = scratch.path();
        let own = socket(&surroundings("1", Some(here)), 7, user()).unwrap();
        assert_eq!(own, here.join("tllmprof/7.sock"));
        let mode = fs::metadata(here.join("tllmprof")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        let named = here.join("named");
        let control = named.to_str().unwrap();
        let shared = socket(&surroundings(control, None), 7, user()).unwrap();
        assert!(place::is_name(shared.file_name().unwrap()) && shared.starts_with(&named));
        assert!(shared.to_str().unwrap().ends_with("-7.sock"), "{shared:?}");
        assert!(namespace() > 0);
        // The path of a socket in this folder is longer than the kernel's limit, so the folder is
        // not used.
        let deep = here.join("d".repeat(place::LONGEST - 20));
        fs::create_dir(&deep).unwrap();
        let short = socket(&surroundings("1", Some(&deep)), 7, user()).unwrap();
        assert_eq!(short, place::of_user(user()).join("7.sock"));
        // The folder `here` belongs to the user of this test and not to the user `nobody`, so it is not used.
        let nobody = 4_000_000_000;
        let refused = socket(&surroundings("1", Some(here)), 7, nobody).unwrap_err();
        let folder = place::of_user(nobody);
        assert!(
            refused.to_string().starts_with(folder.to_str().unwrap()),
            "{refused}"
        );
        fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_folder_that_is_anothers_or_a_link_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let (folder, link) = (scratch.path().join("folder"), scratch.path().join("link"));
        prepare(&folder, user(), false).unwrap();
        let why = |path: &Path, user| prepare(path, user, false).unwrap_err().to_string();
        assert!(why(&folder, user() + 1).contains("belongs to user"));
        symlink(&folder, &link).unwrap();
        assert!(why(&link, user()).contains("is a link"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(why(&folder, user()).contains("can be written by others"));
        assert!(prepare(&folder, user(), true).is_ok());
        assert!(why(Path::new("/dev/null"), 0).contains("is no folder"));
        assert!(why(Path::new("/nowhere/at/all"), user()).contains("No such file"));
    }
}
