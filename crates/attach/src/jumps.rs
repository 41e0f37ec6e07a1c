//! Writes jumps at the entries of the CUDA driver's functions in another process, so that calls of these functions
//! reach the library. The library, which is loaded in that process, has prepared the jumps.
//!
//! All threads of the process are stopped while jumps are written. A jump is written only if no thread is in the middle
//! of the instructions that it replaces. A thread that is about to execute the first of these instructions does no
//! harm, because it then executes the jump. No function can return into these instructions, because they contain no
//! call. But a signal handler may return into them, and its return address is on a stack. So a jump is postponed while
//! any word on a stack could be the address of one of those instructions.
//!
//! **Killing the command is harmless.** Each jump is written by one system call and lies within a page, so the kernel
//! writes the whole jump or none of it. When the command is killed, the kernel resumes the threads. Calls work with any
//! subset of the jumps, because each jump is complete by itself and the code that it leads to existed before.

use std::mem::offset_of;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tllmprof_control::jumps::{Jump, Jumps, LAYOUT, MAX_JUMPS, SYMBOL};

use crate::elf;
use crate::everyone::{Everyone, await_interruptible};
use crate::library::Hooked;
use crate::memory::{self, ProcessMemory};
use crate::process;
use crate::stub::MADE;
use crate::traced::NotStopped;

/// Maximum time for which the threads may be stopped before the first jump is written. If this time passes, the
/// threads are resumed without a jump, and the next round (one stop of all threads) tries again.
const STOP_TIMEOUT: Duration = Duration::from_millis(10);
/// Maximum number of rounds. Each round stops all threads once.
const MAX_ROUNDS: u32 = 40;
/// The time after which no further round begins. A round that has begun is completed. No thread stays stopped between
/// rounds.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two rounds (stops of all threads).
const ROUND_PAUSE: Duration = Duration::from_millis(25);
/// Maximum number of rounds (stops of all threads) that may fail because a thread did not stop in time.
const MAX_LATE_ROUNDS: u32 = 20;
/// Pause after the first round in which a thread did not stop in time. The pause after the n-th such round is n times
/// as long.
const LATE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time that a round waits for threads in uninterruptible sleep to wake. The wait comes before the round stops
/// any thread.
const ASLEEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The reason that is reported if a thread did not stop in time. The threads were then never all stopped at the same
/// time.
const IS_LATE: JumpFailure = "its threads did not stop at the same time";

/// A jump that has not been written yet: its address, the length of the instructions that it replaces, and the word at
/// this address before and after the jump is written.
struct UnwrittenJump {
    at: u64,
    length: u64,
    before: u64,
    after: u64,
}

struct Entries {
    pid: i32,
    memory: ProcessMemory,
    /// Address of the library's [`Jumps`] table in the process.
    jumps: u64,
    /// Address of the end of the main thread's stack in the process.
    stack: u64,
}

/// The reason why some jumps at the entries of the driver's functions were not written.
pub(crate) type JumpFailure = &'static str;

/// Writes the jumps that the library has prepared and that have not been written yet. If some of them cannot be
/// written, the reason is in [`Hooked::why`].
///
/// # Errors
/// Returns the reason if the state of the jumps cannot be determined.
pub(crate) fn write(pid: i32, library: &Path) -> Result<Hooked, JumpFailure> {
    let entries = Entries::find(pid, library).ok_or("the library's own data was not found")?;
    let mut hooked = Hooked::default();
    let (mut why, mut late, mut tries) = (None, 0, 0);
    let since = Instant::now();
    while may_try(tries, late, since.elapsed()) {
        let wanted = entries.wanted().ok_or("its memory cannot be read")?;
        if wanted.is_empty() {
            why = None;
            break;
        }
        if tries > 0 {
            thread::sleep(if why == Some(IS_LATE) {
                LATE_PAUSE * late
            } else {
                ROUND_PAUSE
            });
        }
        tries += 1;
        if !await_interruptible(pid, ASLEEP_TIMEOUT) {
            why = Some("some of its threads were in uninterruptible sleep for 10 s");
            break;
        }
        hooked.rounds += 1;
        // Each round has a separate tracer thread, because the kernel resumes the stopped threads when their tracer
        // ends.
        let round = || (entries.round(&wanted), Instant::now());
        let round = thread::scope(|scope| scope.spawn(round).join());
        let Ok(((result, stopped), ended)) = round else {
            return Err("an internal error (please report it)");
        };
        process::await_untraced(pid);
        hooked.stopped = hooked.stopped.max(stopped + ended.elapsed());
        why = result.err();
        late += u32::from(why == Some(IS_LATE));
        if !process::is_there(pid) {
            return Err("the process has ended");
        }
    }
    hooked.known = entries.word(offset_of!(Jumps, known)).unwrap_or(0);
    let count = entries.word(offset_of!(Jumps, count)).unwrap_or(0);
    let missing = entries.wanted().map_or(0, |wanted| wanted.len());
    hooked.seen = count.saturating_sub(missing as u64);
    hooked.why = why;
    Ok(hooked)
}

/// Returns true if another round may be made after `tries` rounds, `late` of which have failed because a thread did not
/// stop in time. `elapsed` is the time since the first round began.
fn may_try(tries: u32, late: u32, elapsed: Duration) -> bool {
    tries < MAX_ROUNDS && late < MAX_LATE_ROUNDS && elapsed < TOTAL_TIMEOUT
}

impl Entries {
    fn find(pid: i32, library: &Path) -> Option<Self> {
        let memory = ProcessMemory::open(pid).ok()?;
        let maps = memory::maps(pid).ok()?;
        let real = std::fs::canonicalize(library).ok()?;
        let modules = elf::modules(&memory, &maps);
        let module = modules
            .iter()
            .find(|module| module.path == MADE || Path::new(&module.path) == real)?;
        let symbol = module.variable(&memory, SYMBOL)?;
        let jumps = memory.word(symbol)?;
        let stack = maps.iter().find(|mapping| mapping.path == "[stack]");
        let entries = Self {
            pid,
            jumps,
            stack: stack.map_or(0, |stack| stack.end),
            memory,
        };
        (entries.word(offset_of!(Jumps, layout))? == LAYOUT).then_some(entries)
    }

    fn word(&self, offset: usize) -> Option<u64> {
        self.memory.word(self.jumps + offset as u64)
    }

    /// Returns the jumps of the library's table that have not been written yet, ordered by address. Returns `None` if
    /// the process's memory cannot be read.
    fn wanted(&self) -> Option<Vec<UnwrittenJump>> {
        let count = self.word(offset_of!(Jumps, count))?.min(MAX_JUMPS as u64);
        let mut wanted = Vec::new();
        for index in 0..count as usize {
            let row = offset_of!(Jumps, all) + index * size_of::<Jump>();
            let field = |offset| self.word(row + offset);
            let jump = UnwrittenJump {
                at: field(offset_of!(Jump, at))?,
                length: field(offset_of!(Jump, length))?,
                before: field(offset_of!(Jump, before))?,
                after: field(offset_of!(Jump, after))?,
            };
            if self.memory.word(jump.at)? != jump.after {
                wanted.push(jump);
            }
        }
        wanted.sort_by_key(|jump| jump.at);
        Some(wanted)
    }

    /// Performs one round: stops all threads, and writes each jump that is safe at this moment. A jump is safe if no
    /// thread executes the instructions that it replaces, and none may return into them. Returns the outcome, and how
    /// long the threads were stopped.
    fn round(&self, wanted: &[UnwrittenJump]) -> (Result<(), JumpFailure>, Duration) {
        // Raises the priority of this thread, the tracer, so that the stopped threads do not wait until the tracer gets
        // a processor. Only root may raise the priority.
        // SAFETY: the arguments are numbers, and only this thread is affected.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
        let everyone = match Everyone::stop(self.pid, &self.memory, STOP_TIMEOUT) {
            Ok(everyone) => everyone,
            Err((why, stopped)) => {
                let why = match why {
                    NotStopped::Late => IS_LATE,
                    NotStopped::ByASignal => "it is stopped by a signal",
                    NotStopped::NotPermitted => "one of its threads may not be traced",
                    NotStopped::Gone => "it has ended",
                };
                return (Err(why), stopped);
            }
        };
        let mut is_busy = vec![false; wanted.len()];
        let span = match (wanted.first(), wanted.last()) {
            (Some(first), Some(last)) => first.at..last.at + last.length,
            _ => 0..0,
        };
        everyone.each_address(self.stack, |address| {
            if !span.contains(&address) {
                return;
            }
            let index = wanted.partition_point(|jump| jump.at < address);
            if let Some(index) = index.checked_sub(1)
                && address < wanted[index].at + wanted[index].length
            {
                is_busy[index] = true;
            }
        });
        if everyone.elapsed() > STOP_TIMEOUT {
            return (
                Err("its threads' stacks take too long to look at"),
                everyone.release(),
            );
        }
        let result = self.write(&everyone, wanted, &is_busy);
        (result, everyone.release())
    }

    fn write(
        &self,
        everyone: &Everyone<'_>,
        wanted: &[UnwrittenJump],
        is_busy: &[bool],
    ) -> Result<(), JumpFailure> {
        let one = everyone.one().ok_or("it has ended")?;
        let mut result = Ok(());
        for (jump, is_busy) in wanted.iter().zip(is_busy) {
            if *is_busy {
                result = Err("a thread was at the beginning of one of the functions each time");
            } else if self.memory.word(jump.at) != Some(jump.before) {
                result = Err("something else has changed the beginning of one of the functions");
            } else if one.write(jump.at, &jump.after.to_le_bytes()).is_none() {
                result = Err("the system does not let its code be written");
            }
        }
        let rounds = offset_of!(Jumps, rounds);
        let number = self.word(rounds).unwrap_or(0) + 1;
        let written = one.write(self.jumps + rounds as u64, &number.to_le_bytes());
        written.ok_or("the system does not let its memory be written")?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_limited_by_number_and_time() {
        assert!(may_try(0, 0, Duration::ZERO));
        assert!(may_try(MAX_ROUNDS - 1, MAX_LATE_ROUNDS - 1, Duration::ZERO));
        assert!(!may_try(MAX_ROUNDS, 0, Duration::ZERO));
        assert!(!may_try(MAX_LATE_ROUNDS, MAX_LATE_ROUNDS, Duration::ZERO));
        assert!(!may_try(1, 0, TOTAL_TIMEOUT));
    }
}
