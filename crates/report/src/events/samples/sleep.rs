//! Sleeps of threads, by what they wait for.

use super::location::Location;

/// The kind of a sleep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SleepKind {
    /// The thread waits for a lock that another thread holds.
    Lock,
    /// The thread waits for an event, such as new work, without a time limit. Such a wait is not a fault by itself.
    Work,
    /// The thread waits for another thread of the process, which gives the GPU work meanwhile.
    Worker,
    /// The thread sleeps for a given time.
    Sleep,
    /// The thread waits for a file or a disk.
    File,
    /// The thread waits for the GPU, in its driver.
    Gpu,
    /// Another wait, or a wait that ends by an event or by its time limit.
    Other,
}

/// A sleep of a thread.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sleep {
    pub kind: SleepKind,
    /// The kind in words, with the sleeping function and the function that it called. The ledger shows this text as a
    /// cause.
    pub cause: String,
    /// The innermost function of the program that is asleep; `None` if it is not known.
    pub location: Option<Location>,
}

impl Sleep {
    /// Makes a wait for work a wait for another thread that gives the GPU work.
    pub fn is_for_worker(&mut self) {
        self.kind = SleepKind::Worker;
        if let Some(place) = self.cause.strip_prefix(FOR_WORK) {
            self.cause = format!("{FOR_WORKER}{place}");
        }
    }
}

/// Beginnings of the causes of waits for work, and of waits for another thread that gives the GPU work.
pub(super) const FOR_WORK: &str = "waiting for work";
const FOR_WORKER: &str = "waiting for another thread, which launches work,";
