//! Checks `tllmprof run` as a job of a shell on a terminal. The command must stop, continue and be interrupted together
//! with its program, end with the program's exit status, and print the summary of the record.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{self, command};
use crate::counts::Counts;

const TEST_TIMEOUT: Duration = Duration::from_secs(180);
const STOP: &str = "\x1a";
const INTERRUPT: &str = "\x03";

/// An interactive bash on a new pseudo-terminal.
struct Shell {
    child: Child,
    terminal: File,
    said: String,
}

impl Shell {
    fn new(counts: &Counts) -> Self {
        let (terminal, slave) = common::terminal::open(None);
        // SAFETY: the descriptor is open. From now on, reads fail if there is no data.
        unsafe { libc::fcntl(terminal.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut bash = command("bash");
        bash.args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "")
            .current_dir(counts.folder())
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave));
        // SAFETY: setsid and ioctl may be called between fork and exec.
        unsafe {
            bash.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let mut shell = Self {
            child: bash.spawn().unwrap(),
            terminal,
            said: String::new(),
        };
        shell.types("stty -echo; set -b; echo ready=$((40 + 2))\n");
        shell.expect("ready=42");
        shell
    }

    fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    fn look(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = self.terminal.read(&mut bytes) {
            self.said
                .push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    }

    /// Waits until the shell, or a program in it, has printed `text`. Returns the new output up to the end of `text`.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            self.look();
            if let Some(at) = self.said.find(text) {
                let rest = self.said.split_off(at + text.len());
                return std::mem::replace(&mut self.said, rest);
            }
            assert!(Instant::now() < deadline, "no {text:?} in:\n{}", self.said);
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Kills the program, which is job 1 or 2 of the shell. `tllmprof run` also ends, because its terminal is
        // closed.
        let _ = self.terminal.write_all(b"\nkill -KILL %1 %2; exit\n");
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            self.look();
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn calls(counts: &Counts) -> u64 {
    counts.made().iter().map(|made| made.calls).sum()
}

#[track_caller]
fn wait_for_calls(counts: &Counts, more_than: u64) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while calls(counts) <= more_than {
        assert!(Instant::now() < deadline, "the program makes no calls");
        sleep(Duration::from_millis(2));
    }
}

/// Returns a shell command line that runs the program under `tllmprof run`. Returns `None` if `tllmprof` is not built.
fn line(counts: &Counts) -> Option<String> {
    let by_the_command = counts.by_the_command("5-9", &["loop", "1", "0", "return"])?;
    let variables = by_the_command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_str()?;
        Some(format!("{}='{value}' ", name.to_str()?))
    });
    let words = std::iter::once(by_the_command.get_program()).chain(by_the_command.get_args());
    let words = words.map(|word| format!("'{}' ", word.to_str().unwrap()));
    Some(variables.chain(words).collect())
}

fn shell(counts: &Counts) -> Option<(Shell, String)> {
    let mut bash = Command::new("bash");
    bash.args(["-c", "true"]);
    let Some(line) = line(counts).filter(|_| bash.status().is_ok()) else {
        common::skipped("no bash, or the command is not built: cargo build --release --workspace");
        return None;
    };
    Some((Shell::new(counts), line))
}

#[test]
fn it_stops_goes_on_and_is_interrupted_as_a_job() {
    let counts = Counts::new();
    let Some((mut shell, line)) = shell(&counts) else {
        return;
    };
    shell.types(&format!("{line}\n"));
    wait_for_calls(&counts, 100);
    // In each round, the program is stopped again as soon as it has continued.
    for _ in 0..20 {
        shell.types(STOP);
        shell.expect("Stopped");
        // While the program is stopped, its count does not change. A call that was in progress counts only when it
        // returns.
        let stopped = calls(&counts);
        sleep(Duration::from_millis(20));
        assert_eq!(calls(&counts), stopped, "the program runs on");
        shell.types("fg\n");
        wait_for_calls(&counts, stopped);
    }
    shell.types(STOP);
    shell.expect("Stopped");
    let stopped = calls(&counts);
    shell.types("bg\n");
    shell.expect("&");
    wait_for_calls(&counts, stopped);
    shell.types("fg\n");
    shell.expect("'return'");
    // The shell prints the command just before it gives the terminal to the job, so an early interrupt may not reach
    // the program. So interrupts are sent until the program makes no more calls for a second. A program that still runs
    // makes calls in that time, also on a busy machine.
    for _ in 0..20 {
        shell.types(INTERRUPT);
        sleep(Duration::from_millis(200));
        let before = calls(&counts);
        let runs = || {
            sleep(Duration::from_millis(20));
            calls(&counts) != before
        };
        if !(0..50).any(|_| runs()) {
            break;
        }
    }
    shell.expect("window 5-9: 5 iterations");
    shell.types("echo status=$?\n");
    shell.expect("status=130");
}

#[test]
fn signals_go_through_to_the_program() {
    let counts = Counts::new();
    let Some((mut shell, line)) = shell(&counts) else {
        return;
    };
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("USR1", 138)] {
        counts.forget();
        // In a shell with job control, background jobs do not ignore SIGINT, so each of the signals reaches the
        // program.
        shell.types(&format!("{line} &\n"));
        wait_for_calls(&counts, 100);
        shell.types(&format!("kill -{signal} $!; wait $!; echo status=$?\n"));
        shell.expect("window 5-9: 5 iterations");
        shell.expect(&format!("status={status}"));
    }
    // Some schedulers stop and continue a job by signals to its process number only, instead of its process group.
    counts.forget();
    shell.types(&format!("{line} &\n"));
    wait_for_calls(&counts, 100);
    shell.types("kill -TSTP $!\n");
    shell.expect("Stopped");
    let stopped = calls(&counts);
    sleep(Duration::from_millis(100));
    assert_eq!(calls(&counts), stopped, "the program runs on");
    shell.types("kill -CONT $!\n");
    wait_for_calls(&counts, stopped);
    shell.types("kill -TERM $!; wait $!; echo status=$?\n");
    shell.expect("status=143");
}
