//! Tests that `tllmprof run` names worker processes that lost `LD_PRELOAD`, that is, each process that loaded the CUDA
//! driver without the profiler's library.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Scratch, wait};

/// A C program that loads the library in its first argument, prints its process id, and ends when its input ends.
const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    if (argc < 2 || dlopen(argv[1], RTLD_NOW) == NULL)
        return 1;
    printf("%d\n", getpid());
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) == 0 ? 7 : 2;
}
"#;

/// Returns the number of times that the thread `name` has begun to wait. `None` if there is no such thread.
fn waits(process: u32, name: &str) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let is_it = status.lines().next() == Some(&format!("Name:\t{name}"));
        let mut lines = status.lines().filter(|_| is_it);
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse().ok()
    })
}

/// Waits until the command has searched all processes once more. Fails after three minutes.
fn await_a_look(child: &Child) {
    let begun = Instant::now();
    let mut first = None;
    loop {
        let now = waits(child.id(), "unreached");
        first = first.or(now);
        // A search that was running at the first check may have begun too early to find the program. That search ends
        // when the thread begins to wait once more. So the test waits for one more search, that is, until the thread
        // has begun to wait twice more. On a busy machine, the thread may also have to wait within a search, so the
        // test waits for another time.
        if now.zip(first).is_some_and(|(now, first)| now >= first + 3) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{now:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the program [`HOST`] under `tllmprof run` with the options `arguments`. `words` are the command that starts
/// `HOST`, and `loads` is the library that `HOST` loads. Returns the process id of `HOST`, and the messages of
/// `tllmprof run`.
fn run(scratch: &Scratch, arguments: &[&str], words: &[&str], loads: &str) -> (String, String) {
    let mut run: Command = scratch.tllmprof();
    run.arg("run").args(arguments).arg("--").args(words);
    let mut child = run
        .arg(scratch.path("host"))
        .arg(scratch.path(loads))
        .current_dir(scratch.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut number = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut number).unwrap();
    if !arguments.contains(&"off") {
        await_a_look(&child);
    }
    drop(child.stdin.take());
    let status = wait(&mut child).unwrap();
    assert_eq!(status.code(), Some(7));
    let mut said = String::new();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    (number.trim().to_owned(), said)
}

#[test]
fn a_process_with_the_driver_and_without_the_library_is_named() {
    let scratch = Scratch::new();
    let shared = ["-shared", "-fPIC"];
    scratch.compile("libcuda.so.1", "int cuInit(void) { return 0; }", &shared);
    scratch.compile("libother.so.1", "int cuInit(void) { return 0; }", &shared);
    scratch.compile("host", HOST, &[]);
    scratch.library();
    let warn = ["--no-summary", "--log", "warn"];
    for words in [
        &["env", "-i"][..],
        &["env", "-u", "LD_PRELOAD"],
        // In this row the program `HOST` is a child of a shell. In the next row `setsid` puts `HOST` into a new
        // process group.
        &["sh", "-c", "env -u LD_PRELOAD \"$@\"; exit $?", "sh"],
        &["setsid", "-w", "env", "-i"],
    ] {
        let (number, said) = run(&scratch, &warn, words, "libcuda.so.1");
        assert_eq!(
            said,
            format!(
                "tllmprof: process {number} (host) loaded the CUDA driver without the library: LD_PRELOAD was not passed \
                 on to it. Start it with the variables that tllmprof env prints, or attach to it at run time: tllmprof \
                 attach PID\n"
            ),
            "{words:?}"
        );
    }
    let lost = &["env", "-i"];
    for (arguments, words, loads) in [
        (&warn[..], &[][..], "libcuda.so.1"),
        (&warn, lost, "libother.so.1"),
        (&["--no-summary", "--log", "off"], lost, "libcuda.so.1"),
    ] {
        let (_, said) = run(&scratch, arguments, words, loads);
        assert_eq!(said, "", "{arguments:?} {words:?} {loads}");
    }
}
