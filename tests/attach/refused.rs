//! Checks that `attach` refuses processes to which it cannot attach, each with one line that gives the reason.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::can_attach;
use crate::common::{Scratch, command, compiler, copy_program, run, shim, skipped, tllmprof};
use crate::host::{Host, LINKED};
use crate::place::{TEST_TIMEOUT, wait_until};

/// Asserts that an attach is refused with status 1 and one line that contains `why`.
#[track_caller]
fn refused(command: &mut Command, why: &str) {
    let refused = run(command.env("TLLMPROF_LIB", shim()), TEST_TIMEOUT);
    let said = refused.err();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains(why) && said.trim_end().lines().count() == 1,
        "{said}"
    );
}

fn attach(pid: u32) -> Command {
    let mut attach = command(tllmprof());
    attach.args(["attach", &pid.to_string()]);
    attach
}

fn signal(pid: u32, number: i32) {
    // SAFETY: kill takes only numbers. The process is a child of this test.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), number) }, 0);
}

#[test]
fn a_process_that_is_not_there_is_refused() {
    if !can_attach() {
        return;
    }
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    wait_until("its end", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") Z ")
    });
    refused(&mut attach(pid), "it is a zombie");
    child.wait().unwrap();
    refused(&mut attach(pid), "there is no such process here");
}

#[test]
fn a_thread_is_refused_with_the_number_of_its_process() {
    if !can_attach() {
        return;
    }
    let (ask, asked) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: gettid has no arguments and always succeeds.
        ask.send(unsafe { libc::gettid() }).unwrap();
        let _ = ends.recv();
    });
    let number = asked.recv().unwrap().cast_unsigned();
    let why = format!(
        "{number}: it is a thread of process {} (wanted: that number)",
        std::process::id()
    );
    refused(&mut attach(number), &why);
    drop(end);
    thread.join().unwrap();
}

#[test]
fn a_process_that_ends_meanwhile_is_not_waited_for() {
    if !can_attach() {
        return;
    }
    for n in 0..20 {
        // When the process `sleep` ends, it becomes a zombie, because this test calls `wait` for it only after the
        // command `attach` has ended.
        let seconds = format!("0.{:03}", 15 * n);
        let mut child = Command::new("sleep").arg(seconds).spawn().unwrap();
        let ended = run(attach(child.id()).env("TLLMPROF_LIB", shim()), TEST_TIMEOUT);
        let said = ended.err();
        let last = said.trim_end().lines().last().unwrap_or_default();
        let whys = [
            "it is a zombie",
            "the process ended or became another program meanwhile",
            "the process has ended meanwhile",
        ];
        assert!(
            ended.status.code() == Some(1) && whys.iter().any(|why| last.contains(why)),
            "{said}"
        );
        child.wait().unwrap();
    }
}

#[test]
fn a_process_that_is_traced_or_stopped_is_refused() {
    if !can_attach() {
        return;
    }
    let mut host = Host::start(LINKED[0], "2", &[]);
    let pid = host.pid();
    signal(pid, libc::SIGSTOP);
    refused(&mut host.command("attach PID"), "is stopped (state T)");
    signal(pid, libc::SIGCONT);
    let tracer = std::thread::spawn(move || {
        // SAFETY: these arguments are numbers. The process is a child of this test, and continues when this tracing
        // thread ends.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.cast_signed(), 0, 0) };
        assert_eq!(seized, 0);
        refused(&mut attach(pid), "traces it already");
    });
    tracer.join().unwrap();
    assert!(
        host.tllmprof("attach PID --steps 3 --step cudaGraphLaunch")
            .status
            .success()
    );
    host.end();
}

#[test]
fn a_static_program_is_refused() {
    if !can_attach() {
        return;
    }
    let scratch = Scratch::new("attach");
    let (source, program) = (scratch.path("a.c"), scratch.path("a"));
    fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { pause(); }\n",
    )
    .unwrap();
    for (option, why) in [
        ("-static", "it is a static program"),
        ("-m32", "it is a 32-bit program"),
    ] {
        let mut build = compiler();
        build.arg(option).arg("-o").args([&program, &source]);
        if !build.stderr(Stdio::null()).status().unwrap().success() {
            skipped(&format!("the compiler makes no program with {option}"));
            continue;
        }
        let mut child = Command::new(&program).spawn().unwrap();
        refused(&mut attach(child.id()), why);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_process_with_another_file_of_the_library_is_refused() {
    if !can_attach() {
        return;
    }
    let scratch = Scratch::new("attach");
    let copy = scratch.path("libtllmprof.so");
    fs::copy(shim(), &copy).unwrap();
    let mut host = Host::start(LINKED[0], "0", &[("LD_PRELOAD", copy.to_str().unwrap())]);
    refused(&mut host.command("attach PID"), copy.to_str().unwrap());
    host.end();
    let mut host = Host::start(LINKED[0], "0", &[("LD_PRELOAD", shim().to_str().unwrap())]);
    refused(
        &mut host.command("attach PID"),
        "was preloaded when it started",
    );
    host.end();
}

#[test]
fn the_process_of_another_user_is_refused() {
    const NOBODY: u32 = 65534;
    if !can_attach() {
        return;
    }
    // SAFETY: geteuid has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        skipped("another user's process takes root");
        return;
    }
    let mut host = Host::start(LINKED[0], "0", &[]);
    // The other user may not be able to reach the build folder, so that user runs a copy of the command.
    let scratch = tempfile_for_all();
    let [command_copy, library] = ["tllmprof", "libtllmprof.so"].map(|name| scratch.join(name));
    copy_program(&tllmprof(), &command_copy);
    copy_program(&shim(), &library);
    for file in [&command_copy, &library] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut attach = command(&command_copy);
    attach
        .args(["attach", &host.pid().to_string()])
        .uid(NOBODY)
        .gid(NOBODY);
    let refused = run(attach.env("TLLMPROF_LIB", &library), TEST_TIMEOUT);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.err());
    assert!(
        refused.err().contains("it is a process of user 0"),
        "{}",
        refused.err()
    );
    fs::remove_dir_all(scratch).unwrap();
    host.end();
}

/// Returns a folder in `/tmp` that all users may read.
fn tempfile_for_all() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("tllmprof-attach-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn a_process_that_filters_its_system_calls_is_refused() {
    if !can_attach() {
        return;
    }
    let program = crate::place::server();
    let mut host = Host::started(program, "500", &[("HOST", "no_socket")]);
    refused(&mut host.command("attach PID"), "seccomp");
    host.end_any();
}
