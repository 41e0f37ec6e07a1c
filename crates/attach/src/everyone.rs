//! Stops all threads of another process at the same time.
//!
//! The tracer, a separate thread of the command `tllmprof`, stops the threads. [`crate::traced`] does the same
//! for a single thread. Threads that are still stopped continue when the tracer ends, or when the command is killed.
//!
//! The stop must not make a system call of the program return early. When a child process ends, its parent gets
//! SIGCHLD. Most programs ignore this signal, and the kernel then drops it without waking a thread. But if the thread
//! that created the child is traced, or blocks signals because it is inside `fork`, the kernel wakes a thread to
//! handle the signal. If that thread is stopped, the kernel wakes another one, and the system call in which this
//! other thread waits returns early. Therefore threads with children are stopped last. Threads inside `fork` are
//! resumed first, and all other threads are resumed together when their tracer ends.

#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;

use crate::memory::ProcessMemory;
use crate::process;
use crate::traced::{NotStopped, Stopped, Stopping, has_made_process, was_cut_short};

/// Interval between two checks of whether a thread that was asked to stop has stopped.
const POLL_INTERVAL: Duration = Duration::from_micros(30);
/// Interval between two polls of threads in uninterruptible sleep. Threads sleep like this while they read a page or
/// map memory.
const SLEEPERS_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time to wait, after the threads inside `fork` were resumed, until they no longer block signals. After this
/// time, the other threads are resumed in any case.
const FORK_TIMEOUT: Duration = Duration::from_millis(1);
/// Maximum number of bytes on a thread's stack that are searched for return addresses.
const MAX_STACK: u64 = 8 << 20;
/// Maximum number of bytes that are searched for return addresses on the stack that a thread currently runs on. This
/// limit applies if that stack is not the thread's own one but, for example, a signal stack.
const MAX_OTHER_STACK: u64 = 1 << 20;
/// Maximum number of bytes that are searched for return addresses on a thread's own stack while the thread runs on
/// another stack. The searched bytes are those at the highest addresses, where the stack begins.
const MAX_OWN_STACK: u64 = 256 << 10;

pub(crate) struct Everyone<'a> {
    pid: i32,
    memory: &'a ProcessMemory,
    threads: Vec<(i32, Stopped, Registers)>,
    since: Instant,
}

impl<'a> Everyone<'a> {
    /// Stops all threads. Gives up if `patience` has passed since the first thread was asked to stop, and some thread
    /// has not stopped yet.
    ///
    /// # Errors
    /// Returns the reason why not all threads stopped, and how long the threads that did stop were stopped.
    pub(crate) fn stop(
        pid: i32,
        memory: &'a ProcessMemory,
        patience: Duration,
    ) -> Result<Self, (NotStopped, Duration)> {
        let (mut known, mut stopping) = (Vec::new(), Vec::new());
        // Tracing a thread does not stop it. All threads are traced before the first one is stopped, so that few
        // threads are created between the first and the last stop. Threads with children are left out at first, and
        // stopped last.
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
                            // The stop may have made the thread's system call return early. If so, set the registers
                            // now so that the thread repeats the call. The thread then repeats it even if the command
                            // is killed during the stop.
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
                // The threads that are found here are the threads with children, which were left out above, and threads
                // that another thread created before it stopped.
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

    /// Returns the time since the first thread of the process was asked to stop.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns one of the stopped threads. A tracer can write the process's memory through any stopped thread.
    pub(crate) fn one(&self) -> Option<&Stopped> {
        self.threads.first().map(|(_, stopped, _)| stopped)
    }

    /// Calls `visit` with each address at which a thread may continue: its current instruction, and each word on its
    /// stack, because the word may be a return address. `stack` is the highest address of the main thread's stack.
    pub(crate) fn each_address(&self, stack: u64, mut visit: impl FnMut(u64)) {
        for (tid, _, registers) in &self.threads {
            visit(registers.rip);
            let end = match *tid == self.pid {
                true => stack,
                // For a thread other than the main one, `fs_base` is used as the end of the stack: glibc places its
                // data about a thread there, and the register `fs_base` points to this data.
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

    /// Calls `visit` with each word of an address range, up to the first word that is not mapped.
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

    /// Resumes all threads after a stop has failed. The stopped threads are resumed first, and among them those whose
    /// system call was cut short come last: while another thread is stopped, the end of a child process could cut short
    /// the repeated call again. Each thread in `stopping` is resumed as soon as it stops, which may take long. Returns
    /// how long the stopped threads were stopped.
    fn give_up(mut self, mut stopping: Vec<Stopping>) -> Duration {
        self.threads
            .sort_by_key(|(.., registers)| was_cut_short(registers));
        for (_, stopped, registers) in self.threads {
            stopped.go_on(registers);
        }
        Stopping::resume_stopped(&mut stopping);
        let stopped = self.since.elapsed();
        Stopping::resume_all(stopping);
        stopped
    }

    /// Resumes the threads inside `fork`. Sets the registers of all other threads so that these repeat a system call
    /// that the stop has cut short. The kernel resumes the other threads when their tracer ends. So the tracer thread
    /// must call this function, and must end right afterwards. Returns how long the first thread was stopped.
    pub(crate) fn release(self) -> Duration {
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

/// Starts to trace each thread that is not in `known`, and adds it to `known` and `stopping`. If `spares` is true,
/// threads with child processes are left out. Returns true if at least one thread was added to `known`.
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

/// Waits until no thread of the process is in uninterruptible sleep. Returns false if this takes longer than `timeout`.
/// Called before all threads are stopped: a thread in such a sleep stops only when it wakes, and the other threads
/// would be stopped until then.
pub(crate) fn await_interruptible(pid: i32, timeout: Duration) -> bool {
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

/// Returns true if a thread has ended. Such a thread may still be listed in `/proc`: the main thread stays listed as
/// long as other threads of its process run.
fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

fn state(pid: i32, tid: i32) -> Option<char> {
    let path = process::folder(pid).join(format!("task/{tid}/stat"));
    let stat = fs::read_to_string(path).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
