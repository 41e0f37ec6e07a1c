//! Checks `attach` and `detach`, repeatedly, on a running CPython that started without the library.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::can_attach;
use crate::common::python::{Python, pythons};
use crate::common::repo;
use crate::host::{Host, LINKED, found_no_moment, random, times};
use crate::place::wait_until;

/// First arguments of `tests/attach/host.py`. Each names an activity of the main thread, either within its own steps
/// or while another thread makes steps.
const KINDS: [&str; 6] = ["sleeps", "computes", "holds", "waits", "contends", "forks"];
/// Options for `tllmprof attach`: the rule that makes `Engine.step` a step, and the recording of garbage collections,
/// GIL waits and Python stacks.
const ALL: &str = "--step py:__main__:Engine.step --gc --gil --stacks=1000";

/// Returns the CPythons with a GIL, which are the ones that the library supports.
fn with_gil() -> impl Iterator<Item = &'static Python> {
    pythons().iter().filter(|python| python.has_gil)
}

/// Starts `tests/attach/host.py`, and waits for its first step.
fn start(python: &Python, arguments: &str) -> Host {
    let program = repo().join("tests/attach/host.py");
    let fixtures = repo().join("tests/fixtures");
    let variables = [
        ("FIXTURES", fixtures.to_str().unwrap()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ];
    let arguments = format!("{} {arguments}", program.display());
    Host::started(&python.path, &arguments, &variables)
}

/// Asks the program `host.py` what traces of the library it finds in its own process. Returns its answer as JSON.
fn state(host: &Host) -> Value {
    let (look, state) = (host.path("look"), host.path("state"));
    fs::write(look, "").unwrap();
    wait_until("what it says", || state.exists());
    let text = fs::read_to_string(&state).unwrap();
    fs::remove_file(state).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn tllmprof(host: &Host, python: &Python, arguments: &str) -> (String, String) {
    let done = host.tllmprof(arguments);
    let (out, said) = (done.out(), done.err());
    assert!(done.status.success(), "{python} {arguments}: {out}{said}");
    (out, said)
}

/// Returns the number of launches in each period in which the profiler was on according to the driver's log. It
/// equals the number of steps, because each step makes one launch.
fn switched(host: &Host) -> Vec<u64> {
    host.switches().iter().map(|(a, b)| b - a + 1).collect()
}

#[test]
fn a_python_is_captured_exactly_and_nothing_is_left_in_it() {
    if !can_attach() {
        return;
    }
    for python in with_gil() {
        for kind in KINDS {
            let mut host = start(python, kind);
            let before = state(&host);
            let (out, said) = tllmprof(&host, python, &format!("attach PID {ALL} --steps 10"));
            assert!(
                out.contains("10 iterations"),
                "{python} {kind}: {out}{said}"
            );
            assert_ne!(
                state(&host),
                before,
                "{python} {kind}: nothing was seen there"
            );
            let is_there = host.tllmprof("attach PID --gc");
            assert_eq!(is_there.status.code(), Some(1), "{}", is_there.err());
            tllmprof(&host, python, "detach PID");
            assert_eq!(state(&host), before, "{python} {kind}");
            tllmprof(&host, python, "attach PID --steps 25");
            tllmprof(&host, python, "detach PID");
            assert_eq!(state(&host), before, "{python} {kind}");
            let lengths: Vec<_> = host.windows().iter().map(|(a, b)| b - a + 1).collect();
            assert_eq!(lengths, [10, 25], "{python} {kind}");
            assert_eq!(switched(&host), [10, 25], "{python} {kind}");
            let report = host.report();
            let count = |what: &str| {
                let all = report[what].as_array().into_iter().flatten();
                all.filter_map(|one| one["count"].as_u64()).sum::<u64>()
            };
            // The program collects garbage after every fifth step. A collection after a window's last step is outside
            // the window. So there is at least one collection in the window of 10 steps, and at least four in that of
            // 25 steps.
            assert!(count("gc") >= 5, "{python} {kind}: {}", report["gc"]);
            if kind == "contends" && python.has_gil {
                let waits = &report["gil_wait"];
                assert!(waits["count"].as_u64() > Some(0), "{python}: {waits}");
            }
            host.end();
        }
    }
}

#[test]
fn stacks_are_sampled() {
    if !can_attach() {
        return;
    }
    for python in with_gil() {
        let mut host = start(python, "computes");
        tllmprof(&host, python, &format!("attach PID {ALL} --steps 1500"));
        let report = host.report();
        let samples = &report["stacks"]["counts"]["samples"];
        assert!(samples.as_u64() > Some(0), "{python}: {}", report["stacks"]);
        host.end();
    }
}

#[test]
fn known_engines_and_their_batches_are_found() {
    if !can_attach() {
        return;
    }
    for python in with_gil() {
        let mut host = start(python, "serves");
        let (out, said) = tllmprof(&host, python, "attach PID --steps 10");
        assert!(out.contains("vLLM"), "{python}: {out}{said}");
        assert_eq!(switched(&host), [10], "{python}");
        let report = host.report();
        for iteration in report["windows"][0]["iterations"].as_array().unwrap() {
            let batch = &iteration["batch"];
            assert_eq!(
                (&batch["requests"], &batch["tokens"]),
                (&2.into(), &7.into()),
                "{python}: {batch}"
            );
        }
        host.end();
    }
}

/// Makes the program's thread hold the GIL until [`unblock`] is called.
fn block(host: &Host) {
    let made = Command::new("mkfifo").arg(host.path("block")).status();
    assert!(made.unwrap().success());
    let stat = format!("/proc/{}/stat", host.pid());
    let waits = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
    wait_until("the call", || !host.path("block").exists() && waits());
}

fn unblock(host: &Host) {
    let mut fifo = fs::File::options()
        .write(true)
        .open(host.path("blocks"))
        .unwrap();
    fifo.write_all(b"x").unwrap();
}

#[test]
fn a_thread_that_holds_the_gil_for_long_is_waited_for_elsewhere() {
    if !can_attach() {
        return;
    }
    let is_some = |python: &&Python| python.has_gil && matches!(python.version.1, 8 | 11 | 12 | 14);
    for python in pythons().iter().filter(is_some) {
        let mut host = start(python, "blocks");
        block(&host);
        let said = host
            .tllmprof("attach PID --step py:__main__:Engine.step")
            .err();
        assert!(
            said.contains("a thread holds Python's GIL"),
            "{python}: {said}"
        );
        unblock(&host);
        wait_until("its first call", || host.states() == ["armed"]);
        tllmprof(&host, python, "capture PID --steps 8");
        assert_eq!(switched(&host), [8], "{python}");
        block(&host);
        let refused = host.tllmprof("detach PID");
        let said = refused.err();
        assert!(
            said.contains("Python's GIL for long: try again"),
            "{python}: {said}"
        );
        unblock(&host);
        wait_until("the detach", || {
            host.tllmprof("detach PID").status.success()
        });
        host.end();
    }
}

#[test]
fn a_python_that_ends_meanwhile_ends_as_without() {
    if !can_attach() {
        return;
    }
    for python in with_gil() {
        let alone = start(python, "exits 40").finish_any();
        assert_eq!(alone.0.code(), Some(3), "{python}: {}", alone.2);
        for turn in 0..times(40) / 10 {
            let host = start(python, "exits 40");
            sleep(Duration::from_micros(random(80_000)));
            let attached = host.tllmprof(&format!("attach PID {ALL}"));
            let said = attached.err();
            let ended = host.finish_any();
            assert_eq!(ended, alone, "{python} {turn}: {said}");
        }
    }
}

#[test]
fn a_python_is_attached_at_any_moment() {
    if !can_attach() {
        return;
    }
    let all: Vec<_> = with_gil().collect();
    for turn in 0..times(12) {
        let python = all[turn % all.len()];
        let kind = KINDS[turn / all.len() % KINDS.len()];
        let mut host = start(python, kind);
        for _ in 0..2 {
            sleep(Duration::from_micros(random(30_000)));
            let attached = host.tllmprof(&format!("attach PID {ALL} --steps 3"));
            let again = host.tllmprof("attach PID --steps 3");
            let said = attached.err() + &again.err();
            assert!(
                attached.status.success() || again.status.success() || found_no_moment(&said),
                "{python} {kind}: {said}"
            );
            host.tllmprof("detach PID");
        }
        host.end();
    }
}

#[test]
fn a_process_without_python_has_no_events_of_it() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "0", &[]);
    let attached = host.tllmprof("attach PID --step cudaGraphLaunch --gc");
    assert!(attached.status.success(), "{}", attached.err());
    let said = attached.err();
    assert!(
        said.contains("--gc: nothing is recorded for it: no CPython"),
        "{said}"
    );
    host.end();
}
