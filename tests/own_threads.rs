//! Checks the library's own threads in a host process, including when the process ends or forbids system calls with a
//! seccomp filter.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{
    Built, Output, Scratch, build, build_once, built_command, repo, run, shim, skipped, standin,
};
use tllmprof_record::{Ended, Reader};
use tllmprof_report::{Process, State};

const TIMEOUT: Duration = Duration::from_secs(300);
const RUNTIME: &[&str] = &["-Wl,--no-as-needed", "-l:libcudart.so.12"];
/// The exit status of `host` if the kernel does not accept a seccomp filter, and of `traced` if the kernel forbids
/// tracing.
const NOT_POSSIBLE: i32 = 77;
/// The start of the message that no more windows open because the program installs a seccomp filter.
const REFUSED: &str =
    "no window opens and nothing is recorded from here on: the program installs a filter";

/// Returns the path of the host program, built once from `tests/own_threads/host.c`. Its arguments are the actions that
/// it takes.
fn host() -> &'static Path {
    static HOST: Built = Built::new();
    build_once(&HOST, "own_threads/host.c", RUNTIME)
}

/// Returns the command that runs the host program in the given folder. The library is not preloaded; [`with`] adds it.
fn command(folder: &Scratch, actions: &str) -> Command {
    let mut command = built_command(host());
    command
        .env("LD_LIBRARY_PATH", standin())
        .current_dir(folder.folder())
        .args(actions.split_whitespace());
    command
}

/// Adds the preloaded libraries `preload`, and `variables`, which are written as `NAME=VALUE …`. In a value, `HERE`
/// stands for the command's folder.
fn with(command: &mut Command, preload: &str, variables: &str) {
    command
        .env("LD_PRELOAD", preload)
        .env("TLLMPROF_STEP", "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "record.tllmprof");
    for variable in variables.split_whitespace() {
        let (name, value) = variable.split_once('=').unwrap();
        let here = command.get_current_dir().and_then(Path::to_str);
        let value = value.replace("HERE", here.unwrap());
        command.env(name, value);
    }
}

fn library() -> String {
    shim().to_str().unwrap().to_owned()
}

/// Returns the three things that must be the same with and without the library: the exit status, the signal that ended
/// the process, and the standard output.
fn seen(output: &Output) -> (Option<i32>, Option<i32>, String) {
    (output.status.code(), output.status.signal(), output.out())
}

/// Runs the host program without and with the library, and asserts that it does the same. Returns `None` if the kernel
/// does not accept a seccomp filter.
#[track_caller]
fn run_both(variables: &str, actions: &str) -> Option<(Scratch, Output)> {
    let folder = Scratch::new("own-threads");
    let plain = run(&mut command(&folder, actions), TIMEOUT);
    if plain.status.code() == Some(NOT_POSSIBLE) {
        skipped("no filter may be set here");
        return None;
    }
    let mut preloaded = command(&folder, actions);
    with(&mut preloaded, &library(), variables);
    let preloaded = run(&mut preloaded, TIMEOUT);
    let said = preloaded.err();
    assert_eq!(
        seen(&preloaded),
        seen(&plain),
        "{variables}: {actions}\n{said}"
    );
    Some((folder, preloaded))
}

/// Returns the iterations of each window in the record. Asserts that the process ended in order.
#[track_caller]
fn recorded(folder: &Scratch) -> Vec<Vec<u64>> {
    let path = folder.path("record.tllmprof");
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.header().ended, Some(Ended::InOrder));
    let process = Process::read(path, &reader).unwrap();
    assert_eq!(process.state(), State::Whole, "{}", process.record.damage);
    let numbers =
        |window: &tllmprof_report::Window| window.iterations.iter().map(|it| it.n).collect();
    process.windows.iter().map(numbers).collect()
}

fn lines(output: &Output, beginning: &str) -> usize {
    let begins = |line: &&str| {
        line.strip_prefix("tllmprof: ")
            .is_some_and(|line| line.starts_with(beginning))
    };
    output.err().lines().filter(begins).count()
}

#[test]
fn another_library_may_replace_any_function_and_take_its_state_back_at_the_end() {
    let folder = Scratch::new("own-threads-foreign");
    let foreign = folder.path("foreign.so");
    let options = ["-shared", "-fPIC", "-ftls-model=initial-exec", "-ldl"];
    build("own_threads/foreign.c", &foreign, options);
    let (foreign, ours) = (foreign.to_str().unwrap(), library());
    let calls = folder.path("calls");
    for end in ["return", "exit", "quick", "_exit"] {
        let actions = format!("steps=30 end={end}");
        let plain = run(
            command(&folder, &actions).env("LD_PRELOAD", foreign),
            TIMEOUT,
        );
        assert_eq!(plain.status.code(), Some(3));
        for preload in [format!("{foreign}:{ours}"), format!("{ours}:{foreign}")] {
            let mut preloaded = command(&folder, &actions);
            let variables = "TLLMPROF_START_STOP=5-9 TLLMPROF_CONTROL=HERE/run TLLMPROF_STACKS=1 TLLMPROF_NATIVE_STACKS=1";
            with(&mut preloaded, &preload, variables);
            let preloaded = run(preloaded.env("FOREIGN_LOG", &calls), TIMEOUT);
            assert_eq!(
                seen(&preloaded),
                seen(&plain),
                "{preload}\n{}",
                preloaded.err()
            );
            assert_eq!(
                lines(&preloaded, "window 5-9 captured"),
                1,
                "{}",
                preloaded.err()
            );
        }
    }
    let called = fs::read_to_string(&calls).unwrap_or_default();
    assert_eq!(called, "", "functions that the library's threads call");
}

#[test]
fn the_threads_are_gone_when_destructors_run() {
    for variables in [
        "TLLMPROF_START_STOP=5-9 TLLMPROF_CONTROL=1",
        "TLLMPROF_START_STOP=25- TLLMPROF_STACKS=1 TLLMPROF_NATIVE_STACKS=1",
        "TLLMPROF_FLIGHT=1 TLLMPROF_CONTROL=1",
    ] {
        for end in ["return", "exit"] {
            let (_, ran) = run_both(variables, &format!("steps=30 end={end}")).unwrap();
            assert!(
                ran.out()
                    .contains("\n0 threads of the library's at the end"),
                "{}",
                ran.out()
            );
        }
    }
}

/// Runs the host program under a tracer. Returns the lines that the tracer prints: `made THREAD NUMBER` for the system
/// calls of the library's threads, and `between THREAD NUMBER` for those that they make during the 1000 steps of the
/// test (see [`an_idle_thread_makes_no_system_call`]). Returns `None` if tracing is forbidden.
fn traced(variables: &str, threads: usize) -> Option<Vec<String>> {
    static TRACER: Built = Built::new();
    let tracer = build_once(&TRACER, "own_threads/traced.c", &[]);
    let folder = Scratch::new("own-threads-traced");
    let mut command = built_command(tracer);
    command
        .arg(host())
        .args(["steps=30", "mark=1", "steps=1000", "mark=2", "end=exit"])
        .current_dir(folder.folder());
    with(&mut command, "", variables);
    command
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", standin())
        .env("TRACED_THREADS", threads.to_string())
        .env("TRACED_PRELOAD", shim());
    let output = run(&mut command, TIMEOUT);
    if output.status.code() == Some(NOT_POSSIBLE) {
        skipped("no process may be traced here");
        return None;
    }
    assert_eq!(
        output.status.code(),
        Some(3),
        "{}{}",
        output.out(),
        output.err()
    );
    Some(output.out().lines().map(str::to_owned).collect())
}

/// Before the 1000 steps, the tracer holds the program until each of the library's threads sleeps in a system call
/// without a time limit. The test expects no system call of these threads during the steps. The control socket is in a
/// separate folder, because commands of other tests connect to all sockets in the user's folder and would wake the
/// library's thread.
#[test]
fn an_idle_thread_makes_no_system_call() {
    for (variables, threads) in [
        ("TLLMPROF_START_STOP=5-9", 1),
        ("TLLMPROF_CONTROL=HERE/run", 1),
        ("TLLMPROF_START_STOP=5-9 TLLMPROF_CONTROL=HERE/run", 2),
        (
            "TLLMPROF_START_STOP=5-9 TLLMPROF_CONTROL=HERE/run TLLMPROF_FLIGHT=1",
            2,
        ),
        (
            "TLLMPROF_START_STOP=5-9 TLLMPROF_STACKS=1 TLLMPROF_NATIVE_STACKS=1",
            1,
        ),
    ] {
        let Some(said) = traced(variables, threads) else {
            return;
        };
        let held = format!("held {threads}");
        assert_eq!(
            said.iter().filter(|line| **line == held).count(),
            1,
            "{variables}: {said:#?}"
        );
        let between: Vec<_> = said
            .iter()
            .filter(|line| line.starts_with("between"))
            .collect();
        assert!(between.is_empty(), "{variables}: {between:?}");
    }
}

/// `docs/safety.md` lists the system calls that each of the library's threads makes. The list must contain every call
/// that the tracer sees.
#[test]
fn the_page_lists_the_system_calls_of_each_thread() {
    let page = fs::read_to_string(repo().join("docs/safety.md")).unwrap();
    let listed: BTreeSet<(String, String)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `tllmprof"))
        .flat_map(|row| {
            let (thread, calls) = row.split_once('`').unwrap();
            let calls = calls.split('|').nth(2).unwrap_or_default().to_owned();
            let names: Vec<_> = calls
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect();
            let thread = format!("tllmprof{thread}");
            names.into_iter().map(move |name| (thread.clone(), name))
        })
        .collect();
    assert!(listed.len() > 20, "{listed:?}");
    for (variables, threads) in [
        (
            "TLLMPROF_START_STOP=5-9 TLLMPROF_CONTROL=1 TLLMPROF_LOG=debug",
            2,
        ),
        (
            "TLLMPROF_START_STOP=5-29 TLLMPROF_CONTROL=HERE/run TLLMPROF_FLIGHT=1",
            2,
        ),
        (
            "TLLMPROF_START_STOP=5-9 TLLMPROF_STACKS=1000 TLLMPROF_NATIVE_STACKS=1",
            1,
        ),
    ] {
        let Some(said) = traced(variables, threads) else {
            return;
        };
        let made = said.iter().filter_map(|line| line.strip_prefix("made "));
        for call in made {
            let (thread, number) = call.split_once(' ').unwrap();
            let name = name_of(number.parse().unwrap());
            assert!(
                listed.contains(&(thread.to_owned(), name.clone())),
                "{thread} makes {name}, which docs/safety.md does not list"
            );
        }
    }
}

/// Returns the name under which `docs/safety.md` lists a system call, or the call's number if no name is known.
fn name_of(number: i64) -> String {
    macro_rules! names {
        ($($name:ident = $number:ident)*) => {
            [$((libc::$number, stringify!($name))),*]
        };
    }
    let names = names!(
        accept4 = SYS_accept4 bind = SYS_bind clock_gettime = SYS_clock_gettime
        clock_nanosleep = SYS_clock_nanosleep close = SYS_close exit = SYS_exit
        fallocate = SYS_fallocate fchmod = SYS_fchmod fcntl = SYS_fcntl fstat = SYS_fstat futex = SYS_futex
        ftruncate = SYS_ftruncate getcpu = SYS_getcpu getdents64 = SYS_getdents64
        geteuid = SYS_geteuid getpid = SYS_getpid getsockopt = SYS_getsockopt gettid = SYS_gettid listen = SYS_listen lseek = SYS_lseek madvise = SYS_madvise
        mkdirat = SYS_mkdirat mmap = SYS_mmap mprotect = SYS_mprotect munmap = SYS_munmap
        newfstatat = SYS_newfstatat openat = SYS_openat perf_event_open = SYS_perf_event_open
        ppoll = SYS_ppoll prctl = SYS_prctl pread64 = SYS_pread64 prlimit64 = SYS_prlimit64
        process_vm_readv = SYS_process_vm_readv read = SYS_read readlinkat = SYS_readlinkat
        recvfrom = SYS_recvfrom renameat = SYS_renameat rt_sigpending = SYS_rt_sigpending
        rt_sigprocmask = SYS_rt_sigprocmask sendto = SYS_sendto shutdown = SYS_shutdown socket = SYS_socket
        statx = SYS_statx unlinkat = SYS_unlinkat write = SYS_write
    );
    #[cfg(target_arch = "x86_64")]
    let more = names!(
        mkdir = SYS_mkdir poll = SYS_poll readlink = SYS_readlink rename = SYS_rename unlink = SYS_unlink
    );
    #[cfg(not(target_arch = "x86_64"))]
    let more: [(i64, &str); 0] = [];
    let known = names
        .iter()
        .chain(&more)
        .find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

#[test]
fn a_filter_that_the_program_installs_ends_nothing_but_the_windows() {
    for how in ["prctl", "syscall", "tsync"] {
        for end in ["return", "exit", "_exit", "quick", "signal"] {
            let actions = format!("steps=30 filter={how} steps=30 end={end}");
            let Some((folder, ran)) = run_both("TLLMPROF_START_STOP=5-9", &actions) else {
                return;
            };
            // All windows were over when the filter was installed, so the library logs no message about the filter.
            assert_eq!(
                lines(&ran, "window 5-9 captured: 30 iterations"),
                1,
                "{}",
                ran.err()
            );
            assert_eq!(lines(&ran, REFUSED), 0, "{}", ran.err());
            assert_eq!(recorded(&folder), [[5, 6, 7, 8, 9]]);
        }
    }
}

#[test]
fn what_a_filter_refuses_is_said_once_and_what_was_there_is_recorded() {
    let actions = "steps=30 filter=syscall steps=30 end=exit";
    let all = |range: std::ops::Range<u64>| range.collect::<Vec<_>>();
    for (variables, outcome, windows) in [
        // The filter is installed after 30 steps: before the first window, between two windows, within a window
        // (twice), or in a run without windows.
        (
            "TLLMPROF_START_STOP=40-44",
            "window 40-44 never opened: 30 iterations",
            vec![],
        ),
        (
            "TLLMPROF_START_STOP=5-9,40-44 TLLMPROF_CONTROL=HERE/run",
            "window 5-9 captured; window 40-44 never opened: 30 iterations",
            vec![all(5..10)],
        ),
        (
            "TLLMPROF_START_STOP=25-44 TLLMPROF_STACKS=1 TLLMPROF_NATIVE_STACKS=1",
            "window 25-44 captured in part: 25-29, the program installed a filter for system calls: 30 iterations",
            vec![all(25..30)],
        ),
        (
            "TLLMPROF_START_STOP=25-44 TLLMPROF_CONTROL=1",
            "window 25-44 closed: 5 iterations",
            vec![all(25..30)],
        ),
        ("TLLMPROF_FLIGHT=1", REFUSED, vec![all(0..30)]),
    ] {
        let Some((folder, ran)) = run_both(variables, actions) else {
            return;
        };
        assert_eq!(lines(&ran, REFUSED), 1, "{variables}: {}", ran.err());
        assert_eq!(lines(&ran, outcome), 1, "{variables}: {}", ran.err());
        assert_eq!(recorded(&folder), windows, "{variables}");
        let run = folder.path("run");
        let sockets = fs::read_dir(run).map_or(0, Iterator::count);
        assert_eq!(sockets, 0, "the socket is removed before the filter comes");
    }
}

#[test]
fn a_filter_that_was_there_before_cuda_is_told_of_at_the_first_call() {
    // `strict` is seccomp's strict mode, which only allows read, write and exit.
    for actions in ["filter=prctl end=exit", "strict"] {
        let Some((_, ran)) = run_both("TLLMPROF_CONTROL=1", actions) else {
            return;
        };
        assert_eq!(ran.err(), "", "a process that does not use CUDA");
    }
    let Some((folder, ran)) = run_both("TLLMPROF_START_STOP=5-9", "filter=open steps=30 end=exit")
    else {
        return;
    };
    assert_eq!(lines(&ran, REFUSED), 1, "{}", ran.err());
    assert_eq!(ran.err().lines().count(), 1, "{}", ran.err());
    assert!(!folder.path("record.tllmprof").exists());
    let Some((_, ran)) = run_both("TLLMPROF_START_STOP=25-28", "steps=20 strict") else {
        return;
    };
    assert_eq!(lines(&ran, REFUSED), 1, "{}", ran.err());
}

#[test]
fn windows_open_where_the_variable_says_so_or_the_filter_is_not_the_programs() {
    for (variables, actions) in [
        (
            "TLLMPROF_AFTER_SECCOMP=1",
            "steps=20 filter=open steps=30 end=exit",
        ),
        (
            "TLLMPROF_AFTER_SECCOMP=1",
            "filter=open steps=50 end=return",
        ),
        // In these cases the process itself gets no filter. In the first, the program only asks if the kernel supports
        // filters. In the second, a vfork child installs a filter for itself.
        ("TLLMPROF_LOG=info", "steps=20 filter=ask steps=30 end=exit"),
        (
            "TLLMPROF_LOG=info",
            "steps=20 filter=vfork steps=30 end=exit",
        ),
    ] {
        let variables = format!("{variables} TLLMPROF_START_STOP=25-28");
        let Some((folder, ran)) = run_both(&variables, actions) else {
            return;
        };
        assert_eq!(lines(&ran, REFUSED), 0, "{}", ran.err());
        assert_eq!(
            lines(&ran, "window 25-28 captured: 50 iterations"),
            1,
            "{}",
            ran.err()
        );
        assert_eq!(recorded(&folder), [[25, 26, 27, 28]]);
    }
}
