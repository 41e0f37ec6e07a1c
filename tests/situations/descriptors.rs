//! Checks programs whose standard error is closed, broken, or replaced by another file.

use std::fs;

use super::twice::{Both, Situation, start, stop};
use crate::common::{Scratch, can_exec, repo};

/// Runs the program without and with the library. Asserts that the file which the program writes in place of standard
/// error (PATH in `takes_descriptor_2.c`) has the same content in both runs. Returns this content and both runs.
#[track_caller]
fn file_of(how: &str) -> (String, Both) {
    let scratch = Scratch::new("descriptor");
    let file = scratch.path("file");
    let situation = Situation::new("takes_descriptor_2")
        .args(format!("{how} {}", file.display()))
        .window("5-9", "cudaGraphLaunch");
    let plain = situation.run_plain();
    assert!(plain.output.status.success(), "{how}");
    let wanted = fs::read_to_string(&file).unwrap_or_default();
    let both = situation.run();
    assert_eq!(
        fs::read_to_string(&file).unwrap_or_default(),
        wanted,
        "{how}"
    );
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)], "{how}");
    both.assert_same_calls();
    (wanted, both)
}

#[test]
fn the_programs_own_file_takes_descriptor_2() {
    for how in ["file", "exec-file"] {
        let (wanted, _) = file_of(how);
        assert_eq!(wanted.lines().count(), 40);
    }
}

#[test]
fn the_programs_own_log_takes_descriptor_2() {
    let (wanted, _) = file_of("log");
    assert_eq!(wanted.lines().count(), 40);
}

#[test]
fn the_programs_own_pipe_takes_descriptor_2() {
    let (wanted, _) = file_of("pipe");
    assert_eq!(wanted.lines().count(), 40);
}

#[test]
fn the_programs_own_socket_takes_descriptor_2() {
    let (wanted, _) = file_of("socket");
    assert_eq!(wanted.lines().count(), 40);
}

#[test]
fn a_forked_child_redirects_its_standard_error() {
    for who in ["works", "both"] {
        let scratch = Scratch::new("child");
        let log = scratch.path("log");
        Situation::new("forks")
            .args(format!("--who {who} --child-log {}", log.display()))
            .window("5-9", "cudaGraphLaunch")
            .run();
        let lines = fs::read_to_string(&log).unwrap();
        assert!(
            lines.contains("tllmprof: window 5-9 opened at iteration 5"),
            "{who}: {lines}"
        );
        assert!(
            lines.contains("tllmprof: window 5-9 captured: 20 iterations"),
            "{who}: {lines}"
        );
    }
}

#[test]
fn the_program_redirects_its_standard_error() {
    for how in ["dup2", "freopen", "exec-dup2", "spawn"] {
        if !can_exec() && matches!(how, "exec-dup2" | "spawn") {
            continue;
        }
        let scratch = Scratch::new("redirected");
        let file = scratch.path("file");
        let both = Situation::new("takes_descriptor_2")
            .args(format!("{how} {}", file.display()))
            .window("5-9", "cudaGraphLaunch")
            .run();
        let lines = fs::read_to_string(&file).unwrap();
        assert!(
            lines.contains("tllmprof: window 5-9 opened at iteration 5"),
            "{how}: {lines}"
        );
        assert!(
            lines.contains("tllmprof: window 5-9 captured: 40 iterations"),
            "{how}: {lines}"
        );
        assert_eq!(both.switches(), [start(5, 5), stop(10, 10)], "{how}");
    }
}

#[test]
fn nobody_reads_standard_error() {
    file_of("exec-dead-pipe");
}

#[test]
fn the_program_closes_its_descriptors() {
    for program in ["steps_shared12", "steps_static", "steps_driver_dlsym"] {
        for ending in ["return", "_exit"] {
            let scratch = Scratch::new("closed");
            let result = scratch.path("result");
            let both = Situation::new(program)
                .args(format!(
                    "--close-fds --exit {ending} --result {}",
                    result.display()
                ))
                .window("5-9,30-", "cudaGraphLaunch")
                .run();
            let text = fs::read_to_string(&result).expect("the program's result");
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text}");
            assert_eq!(lines[0], lines[1], "{program}");
            assert!(lines[0].ends_with("fds closed"), "{text}");
            let expected = [start(5, 5), stop(10, 10), start(30, 30), stop(40, 40)];
            assert_eq!(both.switches(), expected, "{program}");
            both.assert_same_calls();
        }
    }
}

#[test]
fn descriptors_are_closed_before_the_program_starts() {
    let script = repo().join("tests/fixtures/closed_descriptors.sh");
    let scratch = Scratch::new("closed");
    let result = scratch.path("result");
    let steps = crate::common::standin().join("bin/steps_shared12");
    let both = Situation::new("/bin/sh")
        .args(format!(
            "{} {} --close-fds --result {}",
            script.display(),
            steps.display(),
            result.display()
        ))
        .window("5-9", "cudaGraphLaunch")
        .run();
    let text = fs::read_to_string(&result).expect("the program's result");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{text}");
    assert!(lines[0].ends_with("fds closed"), "{text}");
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
}
