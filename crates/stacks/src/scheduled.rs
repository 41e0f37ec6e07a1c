//! Finds out if a thread runs, waits for a processor, or sleeps.
//!
//! A thread that runs uses processor time, which can be read without a file. For other threads, a
//! file in `/proc` shows if the thread is runnable.

use std::time::Instant;

use tllmprof_platform::system::processor_time;
use tllmprof_recorder::ThreadState;

use super::files::{self, LENGTH, TaskFile, close};
use super::followed::Followed;

/// The state of a thread at a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ThreadActivity {
    /// The thread exists. Its state is `None` if it could not be read.
    There(Option<ThreadState>),
    /// The thread exists. Its state cannot be read, because no further file may be opened.
    Unread,
    /// The thread has ended.
    Gone,
}

/// The data about a thread that is needed from one sample to the next.
pub(crate) struct Scheduled {
    /// The time of the last sample, and the thread's processor time at that moment in ns.
    at: Instant,
    used: u64,
}

impl Scheduled {
    /// Starts to observe a thread. Returns `None` if the thread has ended.
    pub(crate) fn begin(thread: Followed) -> Option<Self> {
        close(thread.place);
        Some(Self {
            at: Instant::now(),
            used: processor_time(thread.number)?,
        })
    }

    /// Returns the thread's processor time at the last sample, in ns.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// Stores the time of a sample at which the thread had used no more processor time than at the
    /// sample before.
    pub(crate) fn still_sleeps(&mut self) {
        self.at = Instant::now();
    }

    /// Returns the state of the thread at a sample that was just taken. `used` is the thread's
    /// processor time in ns when the sample began, and `ours` the processor on which it began.
    pub(crate) fn seen(&mut self, thread: Followed, used: u64, ours: i32) -> ThreadActivity {
        let Some(now) = processor_time(thread.number) else {
            close(thread.place);
            return ThreadActivity::Gone;
        };
        let at = Instant::now();
        let ran = u128::from(now.saturating_sub(self.used));
        let ran_mostly = 2 * ran > at.duration_since(self.at).as_nanos();
        (self.at, self.used) = (at, now);
        // Without the file `stat` of the thread, only a running thread can be recognised. If only samples of running
        // threads were written, the thread would seem to run all the time. So no sample is written.
        if files::is_full(thread.place) && look(thread).is_none() {
            return ThreadActivity::Unread;
        }
        if now > used {
            return ThreadActivity::There(Some(ThreadState::Running));
        }
        let Some((letter, processor)) = look(thread) else {
            return ThreadActivity::There(None);
        };
        ThreadActivity::There(Some(match letter {
            b'Z' | b'X' | b'x' => {
                close(thread.place);
                return ThreadActivity::Gone;
            }
            // A thread that was running on the sampler's processor had to make way for the sampler,
            // so it counts as running.
            b'R' if processor == ours && ran_mostly => ThreadState::Running,
            b'R' => ThreadState::Runnable,
            _ => ThreadState::Sleeping,
        }))
    }
}

/// Returns the letter of the thread's state, and the processor on which it ran last.
fn look(thread: Followed) -> Option<(u8, i32)> {
    parse(files::read(
        thread.files(),
        TaskFile::Stat,
        &mut [0; LENGTH],
    )?)
}

/// Parses the file `stat` as described in proc(5). The second field is the name in brackets, the
/// third the state, and the 39th the processor.
fn parse(stat: &[u8]) -> Option<(u8, i32)> {
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = str::from_utf8(stat.get(behind..)?)
        .ok()?
        .split_ascii_whitespace();
    let letter = *fields.next()?.as_bytes().first()?;
    let processor = fields.nth(35)?.parse().ok()?;
    Some((letter, processor))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
    use std::thread::scope;
    use std::time::Duration;

    use tllmprof_platform::ids;

    use super::*;
    use crate::exclusive::alone;

    #[test]
    fn the_state_and_the_processor_are_found_behind_any_name() {
        let stat = "7 (a) R 1 (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 \
                    31 32 33 34 35 5 37\n";
        assert_eq!(parse(stat.as_bytes()), Some((b'S', 5)));
        assert_eq!(parse(b"7 (a) R 1"), None);
        assert_eq!(parse(b""), None);
        let own = std::fs::read("/proc/thread-self/stat").unwrap();
        let (letter, processor) = parse(&own).unwrap();
        assert!(letter == b'R' && processor >= 0);
    }

    #[test]
    fn a_thread_whose_state_may_not_be_read_is_not_said_to_run() {
        let _alone = alone();
        let thread = Followed {
            place: 0,
            number: ids::thread(),
            target: None,
        };
        let mut scheduled = Scheduled::begin(thread).unwrap();
        let mut see = || scheduled.seen(thread, 0, 0);
        files::set_full(thread.place);
        assert_eq!(see(), ThreadActivity::Unread);
        files::close_all();
        assert_eq!(see(), ThreadActivity::There(Some(ThreadState::Running)));
        files::close_all();
    }

    #[test]
    fn a_thread_runs_sleeps_and_ends() {
        let _alone = alone();
        let (number, sleeps) = (AtomicI32::new(0), AtomicBool::new(false));
        scope(|scope| {
            let worker = scope.spawn(|| {
                number.store(ids::thread(), Ordering::Release);
                while !sleeps.load(Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
                std::thread::park();
            });
            while number.load(Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            let thread = Followed {
                place: 0,
                number: number.load(Ordering::Acquire),
                target: None,
            };
            let mut scheduled = Scheduled::begin(thread).unwrap();
            let mut see = || {
                // SAFETY: the function takes no arguments.
                let ours = unsafe { libc::sched_getcpu() };
                let used = processor_time(thread.number).unwrap_or(0);
                std::thread::sleep(Duration::from_millis(1));
                scheduled.seen(thread, used, ours)
            };
            let has =
                |state| move |seen: ThreadActivity| seen == ThreadActivity::There(Some(state));
            assert!((0..1000).map(|_| see()).any(has(ThreadState::Running)));
            sleeps.store(true, Ordering::Relaxed);
            assert!((0..1000).map(|_| see()).any(has(ThreadState::Sleeping)));
            worker.thread().unpark();
            worker.join().unwrap();
            assert!(
                (0..1000)
                    .map(|_| see())
                    .any(|seen| seen == ThreadActivity::Gone)
            );
            assert!(!files::is_open(0));
        });
    }
}
