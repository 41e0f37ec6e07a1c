//! Disks that are too small, or not to be written to.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{Output, run};
use crate::counts::Counts;

const PATIENCE: Duration = Duration::from_secs(90);

/// Runs the program with its records on a file system of its own that `options` describe; what was
/// written is copied back. `None` where file systems cannot be mounted.
fn mounted(counts: &Counts, options: &str, arguments: &[&str]) -> Option<Output> {
    let mut can = Command::new("unshare");
    can.args(["--mount", "true"]);
    if !run(&mut can, PATIENCE).status.success() {
        return None;
    }
    let disk = counts.folder().join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let command = counts.command("0-", arguments);
    let script = format!(
        "LD_PRELOAD= mount -t tmpfs -o {options} tmpfs disk || exit 99; \"$@\"; status=$?; \
         LD_PRELOAD= cp disk/*.tllmprof . 2>/dev/null; exit $status"
    );
    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "/bin/sh", "-c", &script, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(counts.folder());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("TLLMPROF_TRACE", "disk/%p.tllmprof");
    let output = run(&mut shell, PATIENCE);
    std::fs::remove_dir(&disk).unwrap();
    Some(output)
}

/// With records on a disk of `size`.
pub fn on_a_small_one(counts: &Counts, size: &str, arguments: &[&str]) -> Option<Output> {
    mounted(counts, &format!("size={size}"), arguments)
}

/// With records on a disk that is mounted read-only.
pub fn on_a_read_only_one(counts: &Counts, arguments: &[&str]) -> Option<Output> {
    mounted(counts, "ro", arguments)
}

/// Where no file may become larger than `bytes`.
pub fn with_small_files(counts: &Counts, bytes: u64, arguments: &[&str]) -> Output {
    let mut command = counts.command("0-", arguments);
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: setrlimit may be called between fork and exec; it reads the copy of the limit.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    run(&mut command, PATIENCE)
}
