//! Runs the program `counts.c` with its record on disks that are too small or not writable.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{Output, run};
use crate::counts::Counts;

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Mounts a file system at the folder `disk`, runs the program through the shell script `run_it` with its records on
/// that disk, and copies the records back. Returns `None` if this machine does not allow mounts.
fn mounted(
    counts: &Counts,
    windows: &str,
    mount: &str,
    run_it: &str,
    arguments: &[&str],
) -> Option<Output> {
    let mut can = Command::new("unshare");
    can.args(["--mount", "true"]);
    if !run(&mut can, TEST_TIMEOUT).status.success() {
        return None;
    }
    let disk = counts.folder().join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let command = counts.command(windows, arguments);
    let script = format!(
        "preload=$LD_PRELOAD; unset LD_PRELOAD; ({mount}) >&2 || exit 99; {run_it}; status=$?; \
         cp disk/*.tllmprof . 2>/dev/null; exit $status"
    );
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "/bin/sh", "-c", &script, "sh"]);
    behind(&mut shell, counts, &command);
    shell.env("TLLMPROF_TRACE", "disk/%p.tllmprof");
    let output = run(&mut shell, TEST_TIMEOUT);
    std::fs::remove_dir(&disk).unwrap();
    assert_ne!(output.status.code(), Some(99), "{}", output.err());
    Some(output)
}

/// Passes the program's command line, folder and variables to the shell.
fn behind(shell: &mut Command, counts: &Counts, command: &Command) {
    shell
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(counts.folder());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
}

const RUN: &str = "LD_PRELOAD=$preload \"$@\"";

/// Runs the program with its records on a disk of `size`.
pub(crate) fn on_a_small_one(counts: &Counts, size: &str, arguments: &[&str]) -> Option<Output> {
    let mount = format!("mount -t tmpfs -o size={size} tmpfs disk");
    mounted(counts, "0-", &mount, RUN, arguments)
}

/// Runs the program with its records on a disk that is mounted read-only.
pub(crate) fn on_a_read_only_one(counts: &Counts, arguments: &[&str]) -> Option<Output> {
    mounted(
        counts,
        "0-",
        "mount -t tmpfs -o ro tmpfs disk",
        RUN,
        arguments,
    )
}

/// A script that mounts a copy-on-write file system of 128 MiB. Btrfs is used because it has quotas in every kernel
/// that supports it.
const BTRFS: &str = "truncate -s 128M image && mkfs.btrfs -q -f image && mount -o loop image disk";

/// Returns the reason why btrfs cannot be mounted on this machine, or `None` if it can.
pub(crate) fn no_btrfs() -> Option<&'static str> {
    let has = |command: &str| {
        let mut which = Command::new("sh");
        which.args(["-c", &format!("command -v {command}")]);
        run(&mut which, TEST_TIMEOUT).status.success()
    };
    if !has("mkfs.btrfs") {
        return Some("no mkfs.btrfs (scripts/setup --tests)");
    }
    // SAFETY: geteuid has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return Some("file systems are mounted by root alone");
    }
    let mut can = Command::new("unshare");
    can.args([
        "--mount",
        "sh",
        "-c",
        "losetup -f && { grep -q btrfs /proc/filesystems || modprobe btrfs; }",
    ]);
    let can = run(&mut can, TEST_TIMEOUT);
    (!can.status.success()).then_some("no loop devices, or no btrfs in the kernel")
}

/// Runs the program with its records on a disk with a quota of `size`.
pub(crate) fn with_a_quota(counts: &Counts, size: &str, arguments: &[&str]) -> Option<Output> {
    let mount = format!("{BTRFS} && btrfs quota enable disk && btrfs qgroup limit {size} disk");
    let output = mounted(counts, "0-", &mount, RUN, arguments);
    let _ = std::fs::remove_file(counts.folder().join("image"));
    output
}

/// Runs the program with its records on a disk that `dd` fills up meanwhile. The program is killed at the end.
pub(crate) fn that_fills_up(counts: &Counts, windows: &str, arguments: &[&str]) -> Option<Output> {
    const FILL: &str = "LD_PRELOAD=$preload \"$@\" & sleep 0.5; sync; \
        for size in 64k 4k; do dd if=/dev/urandom of=disk/other-$size bs=$size 2>/dev/null; sync; done; \
        sleep 0.3; sync; sleep 0.2; kill -KILL $!; wait $!";
    let output = mounted(counts, windows, BTRFS, FILL, arguments);
    let _ = std::fs::remove_file(counts.folder().join("image"));
    output
}

/// Runs the program with its records in a folder that is not writable.
pub(crate) fn in_a_read_only_folder(counts: &Counts, arguments: &[&str]) -> Output {
    let command = counts.command("0-", arguments);
    let folder = counts.folder().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    // If this test runs as root, the program has to drop its capabilities, because they allow writes to any folder.
    // SAFETY: geteuid has no arguments and always succeeds.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut shell = Command::new("/bin/sh");
    let script = if is_root {
        "preload=$LD_PRELOAD; unset LD_PRELOAD; exec setpriv --bounding-set=-all --inh-caps=-all \
         env LD_PRELOAD=$preload \"$@\""
    } else {
        "exec \"$@\""
    };
    shell.args(["-c", script, "sh"]);
    behind(&mut shell, counts, &command);
    shell.env("TLLMPROF_TRACE", "folder/%p.tllmprof");
    let output = run(&mut shell, TEST_TIMEOUT);
    std::fs::remove_dir(&folder).unwrap();
    output
}

/// Runs the program with a limit of `bytes` on the size of files.
pub(crate) fn with_small_files(counts: &Counts, bytes: u64, arguments: &[&str]) -> Output {
    let mut command = counts.command("0-", arguments);
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: setrlimit may be called between fork and exec. It reads the closure's copy of the limit.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    run(&mut command, TEST_TIMEOUT)
}
