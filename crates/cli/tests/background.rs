//! Tests that `tllmprof run` finds the processes that a program leaves running in the background.

mod common;

use std::fs;

use common::{Scratch, finish, plain};

/// If a program leaves a process running in the background, the folder of the run is kept, in case that process writes
/// a record. The command reports the process.
#[test]
fn the_record_of_a_program_in_the_background_has_a_place() {
    // The background process ends when this test opens the other end of the FIFO, or after its timeout.
    let script = "(setsid timeout 60 cat fifo >/dev/null 2>&1 & echo $!)";
    has_a_place(script);
    // The background process is the last of 200 processes, each of which starts the next one and ends at once. A search
    // that reads the list of all processes only once may miss this last process.
    let script = "
        chain() { if [ $1 -gt 0 ]; then chain $(($1 - 1)) & else exec timeout 60 cat fifo; fi; }
        chain 200 >/dev/null 2>&1";
    for _ in 0..8 {
        has_a_place(script);
    }
}

/// In a container with few processes, the numbers of a chain of processes begin again at the lowest one, so that a search
/// in the order of the numbers misses the process that comes next.
#[test]
fn a_process_in_the_background_is_found_if_numbers_begin_again() {
    const RUNS: usize = 50;
    let scratch = Scratch::new();
    scratch.library();
    let mut unshare = plain("unshare".as_ref());
    unshare.args(["-pf", "--mount-proc", "--kill-child", "bash", "-c"]);
    unshare.arg(
        r#"
        mkfifo fifo || exit
        chain='chain() { if [ $1 -gt 0 ]; then chain $(($1 - 1)) & else exec timeout 60 cat fifo; fi; }; chain 200'
        most=$(cat /proc/sys/kernel/pid_max)
        for run in $(seq "$1"); do
            echo $((most - 20 - RANDOM % 190)) > /proc/sys/kernel/ns_last_pid || exit
            "$0" run --run "run$run" -- sh -c "$chain >/dev/null 2>&1" 2>said
            # The background process may start a child meanwhile, and then ends with this one.
            (exec 3<> fifo; sleep 0.05)
            grep -q 'still run' said && echo found || cat said
        done
        "#,
    );
    let command = scratch.tllmprof();
    unshare.arg(command.get_program()).arg(RUNS.to_string());
    for (name, value) in command.get_envs() {
        unshare.env(name, value.unwrap_or_default());
    }
    let ended = finish(unshare.current_dir(scratch.path(".")));
    if ended.stdout.is_empty() {
        eprintln!("skipped: no process namespaces here (they need root)");
        return;
    }
    assert_eq!(ended.stdout, "found\n".repeat(RUNS), "{ended:?}");
}

/// Runs a program that leaves a process in the background. This process ends when another process opens `fifo`.
#[track_caller]
fn has_a_place(script: &str) {
    let scratch = Scratch::new();
    scratch.library();
    let fifo = scratch.path("fifo");
    let made = finish(plain("mkfifo".as_ref()).arg(&fifo));
    assert!(made.status.success());
    let mut command = scratch.tllmprof();
    command.args(["run", "--run", "daemon", "--", "sh", "-c", script]);
    let ended = finish(command.current_dir(scratch.path(".")));
    let there = scratch.path("tllmprof-daemon").is_dir();
    drop(fs::File::options().read(true).write(true).open(&fifo));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(there, "{ended:?}");
    let said = &ended.stderr;
    assert!(said.starts_with("tllmprof: process "), "{said}");
    // The process does not use the driver, so the message does not say that it will write a record. There are two
    // processes if `timeout` has already started its child.
    let ends = [" of the run still runs", " of the run still run"];
    assert!(
        ends.iter().any(|end| said.trim_end().ends_with(end)),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
