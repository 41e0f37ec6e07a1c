//! Stops all threads of another process at the same time.
//!
//! As for one thread ([`crate::traced`]), the threads are stopped from a separate thread of the command. Threads
//! that are still stopped continue when that thread ends, or when the command is killed.
//!
//! When a child ends, its parent gets a signal that most programs ignore. The kernel normally drops it. But if the
//! thread that made the child is traced, or blocks signals as in `fork`, the kernel wakes a thread for the signal;
//! if that one is stopped, it wakes another. This ends a wait of a running thread early. So threads with children
//! are stopped last, threads in `fork` continue first, and all others continue after them at the same moment, when
//! their tracer ends.

#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;

use crate::memory::ProcessMemory;
use crate::process;
use crate::traced::{NotStopped, Stopped, Stopping, has_made_process, was_cut_short};

/// Interval between two polls of threads that have not stopped yet.
const POLL_INTERVAL: Duration = Duration::from_micros(30);
/// Interval between two polls of threads in uninterruptible sleep, in which a page is read or memory is mapped.
const SLEEPERS_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Limit for how long a thread that was stopped in `fork` may take to unblock signals, before the others continue.
const FORK_TIMEOUT: Duration = Duration::from_millis(1);
/// Limit for the bytes of a thread's stack that are searched.
const MAX_STACK: u64 = 8 << 20;
/// Limits for a thread that is not on its own stack: for the bytes that are searched on the other stack, and on
/// its own.
const MAX_OTHER_STACK: u64 = 1 << 20;
const MAX_OWN_STACK: u64 = 256 << 10;

pub struct Everyone<'a> {
    pid: i32,
    memory: &'a ProcessMemory,
    threads: Vec<(i32, Stopped, Registers)>,
    since: Instant,
}

impl<'a> Everyone<'a> {
    /// Stops all threads by the deadline, `patience` after the first one was stopped.
    ///
    /// # Errors
    /// Returns the reason why they are not all stopped, and for how long some were.
    pub fn stop(
        pid: i32,
        memory: &'a ProcessMemory,
        patience: Duration,
    ) -> Result<Self, (NotStopped, Duration)> {
        let (mut known, mut stopping) = (Vec::new(), Vec::new());
        // Tracing itself stops no thread. Tracing them all first means fewer new threads appear during the stop.
        // Threads with children are stopped last.
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
                            // This is done at once: if the command is killed, the thread continues with these
                            // registers.
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
                // These are threads with children, and a thread that was just created by one that has stopped
                // since.
                match seize_new(pid, false, &mut known, &mut stopping) {
                    Ok(false) => return Ok(everyone),
                    Ok(true) => stopping.iter().for_each(Stopping::interrupt),
                    Err(why) => return Err((why, everyone.give_up(stopping))),
                }
            } else if since.elapsed() > patience {
                return Err((NotStopped::Late, everyone.give_up(stopping)));
            } else if stopping.len() == before {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Returns the time since the first thread was stopped.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns any of the threads.
    pub fn one(&self) -> Option<&Stopped> {
        self.threads.first().map(|(_, stopped, _)| stopped)
    }

    /// Calls `visit` with each address where a thread may continue: its current instruction, and all words on its
    /// stack. In a signal handler, the stack holds the address where the signal interrupted the thread. `stack` is
    /// the end of the first thread's stack.
    pub fn each_address(&self, stack: u64, mut visit: impl FnMut(u64)) {
        for (tid, _, registers) in &self.threads {
            visit(registers.rip);
            let end = match *tid == self.pid {
                true => stack,
                // The C library stores its data about a thread at the end of the thread's stack.
                false => registers.fs_base,
            };
            let top = registers.rsp & !7;
            match end.checked_sub(top) {
                Some(depth) if depth <= MAX_STACK => self.words(top..end, &mut visit),
                _ => {
                    self.words(top..top.saturating_add(MAX_OTHER_STACK), &mut visit);
                    self.words(end.saturating_sub(MAX_OWN_STACK) & !7..end, &mut visit);
                }
            }
        }
    }

    /// Visits the words of a range, up to the first that is not mapped.
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

    /// Resumes all threads, and those that are `stopping` once they stop. Returns for how long the first one was
    /// stopped. Stopping threads may take long, so they are not resumed together: threads whose waits cannot end
    /// early by a child's end are resumed first.
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

    /// Resumes all threads. The calling thread has stopped them, and must end right after this. Returns how long the
    /// first thread was stopped.
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
            while process::blocks(tid, libc::SIGCHLD) && let_go.elapsed() < FORK_TIMEOUT {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        for (_, stopped, registers) in &others {
            stopped.settle(*registers);
        }
        self.since.elapsed()
    }
}

/// Begins to trace the threads that are not `known`; if `spares` is true, only those without children. Returns
/// true if there were any.
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

/// Waits until no thread is in uninterruptible sleep. Returns false if one still is after `timeout`. With such a
/// thread, the others would stay stopped until it wakes.
pub fn await_interruptible(pid: i32, timeout: Duration) -> bool {
    let since = Instant::now();
    while is_any_uninterruptible(pid) {
        if since.elapsed() > timeout {
            return false;
        }
        std::thread::sleep(SLEEPERS_POLL_INTERVAL);
    }
    true
}

fn is_any_uninterruptible(pid: i32) -> bool {
    let mut threads = process::threads(pid).into_iter();
    threads.any(|tid| state(pid, tid) == Some('D'))
}

/// Returns true if a thread has ended but is still listed, like the first thread of a process whose other threads
/// still run.
fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

fn state(pid: i32, tid: i32) -> Option<char> {
    let path = process::folder(pid).join(format!("task/{tid}/stat"));
    let stat = fs::read_to_string(path).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
