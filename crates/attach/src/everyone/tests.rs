use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread::scope;

use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// A program with several threads, which runs until it is killed: this test's own, in another process.
struct Program(Child);

impl Program {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "everyone::tests::sleepers",
                "--nocapture",
                "--ignored",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().any(|line| line.unwrap().contains("they sleep")));
        Self(child)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// All threads run, soon: the kernel lets them go after their tracer has been waited for.
    #[track_caller]
    fn goes_on(&self) {
        let since = Instant::now();
        while self.states().contains(&'t') {
            assert!(since.elapsed() < PATIENCE, "{:?}", self.states());
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

/// A word that lies on a thread's stack and nowhere else near.
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
                // For a minute, should nobody end it.
                for _ in 0..60_000 {
                    std::thread::sleep(Duration::from_millis(1));
                    std::hint::black_box(&words);
                }
            });
        }
        are_there.wait();
        println!("they sleep");
    });
}

/// Acts as the tracer, which is a thread of its own.
fn traced<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    scope(|scope| scope.spawn(act).join().unwrap())
}

#[test]
fn all_threads_are_stopped_at_once_and_go_on() {
    let program = Program::start();
    let memory = Memory::open(program.pid()).unwrap();
    traced(|| {
        let everyone = Everyone::stop(program.pid(), &memory, PATIENCE).unwrap();
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
        assert!(everyone.one().is_some() && everyone.elapsed() < PATIENCE);
        everyone.release();
    });
    program.goes_on();
    // Whoever stops them ends without letting them go.
    traced(|| std::mem::forget(Everyone::stop(program.pid(), &memory, PATIENCE).unwrap()));
    program.goes_on();
}

#[test]
fn a_process_of_which_another_traces_a_thread_is_not_stopped() {
    let program = Program::start();
    let memory = Memory::open(program.pid()).unwrap();
    let last = *process::threads(program.pid()).iter().max().unwrap();
    traced(|| {
        let other = Stopped::stop(last, PATIENCE).unwrap();
        let refused = traced(|| {
            Everyone::stop(program.pid(), &memory, PATIENCE)
                .err()
                .map(|(why, _)| why)
        });
        assert_eq!(refused, Some(NotStopped::NotPermitted));
        other.detach();
    });
    program.goes_on();
}
