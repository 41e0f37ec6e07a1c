//! What is of use for as long as the record, where chunks are used again: texts, and facts of the process. They have chunks
//! of their own, which stay, so that a thread's chunk need not stay for a name in it.

use core::time::Duration;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::EventWriter;

use super::begin_chunk;
use crate::bounded::Bounded;
use crate::reuse;

/// How long a thread waits for the chunk before it uses its own.
const PATIENCE: Duration = Duration::from_millis(1);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static CHUNK: Bounded<Option<Lasting>> = Bounded::new(None);
}

struct Lasting {
    events: EventWriter,
    /// Whose event was the last.
    thread: u32,
}

impl Lasting {
    fn begin(thread: u32) -> Option<Self> {
        let (_, events) = begin_chunk(thread)?;
        Some(Self { events, thread })
    }

    fn push(&mut self, thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
        if self.thread != thread && self.events.room() > 0 {
            self.events.hand_over(thread);
            self.thread = thread;
        }
        push(&mut self.events)
    }
}

/// Writes something of `thread` by `push`. False where no chunk is used again, and where it cannot be done now: it is
/// to be written into the thread's own chunk.
pub fn push(thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
    if !reuse::is_wanted() {
        return false;
    }
    let Some(mut chunk) = CHUNK.lock_for(PATIENCE) else {
        return false;
    };
    let push = |chunk: &mut Lasting| chunk.push(thread, &push);
    if chunk.as_mut().is_some_and(push) {
        return true;
    }
    let Some(mut next) = Lasting::begin(thread) else {
        return false;
    };
    let is_written = push(&mut next);
    *chunk = Some(next);
    is_written
}

/// The child of a fork writes nothing into its parent's chunks.
fn in_child(alone: &OnlyThread) {
    CHUNK.break_open(alone);
    if let Some(mut chunk) = CHUNK.lock_for(PATIENCE) {
        *chunk = None;
    }
}

/// Does `act` while nobody can write into the chunk.
#[cfg(test)]
pub fn while_held(act: impl FnOnce()) {
    let held = CHUNK.lock_for(PATIENCE);
    assert!(held.is_some());
    act();
}
