//! What a [`Process`](crate::Process) is read from.

use std::io;

use tllmprof_record::{Damage, Entry, Header, Reader, Source};

/// Events of one process, whoever recorded them.
pub trait Recording {
    /// Whose they are, and on which clock.
    fn header(&self) -> &Header;

    /// Gives every string and event to `each`, in the same order each time, those of a thread nearly in
    /// the order of their ends.
    ///
    /// # Errors
    /// Where they cannot be read.
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
