//! Checks windows on demand in programs that fork, exec another program, close all descriptors, or have no descriptors
//! free.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{Scratch, build, built_command, can_exec, run, shim, skipped, standin};
use crate::place::{Peer, Place, TEST_TIMEOUT, wait_until};

#[test]
fn a_forked_child_has_none_of_the_sockets_and_makes_its_own() {
    let place = Place::new();
    let mut command = place.server("2000");
    command.env("HOST", "forks");
    let mut server = place.start(&mut command);
    let mut peer = server.connect();
    wait_until("the child", || place.path("child").exists());
    let child = fs::read_to_string(place.path("child")).unwrap();
    let (pid, sockets) = child.trim().split_once(' ').unwrap();
    assert_eq!(sockets, "0");
    wait_until("both sockets", || place.sockets().len() == 2);
    let mut pids: Vec<_> = place
        .ps()
        .iter()
        .map(|process| process["pid"].as_u64().unwrap())
        .collect();
    pids.sort_unstable();
    let mut expected = [u64::from(server.pid()), pid.parse().unwrap()];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    // The child has made no steps since the fork. The step times from before the fork belong to the parent, so the
    // child reports none.
    assert!(peer.status().times.is_some());
    let mut of_child = Peer::to(&place.path(&format!("run/tllmprof/{pid}.sock")));
    let status = of_child.status();
    assert_eq!((status.iterations, status.times), (0, None));
    drop(of_child);
    drop(peer);
    // When the parent ends, its socket file has no listening process any more, although the child is still alive.
    server.kill();
    let left: Vec<_> = place
        .ps()
        .iter()
        .map(|process| process["pid"].to_string())
        .collect();
    assert_eq!(left, [pid]);
    assert_eq!(place.sockets(), [format!("{pid}.sock")]);
    fs::write(place.path("end"), "").unwrap();
    wait_until("the child's end", || place.sockets().is_empty());
}

#[test]
fn nothing_listens_after_an_exec_and_the_file_is_swept() {
    if !can_exec() {
        return skipped("the runner starts no other program");
    }
    let place = Place::new();
    let mut command = place.server("2000");
    command.env("HOST", "execs");
    let server = place.start(&mut command);
    let name = || fs::read_to_string(format!("/proc/{}/comm", server.pid())).unwrap();
    wait_until("the other program", || name().trim() == "sleep");
    assert!(place.ps().is_empty());
    assert!(place.sockets().is_empty());
    assert!(!server.has_thread());
}

#[test]
fn a_host_that_closes_all_descriptors_keeps_its_own_and_is_found_again() {
    let place = Place::new();
    let mut command = place.server("2000");
    // The program closes all descriptors and opens a file of its own in their place. The stand-in for CUDA must have no
    // log, because it would then write its log into that file.
    command.env("HOST", "closes").env_remove("STANDIN_LOG");
    let mut server = place.start(&mut command);
    // A client stays connected while the program closes its descriptors. Other tests' programs may listen at the same
    // time, so commands name the process.
    let mut peer = server.connect();
    wait_until("the program's own files", || place.path("own").exists());
    // The connection ends when the library's thread next wakes up, so the request may find it ended.
    let _ = peer.0.get_mut().write_all(b"{\"do\":\"status\"}\n");
    let _ = peer.0.get_mut().read(&mut [0; 100]);
    wait_until("the socket", || place.ps().len() == 1);
    let captured = place.tllmprof(&format!("capture {} --steps 3", server.pid()));
    assert!(captured.status.success(), "{}", captured.err());
    let out = server.end();
    assert!(
        !out.contains("was taken") && out.contains("0 bytes in the program's own file"),
        "{out}"
    );
}

#[test]
fn a_host_without_sockets_or_descriptors_to_spare_is_left_alone() {
    let place = Place::new();
    let mut command = place.server("200");
    // By default, the library opens no window once the program has a seccomp filter. With this setting the library
    // continues: the test knows that the program's filter only affects sockets.
    command.env("TLLMPROF_AFTER_SECCOMP", "1");
    let mut server = place.start(command.env("HOST", "no_socket"));
    wait_until("the line", || server.err().contains("no control socket"));
    assert!(!server.has_thread() && place.sockets().is_empty());
    assert!(server.end().contains("checksum"));
    fs::remove_file(place.path("end")).unwrap();
    let mut few = command_with_few_descriptors(&place);
    let mut server = place.start(&mut few);
    wait_until("the line", || server.err().contains("no control socket"));
    assert!(server.end().contains("checksum"));
}

/// Returns the command of a server that may have at most 40 descriptors open.
fn command_with_few_descriptors(place: &Place) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = place.server("200");
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: 40,
            rlim_max: 40,
        };
        // SAFETY: setrlimit only reads the local variable `limit`.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: setrlimit may be called between fork and exec.
    unsafe { command.pre_exec(limit) };
    command
}

#[test]
fn a_process_that_uses_no_cuda_has_no_thread_and_no_socket() {
    let place = Place::new();
    for control in ["1", "0"] {
        let mut command = built_command("/bin/sh");
        command
            .args(["-c", "cat /proc/$$/task/*/comm; ls /proc/$$/fd | wc -l"])
            .env("LD_PRELOAD", shim())
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("TLLMPROF_CONTROL", control)
            .current_dir(place.0.folder());
        let output = run(&mut command, TEST_TIMEOUT);
        assert_eq!(output.out().lines().next(), Some("sh"), "{}", output.out());
        assert!(!output.out().contains("tllmprof"), "{}", output.out());
        assert!(output.err().is_empty(), "{}", output.err());
    }
    assert!(fs::read_dir(place.path("run")).unwrap().next().is_none());
    // In a process that uses CUDA, the library creates the control socket and its thread only if `TLLMPROF_CONTROL`
    // asks for the socket.
    for control in [None, Some("0")] {
        let mut command = place.server("100");
        match control {
            Some(value) => command.env("TLLMPROF_CONTROL", value),
            None => command.env_remove("TLLMPROF_CONTROL"),
        };
        let mut server = place.start(&mut command);
        sleep(Duration::from_millis(200));
        assert!(!server.has_thread());
        server.end();
        fs::remove_file(place.path("end")).unwrap();
    }
    assert!(fs::read_dir(place.path("run")).unwrap().next().is_none());
}

/// The exit status of the program if the kernel lacks the seccomp filters with which the preload `live/slow_listen.c`
/// intercepts system calls.
const SLOW_LISTEN_CANNOT: i32 = 77;

/// Maximum number of runs of the program. No further run is made after a run that ended while its socket was being
/// created.
const ATTEMPTS: usize = 50;

#[test]
fn a_process_that_ends_while_its_socket_is_made_leaves_no_file() {
    let place = Place::new();
    let built = Scratch::new("slow");
    let slow = built.path("slow.so");
    build("live/slow_listen.c", &slow, ["-shared", "-fPIC"]);
    for end in ["return", "_exit", "sigterm-handled", "quick_exit"] {
        let mut command = built_command(standin().join("bin/steps_shared12"));
        command
            .args(["--steps", "1", "--exit", end])
            .env("LD_LIBRARY_PATH", standin())
            .env(
                "LD_PRELOAD",
                format!("{}:{}", slow.display(), shim().display()),
            )
            .env("SLOW_LISTEN", place.path("listens"))
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("TLLMPROF_CONTROL", "1")
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            // By default, the library opens no window in a process with a seccomp filter. The filter here is the test's
            // own and harmless, so this setting lets the library continue.
            .env("TLLMPROF_AFTER_SECCOMP", "1")
            .current_dir(place.0.folder());
        // On a busy machine, the program may end before the library's thread creates the socket. Then the program is
        // run again.
        let said = (0..ATTEMPTS).find_map(|_| {
            let output = run(&mut command, TEST_TIMEOUT);
            if output.status.code() == Some(SLOW_LISTEN_CANNOT) {
                return Some(None);
            }
            assert_eq!(output.status.code(), Some(0), "{end}: {}", output.err());
            fs::read_to_string(place.path("listens")).ok().map(Some)
        });
        let Some(said) = said.expect("the socket was being made when the program ended") else {
            return skipped("the kernel logs no calls that a filter catches");
        };
        assert_eq!(said, "listens\n", "{end}");
        fs::remove_file(place.path("listens")).unwrap();
        assert!(place.sockets().is_empty(), "{end}: {:?}", place.sockets());
    }
}

#[test]
fn what_killed_processes_leave_is_swept() {
    let place = Place::new();
    let mut lives = place.start(&mut place.server("2000"));
    lives.connect();
    let live = format!("{}.sock", lives.pid());
    let mut shell = built_command("/bin/true");
    let gone = shell.spawn().unwrap();
    let pid = gone.id();
    let _ = gone.wait_with_output();
    let sweeps: [(&str, &dyn Fn() -> bool); 2] = [
        ("ps", &|| place.tllmprof("ps").status.success()),
        ("run", &|| {
            place
                .command("run --no-trace -- /bin/true")
                .status()
                .unwrap()
                .success()
        }),
    ];
    for (name, sweep) in sweeps {
        let mut dies = place.start(&mut place.server("2000"));
        dies.connect();
        dies.kill();
        // A file `PID.bind` says that the process PID is about to listen. The first of these files belongs to a process
        // that was killed before it listened, the second to a running process. The third file's name contains no PID.
        // Of these files, only the first may be removed.
        let folder = place.path("run/tllmprof");
        fs::write(folder.join(format!("{pid}.bind")), "").unwrap();
        fs::write(folder.join(format!("{}.bind", lives.pid())), "").unwrap();
        fs::write(folder.join("other.bind"), "").unwrap();
        assert_eq!(place.sockets().len(), 5, "{:?}", place.sockets());
        assert!(sweep(), "{name}");
        let mut left = place.sockets();
        left.sort();
        let mut wanted = [
            live.clone(),
            format!("{}.bind", lives.pid()),
            "other.bind".to_owned(),
        ];
        wanted.sort();
        assert_eq!(left, wanted, "{name}");
    }
    assert_eq!(place.ps().len(), 1);
    lives.end();
}

/// If a signal kills the program that `tllmprof run` started, this command removes the program's socket.
#[test]
fn the_command_removes_what_a_killed_program_leaves() {
    let place = Place::new();
    let mut command = place.command("run --trace x-%p.tllmprof --no-summary --");
    command
        .arg(standin().join("bin/steps_shared12"))
        .args(["--exit", "sigterm", "--steps", "300"])
        .env("STANDIN_WAIT_US", "1000")
        .env("LD_LIBRARY_PATH", standin())
        .env("TLLMPROF_LIB", shim());
    let output = run(&mut command, TEST_TIMEOUT);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGTERM),
        "{}",
        output.err()
    );
    // The folder exists, so the program had a socket.
    assert!(place.path("run/tllmprof").is_dir());
    assert!(place.sockets().is_empty(), "{:?}", place.sockets());
}
