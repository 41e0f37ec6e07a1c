//! Adapts the settings with which the library is attached to a process in a container, where paths differ and many
//! folders are read-only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::beyond;
use crate::failure::usage;

/// Adapts the variables for the library to a process in another container. For any other process nothing changes.
/// `trace` is the path of the record, if the user named one.
///
/// # Errors
/// The user's path of the record is not absolute, or no folder of the container can contain a socket.
pub(crate) fn adapt(pid: u64, trace: Option<&Path>, variables: &mut Vec<String>) -> Result<()> {
    if !beyond::has_other_files(pid) {
        return Ok(());
    }
    if let Some(trace) = trace.filter(|trace| !trace.is_absolute()) {
        return Err(usage(format_args!(
            "{pid}: --trace {}: the process is in another container (wanted: an absolute path there)",
            trace.display()
        )));
    }
    let user = fs::metadata(format!("/proc/{pid}")).map_or(0, |status| status.uid());
    let is_writable = |folder: &Path| {
        let mount = statvfs(folder);
        mount.is_ok_and(|mount| !mount.f_flag.contains(StatVfsMountFlags::RDONLY))
    };
    let has_writable = |inside: &Path| is_writable(&beyond::path_of(pid, inside));
    let runtime = beyond::variable(pid, "XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|runtime| runtime.is_absolute() && has_writable(runtime));
    let folder = ["/tmp", "/dev/shm"].map(Path::new);
    let folder = folder.into_iter().find(|folder| has_writable(folder));
    let default = "TLLMPROF_CONTROL=1";
    if let Some(control) = variables.iter_mut().find(|variable| *variable == default)
        && runtime.is_none()
    {
        match folder {
            Some(folder) if folder == Path::new("/tmp") => {}
            Some(folder) => {
                *control = format!("TLLMPROF_CONTROL={}/tllmprof-{user}", folder.display());
            }
            None => bail!(
                "{pid}: no place for a socket in its container: /tmp and /dev/shm are read-only there (wanted: \
                 TLLMPROF_CONTROL=/FOLDER, which can be written there)"
            ),
        }
    }
    let has_trace = variables
        .iter()
        .any(|variable| variable.starts_with("TLLMPROF_TRACE="));
    if !has_trace && !is_writable(Path::new(&format!("/proc/{pid}/cwd"))) {
        let folder = folder.map(Path::to_owned).or(runtime);
        if let Some(folder) = folder {
            let folder = folder.display();
            variables.push(format!(
                "TLLMPROF_TRACE={folder}/tllmprof-%h-%r-%p.tllmprof"
            ));
        }
    }
    Ok(())
}
