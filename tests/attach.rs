//! Checks that `tllmprof attach` can load the library into a running program at any moment without harm.

mod common;
#[path = "attach/contained.rs"]
mod contained;
#[path = "attach/engine.rs"]
mod engine;
#[path = "attach/host.rs"]
mod host;
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "live/place.rs"]
mod place;
#[path = "attach/python.rs"]
mod python;
#[path = "attach/refused.rs"]
mod refused;

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use common::{Built, build_once, is_x86_64, run, shim, skipped, tllmprof};
use host::{Host, LINKED, Linkage, POINTERS, found_no_moment, random, times};
use place::TEST_TIMEOUT;

/// Returns true if this machine supports `tllmprof attach`: its processor is x86-64, and no emulator
/// (`TLLMPROF_TEST_RUNNER`) runs the tests' programs.
fn can_attach() -> bool {
    if is_x86_64() && std::env::var_os("TLLMPROF_TEST_RUNNER").is_none() {
        return true;
    }
    skipped("attach works only on x86-64");
    false
}

/// Captures two windows of a running program, of 10 and 5 launches. After a detach and a second attach, captures a
/// window of 7 launches. Asserts the number of launches of each window in the record, and for the first two also in the
/// stand-in driver's log. Asserts that the first attach prints the text `hooked`.
#[track_caller]
fn is_captured_exactly(linkage: Linkage, variables: &[(&str, &str)], hooked: &str) {
    let mut host = Host::start(linkage, "2", variables);
    let attached = host.tllmprof("attach PID --step cudaGraphLaunch --steps 10");
    let said = attached.err();
    assert!(attached.status.success(), "{linkage:?}: {said}");
    assert!(said.contains(hooked), "{linkage:?}: {said}");
    assert!(
        attached.out().contains("10 iterations"),
        "{linkage:?}: {}",
        attached.out()
    );
    let captured = host.tllmprof("capture PID --steps 5");
    assert!(captured.status.success(), "{linkage:?}: {}", captured.err());
    let windows = host.windows();
    let lengths: Vec<_> = windows
        .iter()
        .map(|(first, last)| last - first + 1)
        .collect();
    assert_eq!(lengths, [10, 5], "{linkage:?}");
    // According to the driver's log, the profiler was on for as many launches as each window in the record has.
    let switched: Vec<_> = host.switches().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(switched, [10, 5], "{linkage:?}");
    // After a detach and a new attach, a capture works as before.
    assert!(host.tllmprof("detach PID").status.success(), "{linkage:?}");
    let attached = host.tllmprof("attach PID --steps 7");
    assert!(attached.status.success(), "{linkage:?}: {}", attached.err());
    let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(lengths, [10, 5, 7], "{linkage:?}");
    host.end();
}

#[test]
fn a_program_is_captured_exactly_however_it_reaches_cuda() {
    if !can_attach() {
        return;
    }
    for linkage in LINKED.into_iter().chain(POINTERS) {
        is_captured_exactly(linkage, &[], "66 of 66 functions of the driver are hooked");
    }
}

#[test]
fn the_drivers_functions_may_begin_in_many_ways() {
    if !can_attach() {
        return;
    }
    let folders = shapes();
    let variables = [("LD_LIBRARY_PATH", folders.as_str())];
    for linkage in LINKED.into_iter().chain(POINTERS) {
        // The stand-in driver that this test uses has 66 functions, two of which cannot be hooked: one begins with a
        // call instruction, and the other jumps back to its second instruction.
        is_captured_exactly(
            linkage,
            &variables,
            "64 of 66 functions of the driver are hooked",
        );
    }
}

/// Returns a library path whose first folder has a special stand-in driver: its functions begin with unusual
/// instructions, which are hard to patch.
fn shapes() -> String {
    let standin = common::standin();
    format!("{}:{}", standin.join("shapes").display(), standin.display())
}

#[test]
fn a_thread_that_a_signal_has_interrupted_at_the_beginning_of_a_function_goes_on_there() {
    static BUILT: Built = Built::new();
    if !can_attach() {
        return;
    }
    let program = build_once(&BUILT, "attach/inside.c", &["-ldl"]);
    let folders = shapes();
    for arguments in ["", "altstack"] {
        let mut host = Host::started(program, arguments, &[("LD_LIBRARY_PATH", &folders)]);
        let attach = |host: &Host| host.tllmprof("attach PID").err();
        // A function cannot be hooked while a thread is at the function's beginning. On a busy machine, the command may
        // run out of time before it has read the stacks of all threads, and then gives another reason. So the test
        // attaches until a command finds the thread.
        let why = "63 of 66 functions of the driver are hooked (a thread was at the beginning";
        place::wait_until("a thread to be found there", || {
            let said = attach(&host);
            assert!(!said.contains("64 of 66"), "{arguments}: {said}");
            said.contains(why)
        });
        fs::write(host.path("go_on"), "").unwrap();
        place::wait_until("the first call to be over", || {
            attach(&host).contains("64 of 66 functions of the driver are hooked")
        });
        host.end();
    }
}

#[test]
fn jumps_that_a_command_did_not_write_are_written_by_the_next() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(POINTERS[0], "2", &[]);
    let mut attach = host
        .command("attach PID")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    place::wait_until("the library", || host.is_loaded());
    attach.kill().unwrap();
    attach.wait().unwrap();
    host.assert_free();
    place::wait_until("the second attach", || {
        let said = host.tllmprof("attach PID").err();
        host.states() == ["armed"] && !said.contains("preloaded")
    });
    let captured = host.tllmprof("capture PID --steps 6");
    assert!(captured.status.success(), "{}", captured.err());
    let lengths: Vec<_> = host.switches().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(lengths, [6]);
    host.end();
}

#[test]
fn what_a_program_looks_up_after_an_attach_is_seen() {
    if !can_attach() {
        return;
    }
    for linkage in [LINKED[0], LINKED[2], POINTERS[0], POINTERS[2], POINTERS[3]] {
        let mut host = Host::start(linkage, "2", &[]);
        let attached = host.tllmprof("attach PID --step cuCtxSynchronize");
        assert!(attached.status.success(), "{linkage:?}: {}", attached.err());
        fs::write(host.path("look_up"), "").unwrap();
        place::wait_until("the first call", || host.states() == ["armed"]);
        let captured = host.tllmprof("capture PID --steps 6");
        assert!(captured.status.success(), "{linkage:?}: {}", captured.err());
        let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
        assert_eq!(lengths, [6], "{linkage:?}");
        assert!(host.tllmprof("detach PID").status.success());
        host.end();
    }
}

#[test]
fn what_was_detached_is_idle_until_it_is_attached_again() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "2", &[]);
    let threads = host.threads();
    assert!(
        host.tllmprof("attach PID --step cudaGraphLaunch")
            .status
            .success()
    );
    assert_eq!(host.states(), ["armed"]);
    for turn in 0..5 {
        let detached = host.tllmprof("detach PID");
        assert!(detached.status.success(), "{turn}: {}", detached.err());
        assert!(host.states().is_empty(), "{turn}");
        let refused = host.tllmprof("capture PID --steps 2");
        assert!(
            refused.err().contains("tllmprof attach"),
            "{turn}: {}",
            refused.err()
        );
        assert!(
            host.tllmprof("detach PID")
                .err()
                .contains("detached already")
        );
        // In the program, the library starts at most two threads. One listens on the control socket. The other is the
        // worker (crates/capture/src/worker.rs), which is started with the first window.
        assert!(host.threads() <= threads + 2, "{turn}");
        let attached = host.tllmprof("attach PID --steps 4");
        assert!(attached.status.success(), "{turn}: {}", attached.err());
        assert!(
            attached.err().contains("no thread was stopped"),
            "{}",
            attached.err()
        );
        assert_eq!(host.states(), ["armed"], "{turn}");
    }
    let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(lengths, [4; 5]);
    host.end();
}

#[test]
fn what_is_detached_before_its_first_call_is_idle_until_it_is_attached_again() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "2", &[("LATER", "1")]);
    let threads = host.threads();
    let says = |args: &str, status: i32, why: &str| {
        let ended = host.tllmprof(args);
        assert_eq!(ended.status.code(), Some(status), "{args}: {}", ended.err());
        assert!(ended.err().contains(why), "{args}: {}", ended.err());
        ended.err().lines().count()
    };
    says("detach PID", 1, "it runs without the library");
    let attach = "attach PID --step cudaGraphLaunch";
    says(attach, 0, "none of its CUDA calls has been seen yet");
    for detach in ["detach PID", "detach --engine PID"] {
        let lines = says(detach, 0, "detached; the library stays loaded and idle");
        assert_eq!(lines, 1);
        assert_eq!(says("detach PID", 1, "the library is detached already"), 1);
        says("attach PID", 0, "attached again; 1 thread stopped");
    }
    says("detach PID", 0, "detached");
    fs::write(host.path("begin"), "").unwrap();
    sleep(Duration::from_millis(300));
    assert!(host.states().is_empty() && host.threads() == threads);
    says(
        attach,
        0,
        "--step: the library keeps what it was first attached with",
    );
    assert_eq!(host.states(), ["armed"]);
    says("capture PID --steps 6", 0, "");
    says("detach PID", 0, "detached");
    let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(lengths, [6]);
    host.end();
}

#[test]
fn a_capture_with_the_attach_waits_for_the_first_call() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "2", &[("LATER", "1")]);
    let attach = "attach PID --step cudaGraphLaunch --steps 5";
    let given_up = host.tllmprof(&format!("{attach} --wait 100ms"));
    assert_eq!(given_up.status.code(), Some(1), "{}", given_up.err());
    assert!(
        given_up
            .err()
            .contains("none of its CUDA calls has been seen yet"),
        "{}",
        given_up.err()
    );
    let waits = host
        .command("attach PID --steps 5")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(300));
    fs::write(host.path("begin"), "").unwrap();
    let ended = waits.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{err}");
    let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
    assert_eq!(lengths, [5], "{err}");
    host.end();
}

#[test]
fn a_window_that_is_open_is_closed_by_detach() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "0", &[]);
    assert!(
        host.tllmprof("attach PID --step cudaGraphLaunch")
            .status
            .success()
    );
    let mut capture = host
        .command("capture PID --steps 1000000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    place::wait_until("the window", || host.states() == ["open"]);
    let detached = host.tllmprof("detach PID");
    assert!(detached.status.success(), "{}", detached.err());
    capture.wait().unwrap();
    assert_eq!(host.switches().len(), 1);
    host.end();
}

#[test]
fn a_window_that_is_open_is_closed_where_the_program_ends() {
    if !can_attach() {
        return;
    }
    for variables in [&[][..], &[("AT_ONCE", "1")]] {
        let mut host = Host::start(LINKED[0], "0", variables);
        let attached = host.tllmprof("attach PID --step cudaGraphLaunch");
        assert!(attached.status.success(), "{}", attached.err());
        let mut capture = host
            .command("capture PID --steps 1000000")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        place::wait_until("the window", || host.states() == ["open"]);
        host.end();
        capture.wait().unwrap();
        assert_eq!(host.switches().len(), 1, "{variables:?}");
        assert_eq!(host.windows().len(), 1, "{variables:?}");
    }
}

#[test]
fn the_variables_of_the_process_are_not_those_of_the_library() {
    if !can_attach() {
        return;
    }
    // The program has the library's environment variables but did not preload the library. That is usual if the
    // variables are meant for the program's children.
    let variables = [("TLLMPROF_START_STOP", "0-"), ("TLLMPROF_STEP", "nonsense")];
    let mut host = Host::start(LINKED[0], "0", &variables);
    let attached = host.tllmprof("attach PID --step cudaGraphLaunch --steps 3");
    assert!(attached.status.success(), "{}", attached.err());
    assert_eq!(host.windows().len(), 1);
    host.end();
}

#[test]
fn a_record_that_could_not_be_written_is_refused_before_the_library_is_loaded() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "0", &[]);
    for (trace, why) in [
        ("/nope/x", "there is no folder /nope"),
        ("/proc/x", "no file can be written to /proc"),
        ("/usr", "it is a folder (wanted: a file's name)"),
    ] {
        let refused = host.tllmprof(&format!(
            "attach PID --step cudaGraphLaunch --trace {trace}"
        ));
        let said = refused.err();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("--trace {trace}: {why}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // The refused attaches have not loaded the library, so another attach may give another path for the record.
    let attached =
        host.tllmprof("attach PID --step cudaGraphLaunch --steps 3 --trace other.tllmprof");
    assert!(attached.status.success(), "{}", attached.err());
    host.end();
}

#[test]
fn a_program_under_load_is_attached_at_any_moment() {
    if !can_attach() {
        return;
    }
    let mut refused = 0;
    let count = times(12);
    for turn in 0..count {
        let all = [&LINKED[..], &POINTERS].concat();
        let linkage = all[turn % all.len()];
        let folders = shapes();
        let variables = [("LD_LIBRARY_PATH", folders.as_str())];
        let mut host = Host::start(linkage, "16", &variables[..turn % 2]);
        sleep(Duration::from_micros(random(30_000)));
        let attached = host.once("attach PID --step cudaGraphLaunch --steps 3");
        if !attached.status.success() {
            let said = attached.err();
            assert!(found_no_moment(&said), "{turn}: {said}");
            // On a busy machine, the threads may not stop in time. But not all of several attempts fail for that
            // reason.
            let again = host.tllmprof("attach PID --step cudaGraphLaunch --steps 3");
            assert!(again.status.success(), "{turn}: {said}{}", again.err());
            println!("{turn}: {said}");
            refused += 1;
        }
        host.end();
    }
    assert!(
        refused * 3 <= count,
        "{refused} of {count} had no safe point"
    );
}

#[test]
fn a_thread_goes_on_where_it_was_whatever_it_was_doing() {
    if !can_attach() {
        return;
    }
    for kind in ["0", "1", "2", "3", "4", "5"] {
        for _ in 0..times(12) / 3 {
            let mut host = Host::start(LINKED[0], "0", &[("KIND", kind)]);
            sleep(Duration::from_micros(random(10_000)));
            let attach = host.command("attach PID").stderr(Stdio::piped()).spawn();
            let mut attach = attach.unwrap();
            // With KIND, the program makes no CUDA call. So once the command `attach` has loaded the library, the
            // command waits for the first CUDA call until it is killed below.
            place::wait_until("the attach", || {
                host.is_loaded() || attach.try_wait().unwrap().is_some()
            });
            sleep(Duration::from_millis(50));
            attach.kill().unwrap();
            let said = attach.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&said.stderr);
            assert!(host.is_loaded() || found_no_moment(&said), "{kind}: {said}");
            host.end();
        }
    }
}

#[test]
fn a_command_that_is_killed_leaves_no_thread_stopped() {
    if !can_attach() {
        return;
    }
    // In each round, an attach is killed after a random delay of up to 50 ms. So over all rounds, attaches are killed
    // at different stages.
    let (mut host, mut killed) = (Host::start(LINKED[0], "6", &[]), 0);
    for turn in 0..times(24) {
        // An attach that is killed after it has allocated memory in the host leaves that memory allocated, so every
        // fourth round starts a new host.
        if turn % 4 == 0 {
            host.end();
            let all = [&LINKED[..], &POINTERS].concat();
            host = Host::start(all[turn / 4 % all.len()], "6", &[]);
        }
        let mut attach = host
            .command("attach PID")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_micros(random(50_000)));
        killed += usize::from(attach.try_wait().unwrap().is_none());
        attach.kill().unwrap();
        attach.wait().unwrap();
        host.assert_free();
    }
    assert!(killed > 0);
    host.end();
}

#[test]
fn the_output_and_the_status_are_as_without() {
    if !can_attach() {
        return;
    }
    // The programs run for 15 seconds, which are enough for an attach and a detach on a busy machine.
    let [alone, host] = [(); 2].map(|()| Host::start_for(LINKED[0], "6 15000"));
    let attached = host.tllmprof("attach PID --steps 10 --step cudaGraphLaunch");
    assert!(attached.status.success(), "{}", attached.err());
    assert!(host.tllmprof("detach PID").status.success());
    assert_eq!(host.finish(), alone.finish());
}

#[test]
fn a_rule_that_takes_a_start_is_refused_before_anything_is_done() {
    for (arguments, why) in [
        ("attach 1 --step py:a", "--step \"py:a\": "),
        (
            "attach 1 --step cuFork",
            "(wanted: auto, a CUDA call, sym:REGEX, or py:MODULE:QUALNAME)",
        ),
        ("attach 1 --stacks=5000", "--stacks \"5000\": "),
        (
            "attach 1 --step nvtx:a",
            "from the start of a process alone",
        ),
        ("attach 1 --step sym:(", "--step \"sym:(\": "),
        ("attach 1 --steps 0", "at least 1"),
    ] {
        let mut command = common::command(tllmprof());
        command
            .args(arguments.split(' '))
            .env("TLLMPROF_LIB", shim());
        let refused = run(&mut command, TEST_TIMEOUT);
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{arguments}: {}",
            refused.err()
        );
        assert!(
            refused.err().contains(why),
            "{arguments}: {}",
            refused.err()
        );
    }
}
