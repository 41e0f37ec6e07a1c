//! Reports the totals of Python's garbage collections and GIL use at the end of the process.
//!
//! The report may run in a signal handler that ends the process, so nothing here allocates.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use super::holds::EventTotal;
use super::longest::{self, Longest};
use super::threads::{self, Thread};
use super::time::{Milliseconds, now};
use super::wants::wants;
use super::{attached, gc, gil};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    #[restart(keep)]
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
}

/// Logs the totals if messages of this level are logged. The totals are logged only once.
pub(crate) fn report(level: Level) {
    let wants = wants();
    if !(wants.gc || wants.gil) || !attached::is_there() || !log::is_logged(level) {
        return;
    }
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    if wants.gc {
        log::line(level, format_args!("Python GC: {}", gc::TOTALS));
    }
    if wants.gil {
        let threads = threads::all();
        Gil::sum_up(threads, now(), longest::take(), gil::missed()).report(level);
    }
}

/// Returns the number of times that threads have taken a GIL and dropped it so far, or `None` if the GIL is not
/// observed.
pub(crate) fn gil_handoffs() -> Option<u64> {
    let count = || {
        threads::all()
            .map(|thread| thread.holds.holds.count())
            .sum()
    };
    (wants().gil && attached::is_there()).then(count)
}

/// The number of the waits or the holds of all threads together, and their total time in ns.
#[derive(Clone, Copy, Default)]
struct KindTotal {
    count: u64,
    time: u64,
}

impl KindTotal {
    fn add(&mut self, total: &EventTotal) {
        self.count += total.count();
        self.time += total.time();
    }
}

struct Gil {
    holds: KindTotal,
    waits: KindTotal,
    forced: KindTotal,
    longest: Option<Longest>,
    /// Number of GILs that were not observed because too many others were observed already.
    missed: u32,
}

impl Gil {
    /// Adds up the GIL use of these threads until the time `now`. `longest` is the longest wait of
    /// threads that have ended.
    fn sum_up<'a>(
        threads: impl Iterator<Item = &'a Thread>,
        now: u64,
        longest: Option<Longest>,
        missed: u32,
    ) -> Self {
        let mut gil = Self {
            holds: KindTotal::default(),
            waits: KindTotal::default(),
            forced: KindTotal::default(),
            longest,
            missed,
        };
        for thread in threads {
            let holds = &thread.holds;
            gil.holds.add(&holds.holds);
            gil.waits.add(&holds.waits);
            gil.forced.add(&holds.forced);
            // A thread may hold the GIL until the end without dropping it, so the time of the hold
            // so far is added.
            if let Some(since) = holds.holds_since() {
                gil.holds.count += 1;
                gil.holds.time += now.saturating_sub(since);
            }
            let time = holds.waits.longest();
            if time > gil.longest.as_ref().map_or(0, |longest| longest.time) {
                let name = thread.name();
                gil.longest = Some(Longest { time, name });
            }
        }
        gil
    }

    fn report(&self, level: Level) {
        if self.holds.count > 0 {
            log::line(level, format_args!("Python GIL: {self}"));
        }
    }
}

impl fmt::Display for Gil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; {}",
            Many("hold", self.holds),
            Many("wait", self.waits)
        )?;
        if let Some(longest) = &self.longest {
            let time = Milliseconds(longest.time);
            write!(f, ", the longest {time} ms by {}", longest.name)?;
        }
        write!(f, "; {}", Many("forced switch", self.forced))?;
        match self.missed {
            0 => Ok(()),
            missed => write!(f, "; {missed} more GILs were not followed"),
        }
    }
}

/// Displays a number of waits, holds or forced switches, with their name and total time.
struct Many(&'static str, KindTotal);

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what, KindTotal { count, time }) = self;
        let end = match (*count, what.ends_with("ch")) {
            (1, _) => "",
            (_, true) => "es",
            (_, false) => "s",
        };
        write!(f, "{count} {what}{end}")?;
        if *count > 0 {
            write!(
                f,
                ", {}.{:06} s",
                time / 1_000_000_000,
                time / 1000 % 1_000_000
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_name::ThreadName;

    fn sum(count: u64, time: u64) -> KindTotal {
        KindTotal { count, time }
    }

    #[test]
    fn each_count_has_its_plural_and_its_time() {
        let many = |what, count, time| Many(what, sum(count, time)).to_string();
        assert_eq!(many("hold", 0, 0), "0 holds");
        assert_eq!(many("hold", 1, 1_500_000_000), "1 hold, 1.500000 s");
        assert_eq!(
            many("forced switch", 2, 42_000),
            "2 forced switches, 0.000042 s"
        );
    }

    #[test]
    fn the_gils_line_names_the_longest_wait() {
        let name = ThreadName::new();
        name.set_pythons(b"worker");
        let gil = Gil {
            holds: sum(2, 1000),
            waits: sum(1, 2_000_000),
            forced: sum(0, 0),
            longest: Some(Longest {
                time: 2_000_000,
                name: name.get(7),
            }),
            missed: 3,
        };
        assert_eq!(
            gil.to_string(),
            "2 holds, 0.000001 s; 1 wait, 0.002000 s, the longest 2.000 ms by worker; 0 forced \
             switches; 3 more GILs were not followed"
        );
    }

    #[test]
    fn a_hold_that_is_under_way_counts_until_now() {
        let thread = threads::current().unwrap();
        thread.holds.begin_anew();
        thread.holds.takes(0);
        let since = thread.holds.holds_since().unwrap();
        let name = thread.name();
        let longest = Some(Longest { time: 5, name });
        let gil = Gil::sum_up(core::iter::once(thread), since + 7000, longest, 0);
        assert_eq!((gil.holds.count, gil.holds.time), (1, 7000));
        assert_eq!(
            (gil.waits.count, gil.longest.map(|it| it.time)),
            (0, Some(5))
        );
        thread.holds.begins_to_wait(0);
        std::thread::sleep(core::time::Duration::from_millis(1));
        thread.holds.takes(0);
        let gil = Gil::sum_up(core::iter::once(thread), now(), None, 0);
        assert_eq!((gil.holds.count, gil.waits.count), (2, 1));
        assert_eq!(gil.longest.unwrap().time, gil.waits.time);
    }
}
