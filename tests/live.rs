//! Checks windows on demand in running processes: in one process, in several processes in lockstep, and after errors of
//! clients or of the program.

mod common;
#[path = "live/hosts.rs"]
mod hosts;
#[path = "live/lockstep.rs"]
mod lockstep;
#[path = "live/mcp.rs"]
mod mcp;
#[path = "live/metrics.rs"]
mod metrics;
#[path = "live/place.rs"]
mod place;
#[path = "live/stopped.rs"]
mod stopped;
#[path = "live/terminal.rs"]
mod terminal;
#[path = "live/top.rs"]
mod top;
#[path = "live/torch.rs"]
mod torch;
#[path = "live/verbs.rs"]
mod verbs;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{run, shim, skipped, standin};
use place::{Peer, Place, TEST_TIMEOUT, of_steps, server, switches, wait_until};
use tllmprof_control::{Capture, ControlEvent, Phase, Request};

const NOBODY: u32 = 65534;

#[test]
fn a_hundred_captures_in_a_row_take_exactly_their_steps() {
    const PERIOD_US: u64 = 500;
    let place = Place::new();
    let mut server = place.start(&mut place.server(&PERIOD_US.to_string()));
    let mut peer = server.connect();
    // Before the server answers a client for the first time, it opens a descriptor for the client. So the descriptors
    // are counted after the answer.
    peer.status();
    let (descriptors, mut taken) = (server.count("fd"), Vec::new());
    for n in 0..100 {
        let since = Instant::now();
        let before = peer.status();
        assert_eq!(before.phase, Phase::Armed);
        let (accepted, closed) = peer.capture(1 + n % 7);
        let most = 2 + since.elapsed().as_micros() as u64 / PERIOD_US;
        assert!((before.iterations..=before.iterations + most).contains(&accepted.0));
        assert_eq!(accepted, closed);
        assert_eq!(accepted.1 - accepted.0, n % 7);
        taken.push(closed);
    }
    // The number of descriptors is unchanged: the record was created before the first window.
    assert_eq!(server.count("fd"), descriptors);
    assert_eq!(server.windows(), taken);
    server.end();
    assert_eq!(switches(&place.path("calls"), server.pid()), taken);
    assert!(
        server.err().contains("100 windows captured on demand"),
        "{}",
        server.err()
    );
    assert!(place.sockets().is_empty(), "{:?}", place.sockets());
}

#[test]
fn how_long_a_step_takes_is_known_as_soon_as_a_record_has_some() {
    const PERIOD: u64 = 2_000_000;
    let place = Place::new();
    let mut with = place.start(&mut place.server("2000"));
    let mut without = place.start(place.server("2000").env_remove("TLLMPROF_TRACE"));
    let mut peer = with.connect();
    wait_until("20 steps", || peer.status().iterations > 20);
    // The server sleeps for `PERIOD` in each step. A busy machine can only make steps longer.
    let p50 = peer.status().p50_ns.unwrap();
    assert!(p50 >= PERIOD, "{p50}");
    let mut peer = without.connect();
    assert_eq!(peer.status().p50_ns, None);
    peer.capture(5);
    let p50 = peer.status().p50_ns.unwrap();
    assert!(p50 >= PERIOD, "{p50}");
    with.end();
    without.end();
}

#[test]
fn steps_that_were_learnt_are_captured_by_number_too() {
    let place = Place::new();
    let mut command = place.server("500");
    command.env_remove("TLLMPROF_STEP");
    let mut server = place.start(&mut command);
    let mut peer = server.connect();
    wait_until("500 steps", || peer.status().iterations > 500);
    let mut taken = Vec::new();
    for _ in 0..20 {
        let (accepted, closed) = peer.capture(5);
        assert_eq!(accepted, closed);
        taken.push(closed);
    }
    server.end();
    assert_eq!(server.windows(), taken);
}

#[test]
fn a_rule_that_closes_iterations_takes_whole_ones() {
    let place = Place::new();
    let mut command = place.server("500");
    command.env("TLLMPROF_STEP", "cudaStreamSynchronize");
    let mut server = place.start(&mut command);
    let mut peer = server.connect();
    let mut taken = Vec::new();
    for _ in 0..20 {
        let (accepted, closed) = peer.capture(3);
        assert_eq!(accepted, closed);
        taken.push(closed);
    }
    server.end();
    assert_eq!(server.windows(), taken);
}

#[test]
fn a_window_by_time_closes_and_so_does_one_of_a_server_that_idles() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    let mut peer = server.connect();
    let request = Request::Capture(Capture {
        duration: Some(Duration::from_millis(200)),
        ..Capture::default()
    });
    let accepted = peer.ask(&request);
    let ControlEvent::Accepted { first, last: None } = accepted else {
        panic!("{accepted:?}");
    };
    assert_eq!(peer.hear(), ControlEvent::Opened { first });
    let ControlEvent::Closed(closed) = peer.hear() else {
        panic!()
    };
    let (from, until) = closed.steps.unwrap();
    assert!(from == first && until > first, "{from}-{until}");
    // A second client interrupts the first client's window while the server makes no steps.
    assert!(matches!(
        peer.ask(&of_steps(1_000_000)),
        ControlEvent::Accepted { .. }
    ));
    assert!(matches!(peer.hear(), ControlEvent::Opened { .. }));
    server.pause();
    let stopped = place.tllmprof(&format!("stop {}", server.pid()));
    assert!(
        stopped.status.success() && stopped.err().contains("the window closed with"),
        "{}",
        stopped.err()
    );
    let ControlEvent::Closed(second) = peer.hear() else {
        panic!()
    };
    let stopped = place.tllmprof(&format!("stop {}", server.pid()));
    assert!(
        !stopped.status.success() && stopped.err().contains("no window is open"),
        "{}",
        stopped.err()
    );
    server.resume();
    let third = peer.capture(4).1;
    server.end();
    assert_eq!(
        server.windows(),
        [(from, until), second.steps.unwrap(), third]
    );
}

#[test]
fn hostile_clients_do_no_harm() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    let mut peer = server.connect();
    peer.capture(1);
    let (memory, descriptors, threads) =
        (server.memory(), server.count("fd"), server.count("task"));
    // None of these lines is a request of the control protocol.
    for line in [
        &b"\n"[..],
        b"rubbish\n",
        b"{}\n",
        b"\x00\xff\xfe\n",
        b"[[[[[[[[[[[[\n",
        b"{\"do\":\"capture\",\"steps\":1e9}\n",
    ] {
        peer.say(line);
        assert!(
            matches!(peer.hear(), ControlEvent::Refused { .. }),
            "{line:?}"
        );
    }
    // This client tries to send a line of 1 GiB. The server must close the connection before the client has sent 100
    // blocks of 64 KiB.
    let mut long = Peer::to(&server.socket());
    let block = [b'x'; 1 << 16];
    let sent = (0..1 << 14)
        .take_while(|_| long.0.get_mut().write_all(&block).is_ok())
        .count();
    assert!(sent < 100, "{sent} blocks were taken");
    // Each of 1000 clients sends half a line, requests whose answers it does not read, a request for a window, or
    // nothing, and then disconnects.
    for n in 0..1000 {
        let mut stream = UnixStream::connect(server.socket());
        if let Ok(stream) = &mut stream {
            let line: &[u8] = match n % 4 {
                0 => b"{\"do\":",
                1 => b"{\"do\":\"status\"}\n{\"do\":\"status\"}\n{\"do\":\"status\"}\n",
                2 => b"{\"do\":\"capture\",\"steps\":2}\n",
                _ => b"",
            };
            let _ = stream.write_all(line);
        }
    }
    // 100 clients connect at the same time.
    let many: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(server.socket()))
        .collect();
    let mut peer = server.connect();
    wait_until("the rest of the others' windows", || {
        peer.status().phase == Phase::Armed
    });
    assert!(server.count("fd") <= descriptors + 9);
    drop(many);
    let mut peer = server.connect();
    wait_until("a window of our own", || match peer.ask(&of_steps(3)) {
        ControlEvent::Accepted { .. } => true,
        ControlEvent::Refused { .. } => false,
        other => panic!("{other:?}"),
    });
    while !matches!(peer.hear(), ControlEvent::Closed(_)) {}
    drop(peer);
    wait_until("descriptors", || server.count("fd") <= descriptors + 1);
    assert_eq!(server.count("task"), threads);
    assert!(
        server.memory() < memory + (8 << 10),
        "{} to {} KiB",
        memory,
        server.memory()
    );
    assert!(server.end().contains("checksum"));
}

#[test]
fn an_operator_is_told_why_not() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    server.connect();
    let refused = |args: &str, why: &str| {
        let output = place.tllmprof(args);
        assert!(!output.status.success(), "{args}");
        let lines: Vec<_> = output.err().lines().map(str::to_owned).collect();
        assert!(
            lines.len() == 1 && lines[0].contains(why),
            "{args}: {lines:?}"
        );
    };
    let pid = server.pid();
    refused("capture 999999999", "999999999: there is no such process");
    refused(
        &format!("capture {}", std::process::id()),
        "it runs without the library",
    );
    refused("capture x", "\"x\" is no process");
    refused(&format!("capture {pid} {pid}"), "is given twice");
    refused("capture --run nobodys", "no process of that run");
    refused(
        &format!("capture {pid} --gil"),
        "gil: the process was started without it",
    );
    refused(&format!("capture {pid} --gc"), "TLLM_PROFILE_RECORD_GC=1");
    refused(&format!("capture {pid} --kernels"), "TLLMPROF_KERNELS=1");
    refused(&format!("capture {pid} --where requests"), "--where");
    fs::write(place.path("file"), "").unwrap();
    for (option, why) in [
        (
            "--steps x",
            "--steps \"x\": wanted: a whole number, at least 1",
        ),
        ("--delay y", "--delay \"y\": wanted: a whole number"),
        ("--kernels=z", "--kernels \"z\": wanted: a whole number"),
        (
            "-o file",
            "-o file: that is a file (wanted: a folder for the copies of the records)",
        ),
        ("-o file/in", "-o file/in: there is no folder file"),
        ("-o no/such", "-o no/such: there is no folder no"),
        (
            "-o /proc/x",
            "-o /proc/x: the folder cannot be made: the file system at /proc permits none",
        ),
    ] {
        refused(&format!("capture {pid} {option}"), why);
    }
    refused("capture 4000000000 -o copies", "no such process");
    assert!(!place.path("copies").exists() && !place.path("no").exists());
    refused(
        &format!("capture {pid} --where phase=decode"),
        "begins before its batch is known",
    );
    let mut peer = server.connect();
    assert!(matches!(
        peer.ask(&of_steps(1_000_000)),
        ControlEvent::Accepted { .. }
    ));
    wait_until("the window", || peer.status_or_event());
    refused(&format!("capture {pid} --steps 5"), "is open");
    assert!(
        place
            .tllmprof(&format!("stop {}", server.pid()))
            .status
            .success()
    );
    // The server is paused and makes no steps.
    server.pause();
    refused(
        &format!("capture {pid} --wait 1s"),
        "no iteration began for long",
    );
    server.resume();
    // The server ends during the capture. The command then shows the part of the window that was captured.
    let capture = place
        .command(&format!("capture {pid} --steps 1000000"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the window", || place.ps()[0]["state"] == "open");
    server.end();
    let output = capture.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("the process ended before its window closed"),
        "{err}"
    );
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("window "),
        "{err}"
    );
    refused(&format!("capture {pid}"), "there is no such process");
}

#[test]
fn an_interrupted_capture_closes_its_window_and_shows_it() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    server.connect();
    let capture = place
        .command(&format!("capture {} --steps 1000000", server.pid()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the window", || place.ps()[0]["state"] == "open");
    // SAFETY: kill takes no pointer. The process is a child that has not been waited for.
    unsafe { libc::kill(capture.id() as libc::pid_t, libc::SIGINT) };
    let output = capture.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("window "));
    assert_eq!(server.windows().len(), 1);
    server.end();
    assert_eq!(server.windows().len(), 1);
}

#[test]
fn another_user_gets_nothing() {
    // SAFETY: geteuid has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can become another user");
    }
    let place = Place::new();
    let folder = PathBuf::from(format!("/tmp/tllmprof-test-{}", std::process::id()));
    // An earlier test process with the same process id may have been killed, and have left the folder.
    let _ = fs::remove_dir_all(&folder);
    let mut command = place.server("500");
    command.env("TLLMPROF_CONTROL", &folder);
    let mut server = place.start(&mut command);
    wait_until("the socket", || {
        fs::read_dir(&folder).is_ok_and(|mut all| all.next().is_some())
    });
    let socket = fs::read_dir(&folder)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let name = socket.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(
        name.ends_with(&format!("-{}.sock", server.pid())) && name.matches('-').count() >= 2,
        "{name}"
    );
    // Gives the folder and the socket the permissions that they would have if a user made them writable for all.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({socket:?})\ntry:\n s.sendall(b'{{\"do\":\"status\"}}\\n')\n \
         print('got', s.recv(1000))\nexcept OSError:\n print('got', b'')"
    );
    let mut other = common::command("setpriv");
    other.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        &script,
    ]);
    let heard = run(other.current_dir("/"), TEST_TIMEOUT);
    assert_eq!(heard.out().trim(), "got b''", "{}", heard.err());
    // The server's own user, root, still finds the server in this folder.
    let mut seen = place.command("ps --json");
    let seen = run(seen.env("TLLMPROF_CONTROL", &folder), TEST_TIMEOUT);
    assert!(
        seen.out().contains(&format!("\"pid\":{}", server.pid())),
        "{}",
        seen.out()
    );
    server.end();
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_folder_that_is_anothers_or_a_link_is_refused_with_a_line() {
    // SAFETY: geteuid has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can give a folder away");
    }
    let place = Place::new();
    let (folder, link) = (place.path("anothers"), place.path("link"));
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(NOBODY), None).unwrap();
    symlink(place.path("run"), &link).unwrap();
    for (control, why) in [(&folder, "belongs to user 65534"), (&link, "is a link")] {
        let mut command = place.server("100");
        command.env("TLLMPROF_CONTROL", control);
        let mut server = place.start(&mut command);
        wait_until("the line", || server.err().contains("no control socket: "));
        assert!(server.err().contains(why), "{}", server.err());
        assert!(!server.has_thread());
        assert!(server.end().contains("checksum"));
        fs::remove_file(place.path("end")).unwrap();
        assert!(fs::read_dir(control).unwrap().next().is_none());
    }
}

#[test]
fn what_was_started_by_run_listens_and_has_its_run() {
    let place = Place::new();
    let mut command =
        place.command("run --run mine --window none --step cudaGraphLaunch --no-summary --");
    command
        .arg(server())
        .arg("500")
        .env("LD_LIBRARY_PATH", standin())
        .env("TLLMPROF_LIB", shim());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until("the server", || place.ps().len() == 1);
    let listed = place.ps();
    assert_eq!(
        (listed[0]["run"].as_str(), listed[0]["state"].as_str()),
        (Some("mine"), Some("armed"))
    );
    let record = listed[0]["record"].as_str().unwrap();
    assert!(record.contains("/tllmprof-mine/"), "{record}");
    let captured = place.tllmprof("capture --run mine --steps 4 --html page.html");
    assert!(captured.status.success(), "{}", captured.err());
    assert!(
        captured.out().contains(": 4 iterations in"),
        "{}",
        captured.out()
    );
    assert!(place.path("page.html").metadata().unwrap().len() > 10_000);
    fs::write(place.path("end"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let socket = place.path("run/tllmprof").metadata().unwrap();
    assert_eq!(socket.mode() & 0o777, 0o700);
}

#[test]
fn a_process_without_a_record_fails_the_capture_of_all() {
    let place = Place::new();
    let mut with = place.start(&mut place.server("500"));
    let mut without = place.start(place.server("500").env("TLLMPROF_TRACE", ""));
    with.connect();
    without.connect();
    let both = format!("capture {} {} --steps 4", with.pid(), without.pid());
    let captured = place.tllmprof(&both);
    assert_eq!(captured.status.code(), Some(1), "{}", captured.err());
    assert!(
        captured.out().contains(": 4 iterations in"),
        "{}",
        captured.out()
    );
    with.end();
    without.end();
}

#[test]
fn a_copy_that_cannot_be_written_is_not_left_behind() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    server.connect();
    // The limit on the size of files (32 KiB) stands for a full disk. A record is larger; the report, which this test
    // receives in a file, is smaller.
    let limited = "ulimit -f 64; exec \"$0\" \"$@\"";
    let whole = place.command(&format!("capture {} --steps 4 -o copies", server.pid()));
    let mut command = common::command("sh");
    command
        .args(["-c", limited])
        .arg(whole.get_program())
        .args(whole.get_args())
        .envs(
            whole
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(place.0.folder());
    let captured = run(&mut command, TEST_TIMEOUT);
    assert_eq!(captured.status.code(), Some(1), "{}", captured.err());
    let said = captured.err();
    assert!(said.contains(": -o copies: no copy of "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // The copy could not be written, so the report was made from the record itself.
    assert!(
        captured.out().contains(": 4 iterations in"),
        "{}",
        captured.out()
    );
    assert!(
        !place.path("copies").exists(),
        "the command made the folder, and it is empty"
    );
    server.end();
}

#[test]
fn a_record_that_nobody_named_begins_with_the_first_capture() {
    let place = Place::new();
    let mut command = place.server("500");
    command.env_remove("TLLMPROF_TRACE");
    let mut server = place.start(&mut command);
    server.connect();
    let records = || {
        let all = fs::read_dir(place.0.folder()).unwrap().flatten();
        all.filter(|entry| entry.file_name().to_str().unwrap().ends_with(".tllmprof"))
            .count()
    };
    sleep(Duration::from_millis(100));
    assert_eq!(records(), 0);
    let captured = place.tllmprof(&format!("capture {} --steps 4", server.pid()));
    assert!(
        captured.status.success() && captured.out().contains(": 4 iterations in"),
        "{}",
        captured.err()
    );
    assert_eq!(records(), 1);
    server.end();
    // With an empty `TLLMPROF_TRACE`, the process makes no record. A capture then starts and stops the CUDA profiler,
    // but fails because there is nothing to report.
    fs::remove_file(place.path("end")).unwrap();
    let mut server = place.start(place.server("500").env("TLLMPROF_TRACE", ""));
    server.connect();
    let captured = place.tllmprof(&format!("capture {} --steps 4", server.pid()));
    assert!(
        captured
            .err()
            .contains("the process makes no record (wanted: "),
        "{}",
        captured.err()
    );
    assert_eq!(captured.status.code(), Some(1));
    server.end();
    assert_eq!(records(), 1);
    let taken = switches(&place.path("calls"), server.pid());
    assert!(
        taken.len() == 1 && taken[0].1 - taken[0].0 == 3,
        "{taken:?}"
    );
}
