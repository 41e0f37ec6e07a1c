//! All threads of another process, stopped at the same time.
//!
//! As with one thread ([`crate::traced`]), whoever stops them does it on a thread of its own: what has not been let go goes
//! on when that ends, or when the command is killed.
//!
//! The end of a child is a signal that most programs ignore. The kernel drops it, but not where the thread that has made the
//! child is traced, or blocks signals, as in `fork`: then it wakes a thread for it, and where that one is stopped, another. A
//! wait of one that runs ends by that. So those with children are stopped last, those in `fork` are let go first, and all others
//! behind them, at once, which the end of their tracer does.

#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;

use crate::memory::Memory;
use crate::process;
use crate::traced::{NotStopped, Stopped, Stopping, has_made_process, was_cut_short};

/// Between two looks at those that have not stopped yet.
const LOOK: Duration = Duration::from_micros(30);
/// Between two looks at those in uninterruptible sleep, in which a page is read or memory is mapped.
const SLEEPERS_LOOK: Duration = Duration::from_millis(1);
/// How long a thread that was stopped in `fork` may take to unblock signals, before the others go on.
const FORKING: Duration = Duration::from_millis(1);
/// A thread's stack is looked at as far as that.
const DEEPEST: u64 = 8 << 20;
/// Of a thread that is on another stack than its own, so much is looked at there, and so much of its own.
const OTHER: u64 = 1 << 20;
const OWN: u64 = 256 << 10;

pub struct Everyone<'a> {
    pid: i32,
    memory: &'a Memory,
    threads: Vec<(i32, Stopped, Registers)>,
    since: Instant,
}

impl<'a> Everyone<'a> {
    /// Stops all threads by the deadline, `patience` after the first was stopped.
    ///
    /// # Errors
    /// Why they are not, and for how long some were.
    pub fn stop(
        pid: i32,
        memory: &'a Memory,
        patience: Duration,
    ) -> Result<Self, (NotStopped, Duration)> {
        let (mut known, mut stopping) = (Vec::new(), Vec::new());
        // Nobody is stopped by being traced. The more are, the fewer come while the others are stopped. Those with children
        // come last.
        loop {
            match seize_new(pid, true, &mut known, &mut stopping) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => return Err((why, Duration::ZERO)),
            }
        }
        let since = Instant::now();
        let mut everyone = Self {
            pid,
            memory,
            threads: Vec::new(),
            since,
        };
        for thread in &stopping {
            thread.interrupt();
        }
        loop {
            let before = stopping.len();
            let mut index = 0;
            while let Some(thread) = stopping.get(index) {
                match thread.poll() {
                    Ok(None) => index += 1,
                    Ok(Some(stopped)) => {
                        let tid = thread.tid();
                        stopping.swap_remove(index);
                        if let Some(registers) = stopped.registers() {
                            // At once: should the command be killed, it goes on with these.
                            if was_cut_short(&registers) {
                                stopped.make_again(registers);
                            }
                            everyone.threads.push((tid, stopped, registers));
                        }
                    }
                    Err(NotStopped::Gone) => drop(stopping.swap_remove(index)),
                    Err(why) => return Err((why, everyone.give_up(stopping))),
                }
            }
            if stopping.is_empty() {
                // Those with children, and one that was just created by a thread that has stopped since.
                match seize_new(pid, false, &mut known, &mut stopping) {
                    Ok(false) => return Ok(everyone),
                    Ok(true) => stopping.iter().for_each(Stopping::interrupt),
                    Err(why) => return Err((why, everyone.give_up(stopping))),
                }
            } else if since.elapsed() > patience {
                return Err((NotStopped::Late, everyone.give_up(stopping)));
            } else if stopping.len() == before {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// For how long the first has been stopped.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Any of them.
    pub fn one(&self) -> Option<&Stopped> {
        self.threads.first().map(|(_, stopped, _)| stopped)
    }

    /// Calls `visit` with each address where a thread may go on: where it was stopped, and all that its stack holds. A
    /// handler's stack holds where the signal has interrupted the thread. `stack`: the end of the first thread's.
    pub fn each_address(&self, stack: u64, mut visit: impl FnMut(u64)) {
        for (tid, _, registers) in &self.threads {
            visit(registers.rip);
            let end = match *tid == self.pid {
                true => stack,
                // The C library keeps what it knows of a thread at the end of its stack.
                false => registers.fs_base,
            };
            let top = registers.rsp & !7;
            match end.checked_sub(top) {
                Some(depth) if depth <= DEEPEST => self.words(top..end, &mut visit),
                _ => {
                    self.words(top..top.saturating_add(OTHER), &mut visit);
                    self.words(end.saturating_sub(OWN) & !7..end, &mut visit);
                }
            }
        }
    }

    /// The words of a range, up to where nothing is mapped.
    fn words(&self, range: Range<u64>, visit: &mut impl FnMut(u64)) {
        const CHUNK: u64 = 64 << 10;
        let mut buffer = vec![0; CHUNK as usize];
        let mut at = range.start;
        while at < range.end {
            let wanted = (range.end - at).min(CHUNK) as usize;
            let read = self.memory.read_some(at, &mut buffer[..wanted]);
            for word in buffer[..read].chunks_exact(8) {
                visit(word.try_into().map_or(0, u64::from_le_bytes));
            }
            if read < wanted {
                return;
            }
            at += wanted as u64;
        }
    }

    /// Lets all go on, and those that are `stopping`, when they stop; for how long the first was stopped. Not at once, as these
    /// may take long: first those whose waits cannot end by a child's end.
    fn give_up(mut self, stopping: Vec<Stopping>) -> Duration {
        self.threads
            .sort_by_key(|(.., registers)| was_cut_short(registers));
        for (_, stopped, registers) in self.threads {
            stopped.go_on(registers);
        }
        let stopped = self.since.elapsed();
        for thread in stopping {
            thread.go_on();
        }
        stopped
    }

    /// Lets all go on when the thread that has stopped them ends, which it is to do now; for how long the first was stopped.
    pub fn release(self) -> Duration {
        let threads = self.threads.into_iter();
        let (forking, others): (Vec<_>, Vec<_>) =
            threads.partition(|(.., registers)| has_made_process(registers));
        let forking: Vec<_> = forking
            .into_iter()
            .map(|(tid, stopped, registers)| {
                stopped.go_on(registers);
                tid
            })
            .collect();
        let let_go = Instant::now();
        for tid in forking {
            while process::blocks(tid, libc::SIGCHLD) && let_go.elapsed() < FORKING {
                std::thread::sleep(LOOK);
            }
        }
        for (_, stopped, registers) in &others {
            stopped.settle(*registers);
        }
        self.since.elapsed()
    }
}

/// Begins to trace the threads that are not `known`, only those without children where it `spares` others; whether there were any.
fn seize_new(
    pid: i32,
    spares: bool,
    known: &mut Vec<i32>,
    stopping: &mut Vec<Stopping>,
) -> Result<bool, NotStopped> {
    let mut has_new = false;
    for tid in process::threads(pid) {
        if known.contains(&tid) || spares && process::has_children(pid, tid) {
            continue;
        }
        match Stopping::seize(tid) {
            Ok(thread) => stopping.push(thread),
            Err(NotStopped::Gone) => {}
            Err(_) if has_ended(pid, tid) => {}
            Err(why) => return Err(why),
        }
        known.push(tid);
        has_new = true;
    }
    Ok(has_new)
}

/// Waits until no thread is in uninterruptible sleep; false where one still is after `timeout`. The others would be stopped
/// until it wakes.
pub fn await_interruptible(pid: i32, timeout: Duration) -> bool {
    let since = Instant::now();
    while is_any_uninterruptible(pid) {
        if since.elapsed() > timeout {
            return false;
        }
        std::thread::sleep(SLEEPERS_LOOK);
    }
    true
}

fn is_any_uninterruptible(pid: i32) -> bool {
    let mut threads = process::threads(pid).into_iter();
    threads.any(|tid| state(pid, tid) == Some('D'))
}

/// Whether a thread has ended and is still listed, as the first of a process whose others go on.
fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

fn state(pid: i32, tid: i32) -> Option<char> {
    let path = process::folder(pid).join(format!("task/{tid}/stat"));
    let stat = fs::read_to_string(path).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
