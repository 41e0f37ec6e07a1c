//! The verdict of `tllmprof hang`: the answer to the question if ranks are stuck, and the reason.

use serde::Serialize;

/// The kind of a verdict: the state of the ranks, or the reason why they are stuck.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VerdictKind {
    /// Steps or collectives began or ended between the two times at which the ring files (the processes' latest steps
    /// and collectives) were read, so the ranks are not stuck.
    Moves,
    /// All processes have ended regularly, so no rank is stuck.
    Ended,
    /// The ranks wait for work, such as requests. They have entered the same collectives, or the late rank is in a
    /// function in which an engine waits for requests.
    Idle,
    /// A rank is using the processor. The other ranks, if there are any, may wait for it.
    Busy,
    /// It is not known if the ranks are stuck, because too little is known about them or their threads.
    Unclear,
    /// Ranks called different collectives where they should have called the same one, or a send and its receive have
    /// different sizes.
    Mismatch,
    /// Ranks called the same collectives, but in different orders, or they wait for each other in different calls.
    Order,
    Dead,
    Stopped,
    /// A rank did not enter a collective, send or receive that other ranks have entered, or it sleeps while the other
    /// ranks wait for the GPU.
    NotEntered,
    /// Threads of a process wait for each other's locks or for the GIL in a circle, or a thread waits for a lock that
    /// it holds itself.
    Deadlock,
    Lock,
    Gil,
    /// A thread waits for room in a queue that is full.
    Queue,
    /// The kernel log contains a GPU fault that may have stopped a rank: it names the rank's process, or it names no
    /// process and occurred at about the time when the rank stopped.
    DeviceFault,
    /// The ranks wait for the GPU to finish its work.
    Gpu,
}

/// The answer of a verdict to the question whether the ranks are stuck.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Stuck,
    NotStuck,
    CannotTell,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HangVerdict {
    pub answer: Answer,
    pub kind: VerdictKind,
    /// The ranks that the verdict blames or describes, as indices into the list of all ranks.
    pub ranks: Vec<usize>,
    pub text: String,
}

impl HangVerdict {
    pub(crate) fn new(answer: Answer, kind: VerdictKind, ranks: Vec<usize>, text: String) -> Self {
        Self {
            answer,
            kind,
            ranks,
            text,
        }
    }
}
