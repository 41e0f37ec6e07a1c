//! What is said of Python at the end.
//!
//! It may be said in a signal handler that ends the process, so nothing here allocates.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use super::holds::Total;
use super::longest::{self, Longest};
use super::time::{Milliseconds, now};
use super::wants::wants;
use super::{attached, gc, gil, threads};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    #[restart(keep)]
    static SAID: AtomicBool = AtomicBool::new(false);
}

/// Says the totals, once.
pub fn report(level: Level) {
    let wants = wants();
    if !(wants.gc || wants.gil) || !attached::is_there() || !log::is_logged(level) {
        return;
    }
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    if wants.gc {
        log::line(level, format_args!("Python GC: {}", gc::TOTALS));
    }
    if wants.gil {
        Gil::now().report(level);
    }
}

/// How often a thread has taken a GIL so far; none where that is not followed.
pub fn gil_handoffs() -> Option<u64> {
    let count = || {
        threads::all()
            .map(|thread| thread.holds.holds.count())
            .sum()
    };
    (wants().gil && attached::is_there()).then(count)
}

/// All threads' totals of one kind.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    time: u64,
}

impl Sum {
    fn add(&mut self, total: &Total) {
        self.count += total.count();
        self.time += total.time();
    }
}

struct Gil {
    holds: Sum,
    waits: Sum,
    forced: Sum,
    longest: Option<Longest>,
}

impl Gil {
    fn now() -> Self {
        let mut gil = Self {
            holds: Sum::default(),
            waits: Sum::default(),
            forced: Sum::default(),
            longest: longest::take(),
        };
        let now = now();
        for thread in threads::all() {
            let holds = &thread.holds;
            gil.holds.add(&holds.holds);
            gil.waits.add(&holds.waits);
            gil.forced.add(&holds.forced);
            // A thread that has it to the end never drops it.
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
        match gil::missed() {
            0 => Ok(()),
            missed => write!(f, "; {missed} more GILs were not followed"),
        }
    }
}

/// So many, and how long they took together.
struct Many(&'static str, Sum);

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what, Sum { count, time }) = self;
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
