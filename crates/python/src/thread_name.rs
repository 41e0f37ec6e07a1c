//! The name of a thread: the one that Python gave it, or else the kernel's.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::system;
use tllmprof_recorder as recorder;

lifecycle::global! {
    /// True if there may be a thread whose Python name has not been looked up.
    #[fork(keep = "the child has the thread's place, too")]
    #[restart(keep)]
    pub static IS_BEHIND: AtomicBool = AtomicBool::new(false);
}

const WORDS: usize = 4;

/// A thread's name, cut to `WORDS` words of 8 bytes. If another thread writes the name during a read, the result may
/// mix two names.
pub(crate) struct ThreadName {
    words: [AtomicU64; WORDS],
    is_pythons: AtomicBool,
    /// The era of the recorder in which the thread's Python name was recorded; 0 if it was not recorded. A new era
    /// begins when the recorder drops its names. The special lasting era means that the recorder never drops this
    /// name.
    recorded: AtomicU32,
}

/// A copy of a name, for a message.
#[derive(Clone, Copy)]
pub(crate) struct NameCopy {
    bytes: [u8; WORDS * 8],
    /// The thread's id, if the name is the kernel's. The id is needed because most such threads
    /// have the name of their process.
    number: Option<i32>,
}

impl ThreadName {
    pub(crate) const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            is_pythons: AtomicBool::new(false),
            recorded: AtomicU32::new(0),
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

    /// Sets the name that Python gave the thread.
    pub(crate) fn set_pythons(&self, name: &[u8]) {
        self.set(name);
        self.is_pythons.store(true, Ordering::Relaxed);
    }

    /// Returns true if Python's name has to be recorded in the recorder's current era, and marks it as recorded. A
    /// new era begins when the recorder drops its names.
    pub(crate) fn is_new(&self) -> bool {
        let era = recorder::era();
        !self.is_recorded() && self.recorded.swap(era, Ordering::Relaxed) != era
    }

    /// Marks Python's name as recorded in an era of the recorder. A new era begins when the recorder drops its names.
    /// The lasting era is for names that the recorder never drops.
    pub(crate) fn is_recorded_in(&self, era: u32) {
        // If `recorded` is 0, it stays 0: another thread may own this `ThreadName` by now, and the name of that thread
        // is not recorded yet.
        let is_here = |recorded| (recorded != 0).then_some(era);
        let _ = self
            .recorded
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_here);
    }

    /// Returns true if the record contains Python's name.
    pub(crate) fn is_recorded(&self) -> bool {
        let recorded = self.recorded.load(Ordering::Relaxed);
        recorded == recorder::era() || recorded == recorder::lasting_era()
    }

    /// Returns true if the name is the one that Python gave.
    pub(crate) fn is_pythons(&self) -> bool {
        self.is_pythons.load(Ordering::Relaxed)
    }

    /// Reads the calling thread's name from the kernel, unless the name from Python is known.
    pub(crate) fn ask_kernel(&self) {
        if self.is_pythons() {
            return;
        }
        self.set(&system::thread_name());
    }

    /// Prepares this value for a new thread. The value may still hold the name of a thread that has ended. The new
    /// thread's name in Python has to be looked up later.
    pub(crate) fn begin(&self) {
        self.is_pythons.store(false, Ordering::Relaxed);
        self.recorded.store(0, Ordering::Relaxed);
        self.ask_kernel();
        IS_BEHIND.store(true, Ordering::Relaxed);
    }

    /// Returns a copy of the name. `number` is the id of the thread to which the name belongs.
    pub(crate) fn get(&self, number: i32) -> NameCopy {
        let mut bytes = [0; WORDS * 8];
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        NameCopy {
            bytes,
            number: (!self.is_pythons()).then_some(number),
        }
    }
}

impl fmt::Display for NameCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.iter().position(|byte| *byte == 0);
        let name = &self.bytes[..length.unwrap_or(self.bytes.len())];
        // If the stored name was cut inside a character, the copy ends before that character.
        let name = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        match self.number {
            Some(number) => write!(f, "thread {number} ({name})"),
            None => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_name_comes_before_the_kernels() {
        let name = ThreadName::new();
        name.set(b"python3\0\0");
        assert_eq!(name.get(7).to_string(), "thread 7 (python3)");
        name.set_pythons("läuft".as_bytes());
        name.ask_kernel();
        assert_eq!(name.get(7).to_string(), "läuft");
        name.begin();
        assert!(!name.is_pythons());
        assert!(IS_BEHIND.load(Ordering::Relaxed));
        assert!(name.get(7).to_string().starts_with("thread 7 ("));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = ThreadName::new();
        name.set_pythons("x".repeat(40).as_bytes());
        assert_eq!(name.get(1).to_string(), "x".repeat(32));
        name.set_pythons(format!("{}äb", "x".repeat(31)).as_bytes());
        assert_eq!(name.get(1).to_string(), "x".repeat(31));
        name.set_pythons(b"short");
        assert_eq!(name.get(1).to_string(), "short");
    }
}
