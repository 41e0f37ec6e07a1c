//! The interface through which a [`Process`](crate::Process) is read, from a record or from another
//! profiler's file.

use std::io;

use super::origin::Origin;
use tllmprof_record::{Damage, Entry, Header, Reader, Source};

/// The events of one process, which tllmprof or another profiler recorded.
pub trait Recording {
    /// Returns the header, which identifies the process and the clock of the events.
    fn header(&self) -> &Header;

    /// Returns the profiler that recorded the process, and the kinds of data that it did not
    /// record.
    fn origin(&self) -> Origin {
        Origin::default()
    }

    /// Passes every string and event to `each`, and returns the damage that was found in the record. If `read` is
    /// called again, the order is the same. The events of a thread come nearly in the order of their ends.
    ///
    /// # Errors
    /// Returns an error if the events cannot be read.
    fn read(&self, each: impl FnMut(Entry<'_>)) -> io::Result<Damage>;
}

impl<S: Source> Recording for Reader<S> {
    fn header(&self) -> &Header {
        Self::header(self)
    }

    fn read(&self, each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        Self::read(self, each)
    }
}
