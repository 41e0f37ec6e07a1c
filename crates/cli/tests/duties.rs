//! Tests that a program behaves in the same way under `tllmprof run` as without it. Each row of the tables below is a
//! duty: a property of the environment that `tllmprof run` must not change for the program. The program must see and
//! do the same when it is started directly, as a child of `tllmprof run`, and in place of the command
//! (`run --no-trace`).

mod common;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{Scratch, finish, plain};

/// The ways to start a program: directly, as a child of `tllmprof run`, or in place of that command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Bare,
    Run,
    InPlace,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Run, Way::InPlace];

struct Shop {
    scratch: Scratch,
    probe: PathBuf,
}

impl Shop {
    fn new() -> Self {
        let scratch = Scratch::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/duties/probe.c");
        let probe = scratch.compile(
            "probe",
            &fs::read_to_string(source).unwrap(),
            &["-Wall", "-Werror"],
        );
        scratch.library();
        Self { scratch, probe }
    }

    /// Returns a command that starts `program` directly, as a child of `tllmprof run`, or in place of that command.
    fn start(&self, way: Way, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match way {
            Way::Bare => plain(program.as_ref().as_ref()),
            Way::Run => {
                let mut command = self.scratch.tllmprof();
                command
                    .args(["run", "--log", "warn", "--no-summary", "--"])
                    .arg(program);
                command
            }
            Way::InPlace => {
                let mut command = self.scratch.tllmprof();
                command
                    .args(["run", "--log", "warn", "--no-trace", "--"])
                    .arg(program);
                command
            }
        };
        command.current_dir(self.scratch.path("."));
        command
    }

    fn probe(&self, way: Way, what: &str) -> Command {
        let mut command = self.start(way, &self.probe);
        command.arg(what);
        command
    }
}

/// Makes the child call `change` before the child becomes the program.
fn before(command: &mut Command, change: fn()) {
    // SAFETY: each `change` in this file calls only functions that are allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            change();
            Ok(())
        });
    }
}

fn ignore(signal: i32) {
    // SAFETY: the call takes no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

fn block(signals: &[i32]) {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Limits the number of descriptors to one more than the three standard ones. Four descriptors are enough to start a
/// program, but not to start a second process.
fn few_descriptors() {
    let limit = libc::rlimit {
        rlim_cur: 4,
        rlim_max: 4,
    };
    // SAFETY: the call reads the local variable.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// A row of the table of inherited properties: the duty, a preparation before the start, the name of the part of the
/// probe (`probe.c`) to run, and a line that this part must print.
type Inherited = (&'static str, fn(), &'static str, &'static str);

const INHERITED: &[Inherited] = &[
    ("no signal is ignored", || (), "signals", "SigIgn."),
    (
        "SIGCHLD is ignored",
        || ignore(libc::SIGCHLD),
        "signals",
        "SigIgn 17.",
    ),
    (
        "SIGPIPE is ignored",
        || ignore(libc::SIGPIPE),
        "signals",
        "SigIgn 13.",
    ),
    (
        "signals of nohup and of a background job are ignored",
        || {
            [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP]
                .map(ignore)
                .into_iter()
                .collect()
        },
        "signals",
        "SigIgn 1 2 3 20.",
    ),
    (
        "signals are blocked",
        || block(&[libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1]),
        "signals",
        "SigBlk 10 15 17.",
    ),
    (
        "a descriptor is open",
        // SAFETY: the call takes only descriptors.
        || _ = unsafe { libc::dup2(1, 9) },
        "descriptors",
        "9 flags 0",
    ),
    (
        "standard input and error are closed",
        // SAFETY: the calls take only descriptors.
        || unsafe {
            libc::close(0);
            libc::close(2);
        },
        "descriptors",
        "1 flags 0",
    ),
    (
        "umask and nice",
        // SAFETY: the calls take only numbers.
        || unsafe {
            libc::umask(0o27);
            libc::nice(3);
        },
        "limits",
        "umask 27 nice 3 policy 0",
    ),
    (
        "a limit",
        || {
            let limit = libc::rlimit {
                rlim_cur: 77,
                rlim_max: 99,
            };
            // SAFETY: the call reads the local variable.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        },
        "limits",
        "limit 7 77 99",
    ),
    (
        "a small stack",
        || {
            let limit = libc::rlimit {
                rlim_cur: 64 << 10,
                rlim_max: 64 << 10,
            };
            // SAFETY: the call reads the local variable.
            unsafe { libc::setrlimit(libc::RLIMIT_STACK, &raw const limit) };
        },
        "limits",
        "limit 3 65536 65536",
    ),
    (
        "no descriptor is left but for the dynamic linker",
        || few_descriptors(),
        "limits",
        "limit 7 4 4",
    ),
    (
        "it reaps orphans",
        // SAFETY: the call takes only numbers.
        || _ = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) },
        "limits",
        "reaper 1 ",
    ),
    (
        "it is not given privileges",
        // SAFETY: the call takes only numbers.
        || _ = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
        "limits",
        "privileges 1",
    ),
    (
        "an alarm",
        // SAFETY: the call takes only a number.
        || _ = unsafe { libc::alarm(100) },
        "timer",
        "timer runs",
    ),
    ("arguments", || (), "arguments", "arguments\n"),
];

/// A row of the table of duties that concern variables. The four texts are the duty, the set of variables with which
/// the program starts (see `become` in `probe.c`), the name of a part of the probe, and a part of its output.
type WithVariables = (&'static str, &'static str, &'static str, &'static str);

const WITH_VARIABLES: &[WithVariables] = &[
    (
        "variables in their order, twice, without a value",
        "odd",
        "variables",
        "ZZ=1\nAA=2\nZZ=3\nstrange\n",
    ),
    ("a socket of systemd's", "service", "manager", "1 1 1 1"),
    (
        "a socket of another process's",
        "other",
        "manager",
        "0 0 0 1",
    ),
    ("group and session", "group", "group", "1 1"),
];

#[test]
fn the_program_has_the_commands_variables() {
    let shop = Shop::new();
    for (duty, kind, what, part) in WITH_VARIABLES {
        let said = WAYS.map(|way| {
            let command = shop.probe(way, what);
            let mut through = plain(&shop.probe);
            through
                .args(["become", kind])
                .arg(command.get_program())
                .args(command.get_args());
            for (name, value) in command.get_envs() {
                through.env(name, value.unwrap_or_default());
            }
            before(&mut through, setsid);
            let ended = finish(through.current_dir(shop.scratch.path(".")));
            assert_eq!(ended.code(), Some(0), "{duty}, {way:?}: {ended:?}");
            ended.stdout
        });
        assert!(said[0].contains(part), "{duty}: {}", said[0]);
        assert_eq!(said, [&*said[0]; 3], "{duty}");
    }
}

#[test]
fn the_program_inherits_what_the_command_did() {
    let shop = Shop::new();
    for (duty, change, what, line) in INHERITED {
        let said = WAYS.map(|way| {
            let mut command = shop.probe(way, what);
            before(&mut command, *change);
            let ended = finish(&mut command);
            assert_eq!(ended.code(), Some(0), "{duty}, {way:?}: {ended:?}");
            ended.stdout
        });
        assert!(said[0].contains(line), "{duty}: {}", said[0]);
        assert_eq!(said[1], said[0], "{duty}, run");
        assert_eq!(said[2], said[0], "{duty}, run --no-trace");
    }
}

/// A program that prints the signals that it receives.
struct Listening {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// The process id of the program. With `Way::Run` this is not the id of the started process, because that process
    /// is the command `tllmprof`.
    program: i32,
}

impl Listening {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let program = first.strip_prefix("pid ").unwrap().parse().unwrap();
        Self {
            child,
            lines,
            program,
        }
    }

    fn started(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Waits for the next change of the started process: that it stops, continues, or ends.
    fn change(&self) -> ExitStatus {
        let mut status = 0;
        // SAFETY: the call writes to the local variable; the child has not been waited for to its end.
        let changed = unsafe {
            libc::waitpid(
                self.started(),
                &raw mut status,
                libc::WUNTRACED | libc::WCONTINUED,
            )
        };
        assert_eq!(changed, self.started());
        ExitStatus::from_raw(status)
    }

    /// Ends the program with SIGUSR2. Returns the lines of its output that [`Self::line`] has not returned yet.
    fn finish(mut self) -> Vec<String> {
        send(self.started(), libc::SIGUSR2);
        let lines: Vec<_> = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(common::wait(&mut self.child).is_some());
        lines
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            send(self.program, libc::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn send(number: i32, signal: i32) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(number, signal) };
}

/// Returns the state of a process as a letter of `/proc/PID/stat`, such as `T` for stopped.
fn state(number: i32) -> char {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Waits until a process has a wanted state, for three minutes at most.
fn wait_for(name: &str, number: i32, wanted: impl Fn(char) -> bool) {
    let started = Instant::now();
    while !wanted(state(number)) {
        assert!(
            started.elapsed() < Duration::from_secs(180),
            "{name}: {}",
            state(number)
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn setsid() {
    // SAFETY: the call takes no arguments.
    unsafe { libc::setsid() };
}

fn own_group() {
    // SAFETY: the call takes only numbers.
    unsafe { libc::setpgid(0, 0) };
}

/// A row of the table of signals: the duty, a preparation of the program's process group, the name of a part of the
/// probe, the signals to send (a negative number goes to the whole group), and the expected output.
type Sent = (
    &'static str,
    fn(),
    &'static str,
    &'static [i32],
    &'static [&'static str],
);

/// A real-time signal that marks the end of the signals sent before it: the program handles it only after all pending
/// signals with lower numbers.
const FENCE: i32 = 36;

const SENT: &[Sent] = &[
    (
        "a signal",
        own_group,
        "listen",
        &[libc::SIGTERM],
        &["got 15"],
    ),
    (
        "a signal to the group comes once",
        own_group,
        "listen",
        &[-libc::SIGTERM],
        &["got 15"],
    ),
    (
        "a signal to the session's group comes once",
        setsid,
        "listen",
        &[-libc::SIGINT],
        &["got 2"],
    ),
    (
        "each of several signals",
        setsid,
        "listen",
        &[
            -libc::SIGUSR1,
            libc::SIGUSR1,
            -libc::SIGUSR1,
            libc::SIGHUP,
            -libc::SIGHUP,
            libc::SIGTERM,
        ],
        &["got 10", "got 10", "got 10", "got 1", "got 1", "got 15"],
    ),
    (
        "signals of real time",
        own_group,
        "listen",
        &[-36, 36, 36, -36],
        &["got 36", "got 36", "got 36", "got 36"],
    ),
];

#[test]
fn the_program_gets_what_is_sent_once() {
    let shop = Shop::new();
    for (duty, place, what, signals, expected) in SENT {
        for way in WAYS {
            let mut command = shop.probe(way, what);
            before(&mut command, *place);
            let mut program = Listening::start(&mut command);
            let mut said = Vec::new();
            for signal in *signals {
                let started = program.started();
                let to = if *signal < 0 { -started } else { started };
                send(to, signal.abs());
                said.push(program.line());
                // A signal that arrives again before its first arrival is handled counts only once. So the test sends
                // the fence and waits until the program has handled it, before it sends the next signal.
                send(started, FENCE);
                assert_eq!(program.line(), format!("got {FENCE}"), "{duty}, {way:?}");
            }
            said.extend(program.finish());
            assert_eq!(said.pop().as_deref(), Some("got 12"), "{duty}, {way:?}");
            assert_eq!(said, *expected, "{duty}, {way:?}");
        }
    }
}

/// The program makes its own process group, so a signal that is sent to the command's group does not reach the program
/// directly. The command must pass the signal on.
#[test]
fn a_program_in_a_group_of_its_own_gets_what_is_sent_to_the_commands() {
    let shop = Shop::new();
    for way in WAYS {
        let mut command = shop.probe(way, "own-group");
        before(&mut command, own_group);
        let mut program = Listening::start(&mut command);
        send(-program.started(), libc::SIGINT);
        assert_eq!(program.line(), "got 2", "{way:?}");
        assert_eq!(program.finish(), ["got 12"], "{way:?}");
    }
}

#[test]
fn a_signal_keeps_its_value_and_its_sender() {
    let shop = Shop::new();
    for way in WAYS {
        let mut program = Listening::start(&mut shop.probe(way, "listen"));
        let value = libc::sigval {
            sival_ptr: std::ptr::without_provenance_mut(77),
        };
        // SAFETY: the value is a number, which is not used as a pointer.
        assert_eq!(unsafe { libc::sigqueue(program.started(), 37, value) }, 0);
        assert_eq!(program.line(), "got value 77 from 1", "{way:?}");
        program.finish();
    }
}

#[test]
fn command_and_program_stop_and_go_on_together() {
    let shop = Shop::new();
    let own: fn(&Listening) -> i32 = |program| program.program;
    let started: fn(&Listening) -> i32 = Listening::started;
    let group: fn(&Listening) -> i32 = |program| -program.started();
    // Each row: the process that is stopped, the signal that stops it, and the process that is continued.
    let rows = [
        (own, libc::SIGSTOP, own),
        (own, libc::SIGSTOP, started),
        (own, libc::SIGTSTP, own),
        (own, libc::SIGTTIN, group),
        (started, libc::SIGSTOP, started),
        (started, libc::SIGSTOP, own),
        (started, libc::SIGTSTP, started),
        (started, libc::SIGTSTP, own),
        (group, libc::SIGSTOP, group),
        (group, libc::SIGSTOP, started),
        (group, libc::SIGTSTP, group),
        (group, libc::SIGTTOU, started),
    ];
    for (row, (stopped, signal, continued)) in rows.into_iter().enumerate() {
        for way in WAYS {
            let mut command = shop.probe(way, "listen");
            before(&mut command, own_group);
            let mut program = Listening::start(&mut command);
            for _ in 0..2 {
                send(stopped(&program), signal);
                assert_eq!(
                    program.change().stopped_signal(),
                    Some(signal),
                    "{row}, {way:?}"
                );
                let name = format!("{row}, {way:?}, stops");
                wait_for(&name, program.program, |state| state == 'T');
                send(continued(&program), libc::SIGCONT);
                assert!(program.change().continued(), "{row}, {way:?}");
                let name = format!("{row}, {way:?}, goes on");
                wait_for(&name, program.program, |state| state != 'T');
                send(program.started(), libc::SIGUSR1);
                assert_eq!(program.line(), "got 10", "{row}, {way:?}");
            }
            assert_eq!(program.finish(), ["got 12"], "{row}, {way:?}");
        }
    }
}

#[test]
fn the_commands_end_is_the_programs() {
    let shop = Shop::new();
    for end in [
        "0", "7", "255", "-15", "-9", "-6", "-11", "-13", "-17", "-36",
    ] {
        let statuses = WAYS.map(|way| {
            let mut command = shop.probe(way, "end");
            let status = finish(command.arg(end)).status;
            (status.code(), status.signal())
        });
        assert_eq!(statuses, [statuses[0]; 3], "{end}");
    }
}

/// SIGTERM is blocked when the command starts. The program unblocks SIGTERM and ends by it. The command must end by
/// SIGTERM, too.
#[test]
fn a_signal_that_was_blocked_ends_the_command_as_it_did_the_program() {
    const DIES: &str = "import os, signal as s
s.pthread_sigmask(s.SIG_UNBLOCK, [s.SIGTERM])
os.kill(os.getpid(), s.SIGTERM)";
    let shop = Shop::new();
    for way in WAYS {
        let mut command = shop.start(way, "python3");
        before(&mut command, || block(&[libc::SIGTERM]));
        command.args(["-c", DIES]);
        assert_eq!(
            finish(&mut command).status.signal(),
            Some(libc::SIGTERM),
            "{way:?}"
        );
    }
}

/// If a program cannot be started, the exit status is the same as that of env(1).
#[test]
fn what_cannot_be_started_ends_as_with_env() {
    let shop = Shop::new();
    let scratch = &shop.scratch;
    scratch.write("plain", "echo plain\n");
    scratch.script("no-line", "echo started\n");
    scratch.script("no-interpreter", "#!/nowhere/sh\n");
    scratch.script("folder/x", "");
    for name in [
        "./nothing",
        "no-such-program",
        "./plain",
        "./folder",
        "./plain/x",
        "./no-line",
        "./no-interpreter",
    ] {
        let mut env = plain("env".as_ref());
        let env = finish(env.arg(name).current_dir(scratch.path(".")));
        for way in [Way::Run, Way::InPlace] {
            let ended = finish(&mut shop.start(way, name));
            assert_eq!(
                (ended.code(), &ended.stdout),
                (env.code(), &env.stdout),
                "{name}, {way:?}"
            );
            let lines = usize::from(env.code() != Some(0));
            assert_eq!(
                ended.stderr.lines().count(),
                lines,
                "{name}, {way:?}: {ended:?}"
            );
        }
    }
    let left = fs::read_dir(scratch.path(".")).unwrap().flatten();
    let folders = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("tllmprof-"));
    assert_eq!(folders.count(), 0);
}

/// The library's variables make the environment larger than the kernel allows, so the program cannot start. The
/// command must then remove the folder of the run.
#[test]
fn a_start_that_the_kernel_refuses_leaves_nothing() {
    let shop = Shop::new();
    // Limits the size of the arguments and variables: together they may take a quarter of the stack's limit.
    let few = || {
        let limit = libc::rlimit {
            rlim_cur: 2 << 20,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the call reads the local variable.
        unsafe { libc::setrlimit(libc::RLIMIT_STACK, &raw const limit) };
    };
    let start = |way: Way, count: usize| {
        let mut command = shop.start(way, "/bin/true");
        before(&mut command, few);
        command.args(std::iter::repeat_n("y".repeat(92), count));
        command.stdin(Stdio::null()).stderr(Stdio::piped()).output()
    };
    // Finds the largest number of arguments with which the kernel starts the command itself. The program then gets the
    // library's variables as well, which is too much.
    let (mut low, mut high) = (0, 1 << 14);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        match start(Way::Run, middle) {
            Ok(_) => low = middle,
            Err(_) => high = middle,
        }
    }
    let refused = start(Way::Run, low).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(126), "{said}");
    assert_eq!(
        said,
        "tllmprof: /bin/true: it cannot be executed: Argument list too long\n"
    );
    let left = fs::read_dir(shop.scratch.path(".")).unwrap().flatten();
    let folders = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("tllmprof-"));
    assert_eq!(folders.count(), 0);
}

#[test]
fn a_working_directory_that_was_deleted_keeps_no_program_from_starting() {
    let shop = Shop::new();
    let script = "mkdir gone; cd gone; rmdir ../gone; exec \"$@\"";
    for (more, said) in [
        (
            &[][..],
            "tllmprof: no record: it would be in the working directory: it was deleted.",
        ),
        (
            &["--trace", "x"],
            "tllmprof: no record: it would be in the working directory: it was deleted.",
        ),
        (&["--trace", "/tmp/none-%p.tllmprof"], ""),
        (&["--no-trace"], ""),
    ] {
        let command = shop.start(Way::Run, "sh");
        let mut shell = plain("sh".as_ref());
        shell
            .args(["-c", script, "sh"])
            .arg(command.get_program())
            .arg("run")
            .args(more);
        shell.args(["--log", "warn", "--", "sh", "-c", "echo started; exit 7"]);
        shell.current_dir(shop.scratch.path("."));
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        let ended = finish(&mut shell);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(7), "started\n"),
            "{ended:?}"
        );
        let ours: Vec<_> = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("tllmprof"))
            .collect();
        assert_eq!(ours.len(), usize::from(!said.is_empty()), "{ended:?}");
        assert!(ours.iter().all(|line| line.starts_with(said)), "{ended:?}");
    }
}

/// If the command cannot start a child process, the program replaces the command in its process.
#[test]
fn a_program_for_which_no_child_can_be_started_has_the_commands_place() {
    let shop = Shop::new();
    let mut command = shop.scratch.tllmprof();
    before(
        command.arg("run").args(["--run", "few", "--"]),
        few_descriptors,
    );
    let ended = finish(
        command
            .arg(&shop.probe)
            .args(["end", "7"])
            .current_dir(shop.scratch.path(".")),
    );
    assert_eq!(ended.code(), Some(7), "{ended:?}");
    assert_eq!(
        ended.stderr,
        "tllmprof: the program takes the place of this process: another process could not be started: Too many open files. \
         There is no summary at the end (tllmprof report tllmprof-few prints it)\n"
    );
}

/// Rust's runtime opens `/dev/null` in place of closed standard streams. In a container without that file, the
/// program must start all the same, and with these streams closed.
#[test]
fn closed_streams_stay_closed_in_a_container_without_devices() {
    let shop = Shop::new();
    let said = WAYS.map(|way| {
        let command = shop.probe(way, "descriptors");
        let mut unshare = plain("unshare".as_ref());
        unshare
            .args(["-m", "sh", "-c"])
            .arg("mount -t tmpfs none /dev || exit 9; exec \"$@\" <&- 2>&-")
            .arg("sh")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            unshare.env(name, value.unwrap_or_default());
        }
        let ended = finish(unshare.current_dir(shop.scratch.path(".")));
        (ended.code(), ended.stdout)
    });
    if said[0].0 != Some(0) {
        eprintln!("skipped: no mount namespaces here (they need root)");
        return;
    }
    assert!(said[0].1.contains("1 flags 0"), "{said:?}");
    assert!(!said[0].1.contains("\n2 flags"), "{said:?}");
    assert_eq!([&said[1], &said[2]], [&said[0]; 2]);
}

/// The test reads the program's output until its end. It must see the end as soon as the program closes its output,
/// so the command must not keep the output open.
#[test]
fn a_pipe_ends_when_the_program_closes_it() {
    let shop = Shop::new();
    for way in WAYS {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let descriptor = writer.as_raw_fd();
        let mut command = shop.probe(way, "closes");
        // SAFETY: the calls take only descriptors.
        unsafe {
            command.pre_exec(move || {
                libc::dup2(descriptor, 3);
                libc::fcntl(3, libc::F_SETFD, 0);
                Ok(())
            });
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(writer);
        let mut said = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(said, "ready\n", "{way:?}");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "{way:?}");
        // Writes to the program's input until the program has closed the input. The writes can fail only if the program
        // was the only reader, so the loop would not end if the command kept the input open as well.
        let mut input = child.stdin.take().unwrap();
        while std::io::Write::write_all(&mut input, b"x").is_ok() {}
        send(child.id().cast_signed(), libc::SIGTERM);
        assert_eq!(
            common::wait(&mut child).unwrap().signal(),
            Some(libc::SIGTERM),
            "{way:?}"
        );
    }
}

/// A service manager accepts notices only from the process that it started, which is the command. So the program has to
/// replace the command in that process.
#[test]
fn a_program_that_a_service_manager_listens_to_has_the_commands_place() {
    let shop = Shop::new();
    let place = |variables: &[(&str, &str)]| {
        let mut command = shop.probe(Way::Run, "listen");
        command.envs(variables.iter().copied());
        let program = Listening::start(&mut command);
        let is_in_place = program.program == program.started();
        program.finish();
        is_in_place
    };
    assert!(place(&[("NOTIFY_SOCKET", "/run/x")]));
    assert!(!place(&[]));
    // Another `SYSTEMD_EXEC_PID` shows that the variables were inherited from a process of another unit.
    assert!(!place(&[
        ("NOTIFY_SOCKET", "/run/x"),
        ("SYSTEMD_EXEC_PID", "1")
    ]));
}

/// As the first process of a container, the command has to reap orphans. It also has to end, together with its program,
/// on a signal.
#[test]
fn the_first_process_of_a_container_reaps_and_can_be_ended() {
    let shop = Shop::new();
    let inside = |way: Way, script: &str| {
        let command = shop.start(way, "bash");
        let mut unshare = plain("unshare".as_ref());
        unshare.args(["-pf", "--mount-proc", "--kill-child"]);
        unshare
            .arg(command.get_program())
            .args(command.get_args())
            .args(["-c", script]);
        for (name, value) in command.get_envs() {
            unshare.env(name, value.unwrap_or_default());
        }
        finish(unshare.current_dir(shop.scratch.path(".")))
    };
    if inside(Way::Bare, "exit 9").code() != Some(9) {
        eprintln!("skipped: no process namespaces here (they need root)");
        return;
    }
    // Once an orphan has been reaped, its folder in `/proc` is gone.
    let orphans = "( (exit 0 & echo $! > orphan) & wait ); read orphan < orphan; i=0; \
                   while [ -e /proc/$orphan ] && [ $i -lt 3000 ]; do sleep 0.01; i=$((i+1)); done; \
                   [ ! -e /proc/$orphan ] && echo reaped";
    assert_eq!(inside(Way::Run, orphans).stdout, "reaped\n");
    let asks = "trap 'exit 5' TERM; kill -TERM 1; while :; do sleep 0.01; done";
    for way in WAYS {
        let ended = inside(way, asks);
        assert_eq!(ended.code(), Some(5), "{way:?}: {ended:?}");
    }
}

/// The command's helper processes do not have the command's name or command line. So a signal that is sent to all
/// processes with that name does not reach the helpers, and the program gets the signal only once.
#[test]
fn a_signal_that_is_sent_by_name_comes_once() {
    let shop = Shop::new();
    let mut command = shop.probe(Way::Run, "listen");
    before(&mut command, own_group);
    let program = Listening::start(&mut command);
    let children = format!("/proc/{0}/task/{0}/children", program.started());
    let children = fs::read_to_string(children).unwrap_or_default();
    for child in children.split_whitespace() {
        let name = fs::read_to_string(format!("/proc/{child}/comm"));
        let line = fs::read(format!("/proc/{child}/cmdline"));
        // A helper process may have ended since the list was read.
        let (Ok(name), Ok(line)) = (name, line) else {
            continue;
        };
        let line = OsString::from_vec(line);
        let is_program = child == program.program.to_string();
        let has_name = name.contains("tllmprof") || line.to_string_lossy().contains("tllmprof run");
        assert!(is_program || !has_name, "{name}: {}", line.display());
    }
    program.finish();
}
