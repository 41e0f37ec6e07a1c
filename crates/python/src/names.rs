//! What threads are called: by Python, else by the kernel.
//!
//! Python has joined most of its threads by the time its exit handlers run, so names are looked up
//! while the threads are there: at an audited event, if one has come since.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::object::Python;
use super::threads;
use tllmprof_platform::lifecycle;
use tllmprof_platform::system;

/// Time between two look-ups at least, in nanoseconds, and as a multiple of what one takes: it goes
/// through all threads.
const PERIOD: u64 = 20_000_000;
const SELDOM: u64 = 100;

lifecycle::global! {
    /// There is a thread whose name in Python is not known.
    #[fork(keep = "the child has the thread's place, too")]
    #[restart(keep)]
    static IS_BEHIND: AtomicBool = AtomicBool::new(false);
    /// When names may be looked up next.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

const WORDS: usize = 4;

/// A name, cut to what has room. It may be written while it is read, which mixes two names.
pub struct ThreadName {
    words: [AtomicU64; WORDS],
    is_pythons: AtomicBool,
}

/// A copy of a name, for a message.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; WORDS * 8],
    /// The thread's number, where the kernel alone has named it: most bear their process's name.
    number: Option<i32>,
}

impl ThreadName {
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            is_pythons: AtomicBool::new(false),
        }
    }

    fn set(&self, name: &[u8]) {
        let mut bytes = [0; WORDS * 8];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name[..length]);
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// The calling thread's name in the kernel, if Python has not given another.
    pub fn ask_kernel(&self) {
        if self.is_pythons.load(Ordering::Relaxed) {
            return;
        }
        self.set(&system::thread_name());
    }

    /// Another thread has the place now: its name is to be looked up.
    pub fn begin(&self) {
        self.is_pythons.store(false, Ordering::Relaxed);
        self.ask_kernel();
        IS_BEHIND.store(true, Ordering::Relaxed);
    }

    /// The name of thread `number`, which has it.
    pub fn get(&self, number: i32) -> Text {
        let mut bytes = [0; WORDS * 8];
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        let is_pythons = self.is_pythons.load(Ordering::Relaxed);
        Text {
            bytes,
            number: (!is_pythons).then_some(number),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.iter().position(|byte| *byte == 0);
        let name = &self.bytes[..length.unwrap_or(self.bytes.len())];
        // A name that was cut within a character ends before it.
        let name = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        match self.number {
            Some(number) => write!(f, "thread {number} ({name})"),
            None => f.write_str(name),
        }
    }
}

/// Whether it is time to [`look`].
pub fn are_behind() -> bool {
    IS_BEHIND.load(Ordering::Relaxed) && super::now() >= NEXT.load(Ordering::Relaxed)
}

/// Looks up the names of the threads that are there.
///
/// The list that `threading.enumerate` goes through, without the lock that it takes: whoever raised
/// the event that brings us here may have it.
pub fn look(py: Python<'_>) -> Option<()> {
    let since = super::now();
    NEXT.store(since + PERIOD, Ordering::Relaxed);
    IS_BEHIND.store(false, Ordering::Relaxed);
    let active = py.imported(c"threading")?.attr(c"_active")?.values()?;
    for thread in active.elements() {
        let named = thread.attr(c"_native_id").zip(thread.attr(c"_name"));
        let Some((id, name)) = named else { continue };
        let (Some(id), Some(name)) = (id.as_int(), name.as_text()) else {
            continue;
        };
        let is_it = |thread: &&threads::Thread| {
            i64::from(thread.number.load(Ordering::Relaxed)) == id && thread.is_used()
        };
        if let Some(thread) = threads::all().find(is_it) {
            thread.name.set(name.as_bytes());
            thread.name.is_pythons.store(true, Ordering::Relaxed);
        }
    }
    let has_none = |thread: &threads::Thread| {
        thread.is_used() && !thread.name.is_pythons.load(Ordering::Relaxed)
    };
    if threads::all().any(has_none) {
        // It may only just be starting.
        IS_BEHIND.store(true, Ordering::Relaxed);
    }
    let now = super::now();
    let wait = (now.saturating_sub(since) * SELDOM).max(PERIOD);
    NEXT.store(now + wait, Ordering::Relaxed);
    Some(())
}
