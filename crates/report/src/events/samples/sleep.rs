//! Sleeps of threads, classified by what the thread waits for.

use tllmprof_record::SystemCall;

use super::location::Location;

/// The kind of a sleep: what the thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SleepKind {
    /// The thread waits for a lock that another thread holds.
    Lock,
    /// The thread waits, without a time limit, for an event such as new work. Such a wait is not a
    /// problem in itself.
    Work,
    /// The thread waits for an event such as new work, with a time limit of at most a quarter of a second from the
    /// sample on. If it does so again and again, it waits for work (see [`polls`](super::polls)).
    Poll,
    /// The thread waits, without a time limit, for other threads in native code that a Python function called, such as
    /// a compiler or a transfer. The function has called something that takes time, so this is no wait for new work.
    Called,
    /// The thread waits for another thread of the process, which gives work to the GPU during that time.
    Worker,
    /// The thread waits for another thread of the process, or a child process, that prepares its input.
    Producer,
    /// The thread waits for the end of a child process.
    Child,
    /// The thread sleeps for a given time.
    Sleep,
    /// The thread waits for a file or a disk.
    File,
    /// The thread waits for the GPU, in a function of the CUDA driver.
    Gpu,
    /// The thread waits for an event with a time limit, or for something that is none of the kinds above.
    Other,
}

impl SleepKind {
    /// Returns the kind of a sleep in this system call: a sleep for a given time, or a wait for a file or a lock on a
    /// file. Returns `None` for other calls, which do not determine the kind.
    pub(super) const fn of_call(call: SystemCall) -> Option<Self> {
        use SystemCall as Call;
        match call {
            Call::Nanosleep | Call::ClockNanosleep | Call::PollNothing | Call::SelectNothing => {
                Some(Self::Sleep)
            }
            Call::PageFault
            | Call::Read
            | Call::Write
            | Call::Fsync
            | Call::Fdatasync
            | Call::Msync
            | Call::Open
            | Call::Close
            | Call::Truncate => Some(Self::File),
            Call::FileLock | Call::FileControl => Some(Self::Lock),
            Call::Poll
            | Call::Select
            | Call::EpollWait
            | Call::SignalWait
            | Call::ReadStream
            | Call::Receive
            | Call::ReceiveFromService
            | Call::Accept
            | Call::Futex
            | Call::WriteStream
            | Call::Send
            | Call::Connect
            | Call::WaitProcess
            | Call::Ioctl
            | Call::Memory
            | Call::IoUringEnter
            | Call::Other => None,
        }
    }
}

/// A sleep of a thread, as shown to the user: its kind, its cause and its location.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sleep {
    pub kind: SleepKind,
    /// The kind of the sleep in words, with the program's sleeping function and the function that
    /// it called. The ledger (the table of times by cause) shows this text.
    pub cause: String,
    /// The innermost function of the program on the sleeping thread's stack; `None` if it is not
    /// known.
    pub location: Option<Location>,
    /// For a wait for a producer, the share of the wait's samples at which the producer was at work; otherwise `None`.
    pub producer: Option<ProducerShare>,
}

/// Number of samples of waits for a producer (the task that prepares the thread's input), and the number of these
/// samples at which the producer was at work. The producer is at work if it runs on a processor. If the waits end
/// because it runs, it is also at work while it sleeps for a given time, or waits for a file or a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ProducerShare {
    pub samples: u64,
    pub at_work: u64,
    /// True if the producer, while it is at work, is asleep or waits for a file or a lock more often than it is on a
    /// processor.
    pub is_asleep: bool,
}

impl Sleep {
    /// Changes a wait for an event into a wait for another thread that gives work to the GPU.
    pub fn mark_as_for_worker(&mut self) {
        self.kind = SleepKind::Worker;
        if let Some(place) = self.place() {
            self.cause = format!("{FOR_WORKER}{place}");
        }
    }

    /// Returns the part of the text for the cause that names the functions; `None` for a sleep that no other thread ends.
    fn place(&self) -> Option<&str> {
        let mut begins = [FOR_WORK, BLOCKED, FOR_SERVICE].iter();
        begins.find_map(|begin| self.cause.strip_prefix(begin))
    }

    /// Returns the wait for work that this wait is, if the thread repeats it until there is work.
    pub(super) fn for_work(&self) -> Self {
        Self {
            kind: SleepKind::Work,
            cause: self.cause_for("work"),
            ..self.clone()
        }
    }

    /// Adds the names of the programs for whose end the thread waits.
    pub(super) fn name_children(&mut self, names: &[String]) {
        if let Some(place) = self.cause.strip_prefix(FOR_CHILD) {
            let process = match names {
                [_] => "process",
                _ => "processes",
            };
            let names = names.join(" and ");
            self.cause = format!("waiting for child {process} {names}{place}");
        }
    }

    /// Returns the text for the cause if the thread waits for `producer`. The text names the same functions as `cause`.
    pub(super) fn cause_for(&self, producer: &str) -> String {
        format!("waiting for {producer}{}", self.place().unwrap_or_default())
    }
}

/// Beginning of the text for the cause of a wait for work.
pub(super) const FOR_WORK: &str = "waiting for work";
/// Beginning of the text for the cause of a wait for data from a service to which the process has connected.
pub(super) const FOR_SERVICE: &str = "waiting for a service";
/// Beginning of the text for the cause of a wait for the end of a child process.
pub(super) const FOR_CHILD: &str = "waiting for a child process";
/// Beginning of the text for the cause of a wait of the kind [`SleepKind::Other`], [`SleepKind::Poll`] or
/// [`SleepKind::Called`].
pub(super) const BLOCKED: &str = "blocked";
/// Beginning of the text for the cause of a wait for another thread that gives work to the GPU.
const FOR_WORKER: &str = "waiting for another thread, which launches work,";
