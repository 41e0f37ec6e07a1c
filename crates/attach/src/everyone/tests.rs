use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread::scope;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(180);

/// A process in which this test binary runs again, as a test program with several threads, until it is killed. The
/// fields are the child process and the lines that it prints.
struct Program(Child, Lines<BufReader<ChildStdout>>);

impl Program {
    fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "--ignored"])
            .arg(format!("everyone::tests::{name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("they run")));
        Self(child, lines)
    }

    /// Kills the test program. Returns the number of lines of its output that are equal to `said`.
    fn ended(mut self, said: &str) -> usize {
        self.0.kill().unwrap();
        let lines = self.1.by_ref();
        lines.filter(|line| line.as_ref().unwrap() == said).count()
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Asserts that all threads of the test program run again soon. The test has to wait for this, because the kernel
    /// resumes the threads only some time after their tracer was joined.
    #[track_caller]
    fn goes_on(&self) {
        let since = Instant::now();
        while self.states().contains(&'t') {
            assert!(since.elapsed() < TIMEOUT, "{:?}", self.states());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn states(&self) -> Vec<char> {
        let threads = process::threads(self.pid()).into_iter();
        threads.filter_map(|tid| state(self.pid(), tid)).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A number that is easy to recognize on a stack. Each thread puts the sum of this number and the thread's index on its
/// own stack.
const MARK: u64 = 0x5471_5471_1234_0000;

#[test]
#[ignore = "the program that other tests start"]
fn sleepers() {
    let are_there = Barrier::new(8);
    let are_there = &are_there;
    scope(|scope| {
        for number in 1..8 {
            scope.spawn(move || {
                let words = std::hint::black_box([MARK + number; 4]);
                std::hint::black_box(&words);
                are_there.wait();
                // The threads end after some minutes, in case nothing kills this test program.
                for _ in 0..600_000 {
                    std::thread::sleep(Duration::from_millis(1));
                    std::hint::black_box(&words);
                }
            });
        }
        are_there.wait();
        println!("they run");
    });
}

/// The line that the test program prints when one of its waits ends too early.
const CUT_SHORT: &str = "cut short";

/// A test program with two groups of threads. The threads of one group wait for events that never come; the threads
/// of the other group create and reap child processes all the time.
#[test]
#[ignore = "the program that other tests start"]
fn waiters() {
    let wait = || {
        // SAFETY: the call takes only a number.
        let set = unsafe { libc::epoll_create1(0) };
        for _ in 0..120_000 {
            // SAFETY: the structure has only integer fields, for which zero is a valid value.
            let mut event: libc::epoll_event = unsafe { core::mem::zeroed() };
            // SAFETY: the call writes at most one event, into a local that has room for one.
            if unsafe { libc::epoll_wait(set, &raw mut event, 1, 5) } != 0 {
                println!("{CUT_SHORT}");
            }
        }
    };
    let have_children = || {
        loop {
            // SAFETY: after the fork, the child calls only `_exit`, which is permitted there.
            unsafe {
                match libc::fork() {
                    0 => libc::_exit(0),
                    child => libc::waitpid(child, core::ptr::null_mut(), 0),
                };
            }
        }
    };
    for _ in 0..2 {
        std::thread::spawn(have_children);
    }
    scope(|scope| {
        for _ in 0..6 {
            scope.spawn(wait);
        }
        println!("they run");
    });
}

/// A test program whose thread waits for a child made with `CLONE_VFORK`. The child ends when standard input ends.
/// Until then, the thread is in uninterruptible sleep.
#[test]
#[ignore = "the program that other tests start"]
fn lender() {
    println!("they run");
    // SAFETY: the arguments of `clone` are only numbers. The child gets a copy of the memory, and calls only
    // `read` and `_exit`.
    unsafe {
        let flags = libc::CLONE_VFORK | libc::SIGCHLD;
        if libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) == 0 {
            let mut byte = 0_u8;
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    loop {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn threads_in_uninterruptible_sleep_are_waited_for() {
    let mut program = Program::start("lender");
    let pid = program.pid();
    while !program.states().contains(&'D') {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!await_interruptible(pid, Duration::from_millis(20)));
    let waits = std::thread::spawn(move || await_interruptible(pid, Duration::from_secs(600)));
    drop(program.0.stdin.take());
    assert!(waits.join().unwrap());
}

/// Runs `act` on a separate thread, which may trace the test program. Then waits until the kernel no longer reports the
/// program as traced.
fn traced<R: Send>(program: &Program, act: impl FnOnce() -> R + Send) -> R {
    let result = scope(|scope| scope.spawn(act).join().unwrap());
    process::await_untraced(program.pid());
    result
}

#[test]
fn all_threads_are_stopped_at_once_and_go_on() {
    let program = Program::start("sleepers");
    let memory = ProcessMemory::open(program.pid()).unwrap();
    traced(&program, || {
        let everyone = Everyone::stop(program.pid(), &memory, TIMEOUT).unwrap();
        let states = program.states();
        assert!(states.len() >= 8, "{states:?}");
        assert!(states.iter().all(|state| *state == 't'), "{states:?}");
        let mut found = Vec::new();
        everyone.each_address(0, |address| found.push(address));
        for number in 1..8 {
            assert!(
                found.contains(&(MARK + number)),
                "the stack of thread {number}"
            );
        }
        assert!(everyone.one().is_some() && everyone.elapsed() < TIMEOUT);
        everyone.release();
    });
    program.goes_on();
    // The tracer ends without resuming the threads, so the kernel must resume them.
    traced(&program, || {
        std::mem::forget(Everyone::stop(program.pid(), &memory, TIMEOUT).unwrap());
    });
    program.goes_on();
}

#[test]
fn a_process_of_which_another_traces_a_thread_is_not_stopped() {
    let program = Program::start("sleepers");
    let memory = ProcessMemory::open(program.pid()).unwrap();
    let last = *process::threads(program.pid()).iter().max().unwrap();
    traced(&program, || {
        let other = Stopped::stop(last, TIMEOUT).unwrap();
        let stop = || Everyone::stop(program.pid(), &memory, TIMEOUT);
        let refused = scope(|scope| scope.spawn(|| stop().err().map(|(why, _)| why)).join());
        let refused = refused.unwrap();
        assert_eq!(refused, Some(NotStopped::NotPermitted));
        other.detach();
    });
    program.goes_on();
}

/// Checks that waits of the program do not return early because a child process ends. A few early returns are
/// tolerated, because a thread may create a child at the very moment when it is stopped. If threads were stopped and
/// resumed one after the other, one in ten stops would make a wait return early.
#[test]
fn waits_do_not_end_because_a_child_does() {
    let program = Program::start("waiters");
    let memory = ProcessMemory::open(program.pid()).unwrap();
    for _ in 0..500 {
        traced(&program, || {
            let everyone = Everyone::stop(program.pid(), &memory, TIMEOUT).unwrap();
            everyone.release();
        });
    }
    let cut_short = program.ended(CUT_SHORT);
    assert!(cut_short < 4, "{cut_short} of 500");
}
