//! Reads the record of the test process itself, to which tests may still be writing.

#![cfg(feature = "builder")]

use std::fs::{self, File};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use crate::{Damage, Entry, Event, Header, Info, Reader, StringId, Strings, What};

/// The record of this test process. Only one test at a time can hold this value, because the record can have only
/// one open window (a period in which events are written) at a time.
pub struct Record {
    pub file: &'static File,
    _alone: MutexGuard<'static, ()>,
}

impl Record {
    /// Returns the record. The first call creates it with `begin`. Blocks until no other test holds the record.
    pub fn of_process(begin: impl FnOnce() -> File) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static FILE: OnceLock<File> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            file: FILE.get_or_init(begin),
            _alone: alone,
        }
    }

    /// Reads the record's current contents.
    #[must_use]
    pub fn read(&self) -> Contents {
        Contents::read(self.file)
    }
}

/// The complete contents of a record, read into memory.
pub struct Contents {
    pub header: Header,
    pub strings: Strings,
    /// The record's events, each with the id of the thread that wrote it.
    pub events: Vec<(u32, Event)>,
}

impl Contents {
    /// Reads all contents of the record in `file`.
    ///
    /// # Panics
    /// Panics if the record cannot be read or is damaged.
    #[must_use]
    pub fn read(file: &File) -> Self {
        let reader = Reader::new(file.try_clone().unwrap()).unwrap();
        let mut contents = Self {
            header: reader.header().clone(),
            strings: Strings::default(),
            events: Vec::new(),
        };
        let damage = reader.read(|entry| match entry {
            Entry::String { id, bytes } => contents.strings.add(id, bytes),
            Entry::Event { thread, event } => contents.events.push((thread, event)),
        });
        assert_eq!(damage.unwrap(), Damage::default());
        contents
    }

    /// Returns the events that a thread has written, except the event with the thread's name.
    #[must_use]
    pub fn find_events(&self, thread: u32) -> Vec<Event> {
        let events = self.events.iter().filter(|(of, _)| *of == thread);
        let events = events.map(|(_, event)| *event);
        events
            .filter(|event| !matches!(event.what, What::ThreadName { .. }))
            .collect()
    }

    /// Returns the texts of all [`What::Info`] events with the key `wanted`.
    #[must_use]
    pub fn facts(&self, wanted: Info) -> Vec<&str> {
        let text = |(_, event): &(u32, Event)| match event.what {
            What::Info { key, value } if key == Some(wanted) => {
                Some(self.strings.get(value as StringId))
            }
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }
}

/// Runs `act` on a new thread, and returns the thread's id.
pub fn on_a_thread(act: impl FnOnce() + Send) -> u32 {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            act();
            let place = fs::read_link("/proc/thread-self").unwrap();
            let number = place.file_name().unwrap().to_str().unwrap();
            number.parse().unwrap()
        });
        thread.join().unwrap()
    })
}
