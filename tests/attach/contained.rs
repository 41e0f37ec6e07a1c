//! Checks `tllmprof attach` if the command runs outside a container and the program inside. The program has its own
//! root file system, process numbers and users.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::can_attach;
use crate::common::{
    Built, Output, build_once, built_command, command, copy_program, run, shim, skipped, standin,
};
use crate::host::{LINKED, Linkage, POINTERS, random, times};
use crate::place::{Place, Running, TEST_TIMEOUT, switches, wait_until};

/// The exit status of the program `contain` if the kernel refuses to create a namespace.
const REFUSED: i32 = 77;
/// The user ID, outside the container, of the user who is root in a user namespace made by `contain`.
const MAPPED: u32 = 100_000;

struct Contained {
    place: Place,
    running: Running,
    pid: u32,
}

fn contain() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(&BUILT, "attach/contain.c", &[])
}

/// Returns true if this test runs as root, which it needs to create containers, and if `tllmprof attach` supports this
/// machine.
fn can_contain() -> bool {
    // SAFETY: geteuid has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        skipped("a container is attached to from outside by root alone");
        return false;
    }
    can_attach()
}

/// Makes all files and folders of a tree readable for other users, even if this process's umask takes that permission
/// from new folders.
fn open_to_all(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => open_to_all(&entry.path()),
            false => fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755)).unwrap(),
        }
    }
}

/// Makes a root file system that contains only a program and the libraries that the program needs. If `is_other_user`
/// is true, its folder `tmp` belongs to the user `MAPPED`.
fn make_root(root: &Path, program: &Path, is_other_user: bool) {
    for folder in ["proc", "tmp", "dev/shm"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let copy = |file: &Path| {
        let to = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy_program(file, &to);
    };
    // The program may open the CUDA libraries by these names, so they are copied even if the program is not linked to
    // them.
    let gpu = ["libcuda.so.1", "libcudart.so.12"].map(|name| standin().join(name));
    let listed = Command::new("ldd")
        .arg(program)
        .args(&gpu)
        .env("LD_LIBRARY_PATH", standin())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    // In the output of `ldd` for several files, a word that ends with a colon is one of the files; the lines after it
    // list that file's libraries.
    let is_file = |word: &&str| word.starts_with('/') && !word.ends_with(':');
    let files = listed.split_whitespace().filter(is_file);
    files.map(Path::new).for_each(copy);
    gpu.iter().for_each(|file| copy(file));
    copy_program(program, &root.join("program"));
    open_to_all(root);
    if is_other_user {
        chown(root.join("tmp"), Some(MAPPED), Some(MAPPED)).unwrap();
    }
}

impl Contained {
    /// Starts the container. Returns `None` if the kernel refuses to create it.
    fn start(linkage: Linkage, how: &str) -> Option<Self> {
        let place = Place::new();
        let root = place.path("root");
        make_root(&root, linkage.program(), how.contains('u'));
        fs::set_permissions(place.0.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        let command = |arguments: &str| {
            let mut command = built_command(contain());
            command
                .arg(&root)
                .args([how, "number", "/program"])
                .args(arguments.split(' '))
                .env_remove("XDG_RUNTIME_DIR")
                .env("LD_LIBRARY_PATH", standin())
                .env("STANDIN_LOG", "/tmp/calls")
                .current_dir(place.0.folder());
            command
        };
        let tried = run(&mut command("0 1"), TEST_TIMEOUT);
        if tried.status.code() == Some(REFUSED) {
            skipped(&format!("no container ({how}): {}", tried.err().trim()));
            return None;
        }
        assert!(tried.status.success(), "{how}: {}", tried.err());
        // Removes the files that the run above has left in `tmp`. Subfolders are kept: if this checkout is below
        // `/tmp`, they hold the copies of the libraries.
        let left = fs::read_dir(root.join("tmp")).unwrap();
        let left = left.map(|entry| entry.unwrap().path());
        for file in left.filter(|path| path.is_file()) {
            fs::remove_file(file).unwrap();
        }
        let running = place.start(&mut command("2"));
        let pid = fs::read_to_string(place.path("number")).unwrap();
        Some(Self {
            pid: pid.trim().parse().unwrap(),
            place,
            running,
        })
    }

    fn root(&self) -> PathBuf {
        self.place.path("root")
    }

    fn command(&self, arguments: &str) -> Command {
        let arguments = arguments.replace("PID", &self.pid.to_string());
        let mut command = self.place.command(&arguments);
        command.env("TLLMPROF_LIB", shim());
        command
    }

    fn tllmprof(&self, arguments: &str) -> Output {
        run(&mut self.command(arguments), TEST_TIMEOUT)
    }

    #[track_caller]
    fn succeeds(&self, arguments: &str) -> Output {
        let output = self.tllmprof(arguments);
        assert!(output.status.success(), "{arguments}: {}", output.err());
        output
    }

    /// Asserts that the command is refused with one line that contains `why`, and that nothing was loaded.
    #[track_caller]
    fn refuses(&self, command: &mut Command, why: &str) {
        let refused = run(command, TEST_TIMEOUT);
        let said = refused.err();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.contains(why) && said.trim_end().lines().count() == 1,
            "{said}"
        );
        assert!(!self.maps().contains("libtllmprof"), "{why}");
    }

    fn maps(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap()
    }

    /// Returns the number of times that the profiler's library is mapped in the program.
    fn copies(&self) -> usize {
        let maps = self.maps();
        let code = |line: &&str| line.contains("r-xp") && line.contains("memfd:libtllmprof.so");
        maps.lines().filter(code).count()
    }

    /// Returns the program's state in `tllmprof ps`, found by its process number outside the container.
    fn state(&self) -> Option<String> {
        let listed = self.succeeds("ps --json");
        let all: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        let ours = all.iter().find(|process| process["pid"] == self.pid);
        ours.map(|process| process["state"].as_str().unwrap().to_owned())
    }

    /// Returns the files below a folder, as the program sees the folder.
    fn files(&self, folder: &str) -> BTreeSet<PathBuf> {
        fn add(folder: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    add(&entry.path(), found);
                }
                found.insert(entry.path());
            }
        }
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let mut found = BTreeSet::new();
        if !folder.is_empty() {
            add(&root.join(folder), &mut found);
        } else {
            for part in fs::read_dir(&root).unwrap().flatten() {
                if part.file_name() != "proc" && part.file_type().unwrap().is_dir() {
                    add(&part.path(), &mut found);
                }
            }
        }
        let inside = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_owned();
        found.iter().map(inside).collect()
    }

    /// Returns the number of iterations in each window of the record.
    fn windows(&self, record: &Path) -> Vec<u64> {
        let windows = self.running.windows_of(record);
        windows
            .iter()
            .map(|(first, last)| last - first + 1)
            .collect()
    }

    /// Makes the program end, and asserts that no thread of the program reported a wrong result.
    #[track_caller]
    fn end(&mut self) {
        fs::write(self.root().join("tmp/end"), "").unwrap();
        wait_until("the end", || {
            self.running.child.try_wait().unwrap().is_some()
        });
        let status = self.running.child.wait().unwrap();
        let out = self.running.out();
        assert!(
            status.success() && out.contains("bad 0, "),
            "{status}\n{out}\n{}",
            self.running.err()
        );
    }
}

#[test]
fn a_program_in_a_container_is_captured_exactly_and_nothing_is_left_there() {
    if !can_contain() {
        return;
    }
    let mut all = vec![
        (LINKED[0], "-"),
        (POINTERS[1], "-"),
        (LINKED[0], "u"),
        (LINKED[0], "s"),
    ];
    match Path::new("/proc/sys/vm/memfd_noexec").exists() {
        true => all.push((LINKED[0], "x")),
        false => skipped("this kernel has no vm.memfd_noexec"),
    }
    for (linkage, how) in all {
        let Some(mut host) = Contained::start(linkage, how) else {
            continue;
        };
        let before = host.files("");
        let attached = host.succeeds("attach PID --step cudaGraphLaunch --steps 10");
        assert!(
            attached.out().contains("10 iterations"),
            "{how}: {}",
            attached.out()
        );
        let hooked = "66 of 66 functions of the driver are hooked";
        assert!(attached.err().contains(hooked), "{how}: {}", attached.err());
        assert_eq!(host.state().as_deref(), Some("armed"), "{how}");
        host.succeeds("capture PID --steps 5");
        host.succeeds("detach PID");
        assert_eq!(host.state(), None, "{how}");
        let again = host.succeeds("attach PID --steps 7");
        assert!(
            again.err().contains("no thread was stopped"),
            "{how}: {}",
            again.err()
        );
        assert_eq!(host.copies(), 1, "{how}");
        let open = fs::read_dir(format!("/proc/{}/fd", host.pid)).unwrap();
        let mut open = open
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        assert!(
            !open.any(|file| file.to_string_lossy().contains("memfd:")),
            "{how}"
        );
        host.end();
        let record = host.root().join("tmp/tllmprof-inside-0-1.tllmprof");
        assert_eq!(host.windows(&record), [10, 5, 7], "{how}");
        let switched = switches(&host.root().join("tmp/calls"), 1);
        let switched: Vec<_> = switched.iter().map(|(a, b)| b - a + 1).collect();
        assert_eq!(switched, [10, 5, 7], "{how}");
        // In `tmp`, the run may add only these entries: the record, the folder of control sockets, which is empty,
        // and the test's own files.
        let left = fs::read_dir(host.root().join("tmp")).unwrap().flatten();
        let left: BTreeSet<_> = left
            .map(|entry| PathBuf::from("tmp").join(entry.file_name()))
            .collect();
        let new: Vec<_> = left
            .difference(&before)
            .map(|path| path.to_str().unwrap())
            .collect();
        let wanted = [
            "tmp/end",
            "tmp/tllmprof-0",
            "tmp/tllmprof-inside-0-1.tllmprof",
        ];
        assert_eq!(new, wanted, "{how}");
        let sockets = fs::read_dir(host.root().join("tmp/tllmprof-0")).unwrap();
        assert_eq!(sockets.count(), 0, "{how}");
    }
}

#[test]
fn a_container_with_a_read_only_root_has_its_record_and_its_socket_in_memory() {
    if !can_contain() {
        return;
    }
    let Some(mut host) = Contained::start(LINKED[0], "r") else {
        return;
    };
    let attached = host.succeeds("attach PID --step cudaGraphLaunch --steps 10");
    assert!(
        attached.out().contains("10 iterations"),
        "{}",
        attached.out()
    );
    let captured = host.succeeds("capture PID --steps 5");
    assert!(
        captured.out().contains("5 iterations"),
        "{}",
        captured.out()
    );
    let record = Path::new("dev/shm/tllmprof-inside-0-1.tllmprof");
    assert!(
        host.files("dev").contains(record),
        "{:?}",
        host.files("dev")
    );
    let record = PathBuf::from(format!("/proc/{}/root", host.pid)).join(record);
    assert_eq!(host.windows(&record), [10, 5]);
    host.succeeds("detach PID");
    host.end();
}

#[test]
fn a_container_in_which_the_library_cannot_be_is_refused_with_a_line() {
    if !can_contain() {
        return;
    }
    for (how, why) in [
        ("n", "/proc is not mounted"),
        ("R", "no place for a socket"),
        ("k", "it filters its system calls (seccomp)"),
    ] {
        let Some(mut host) = Contained::start(LINKED[0], how) else {
            continue;
        };
        let before = host.files("");
        host.refuses(&mut host.command("attach PID"), why);
        let left: Vec<_> = host.files("").difference(&before).cloned().collect();
        assert!(left.is_empty(), "{how}: {left:?}");
        host.end();
    }
    let Some(mut host) = Contained::start(LINKED[0], "-") else {
        return;
    };
    let relative = host.tllmprof("attach PID --trace a.tllmprof");
    assert_eq!(relative.status.code(), Some(2), "{}", relative.err());
    assert!(
        relative.err().contains("an absolute path there"),
        "{}",
        relative.err()
    );
    // This copy of the profiler's library is patched to require a glibc version newer than any that exists, so it
    // cannot be loaded.
    let newer = host.place.path("libtllmprof.so");
    let mut bytes = fs::read(shim()).unwrap();
    let name = b"GLIBC_2.34\0";
    let at = bytes
        .windows(name.len())
        .position(|part| part == name)
        .expect("a version");
    bytes[at..at + 10].copy_from_slice(b"GLIBC_2.99");
    fs::write(&newer, bytes).unwrap();
    let mut attach = host.command("attach PID");
    host.refuses(
        attach.env("TLLMPROF_LIB", &newer),
        "the library requires 2.99",
    );
    host.end();
}

#[test]
fn a_command_that_is_killed_leaves_a_container_as_it_was() {
    if !can_contain() {
        return;
    }
    let Some(mut host) = Contained::start(POINTERS[1], "-") else {
        return;
    };
    for _ in 0..times(6) {
        let mut attach = host
            .command("attach PID")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_micros(random(60_000)));
        attach.kill().unwrap();
        attach.wait().unwrap();
        if host.copies() > 0 {
            break;
        }
    }
    // A command writes the library into a file in memory, which a thread in the program has opened. If the command is
    // killed before the file is complete, that thread closes the file after about 10 s. A later command must attach in
    // any case.
    wait_until("the attach", || {
        let said = host.tllmprof("attach PID").err();
        host.state().as_deref() == Some("armed") && !said.contains("safe point")
    });
    assert_eq!(host.copies(), 1);
    let captured = host.succeeds("capture PID --steps 6");
    assert!(
        captured.out().contains("6 iterations"),
        "{}",
        captured.out()
    );
    host.end();
}

#[test]
fn commands_at_the_same_time_load_the_library_once() {
    if !can_contain() {
        return;
    }
    for _ in 0..times(2) {
        let Some(mut host) = Contained::start(LINKED[0], "-") else {
            return;
        };
        let mut all: Vec<_> = (0..3)
            .map(|_| {
                let mut attach = host.command("attach PID");
                attach.stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        // The first of the three commands is killed after a random time of less than 60 ms. Each command must print
        // nothing, or one of the messages below. A command prints `is attaching to it` if it is refused because another
        // command is attaching. On a busy machine, a command may also find no safe moment.
        sleep(Duration::from_micros(random(60_000)));
        all[0].kill().unwrap();
        for attach in all {
            let ended = attach.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            let is_known = [
                "attached; ",
                "is attaching to it",
                "listens already",
                "hooked",
                "safe point",
                "none of its threads stopped in time",
            ];
            assert!(
                said.is_empty() || is_known.iter().any(|known| said.contains(known)),
                "{said}"
            );
        }
        wait_until("an attach", || {
            let _ = host.tllmprof("attach PID");
            host.state().as_deref() == Some("armed")
        });
        assert_eq!(host.copies(), 1);
        host.end();
    }
}

#[test]
fn an_older_system_is_attached_to_or_refused_by_its_glibc() {
    if !can_contain() {
        return;
    }
    let systems = crate::common::repo().join(".cache/old-systems");
    let Ok(systems) = fs::read_dir(&systems) else {
        skipped("there are no old systems in .cache (scripts/old-systems fetches them)");
        return;
    };
    for system in systems.flatten().map(|entry| entry.path()) {
        if !["complete", "usr/bin/perl"]
            .iter()
            .all(|file| system.join(file).exists())
        {
            continue;
        }
        let place = Place::new();
        let mut program = command(contain());
        program
            .arg(&system)
            .args(["d", "number", "/usr/bin/perl", "-e"])
            .arg("$| = 1; print qq(ready\\n); sleep 1 while 1")
            .env("LC_ALL", "C")
            // These two libraries are loaded by any program that uses CUDA, so the program here loads them, too.
            .env("LD_PRELOAD", "libpthread.so.0 libdl.so.2")
            .current_dir(place.0.folder());
        let running = place.start(&mut program);
        let pid = fs::read_to_string(place.path("number")).unwrap();
        let mut attach = place.command(&format!("attach {}", pid.trim()));
        let attached = run(attach.env("TLLMPROF_LIB", shim()), TEST_TIMEOUT);
        let said = attached.err();
        assert!(
            said.contains("attached; ") || said.contains("and the library requires"),
            "{}: {said}",
            system.display()
        );
        let alive = Path::new("/proc").join(pid.trim()).exists();
        assert!(alive, "{}", system.display());
        drop(running);
    }
}
