//! An open record, and what of it there is little of.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tllmprof_record::{Error, Reader, Source};
use tllmprof_report::Process;
use tllmprof_timeline::{Interpreter, Item, Texts};

/// How often a record is read from its start to its end when it is exported.
pub const PASSES: u64 = 4;

/// Is called with the number of bytes of a record that were read; an error from it ends the reading.
pub type Progress = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// A source that reports how far it was read.
struct Watched {
    source: Box<dyn Source + Send + Sync>,
    progress: Progress,
}

impl Source for Watched {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.source.read_at(buffer, offset)?;
        (self.progress)(length as u64)?;
        Ok(length)
    }
}

/// A record that can be exported.
pub struct Record {
    /// Its facts, windows and iterations.
    pub process: Process,
    /// What its events are understood by.
    pub(crate) interpreter: Interpreter,
    reader: Reader<Watched>,
}

impl Record {
    /// Opens a record, and goes through it for what of it there is little of.
    ///
    /// # Errors
    /// Where the file cannot be read or is no record.
    pub fn open(file: &Path, progress: Progress) -> Result<Self, Error> {
        let source = tllmprof_record::open_still(file)?;
        Self::new(file.to_owned(), Box::new(source), progress)
    }

    /// As [`open`](Self::open), of a record that may be in memory.
    ///
    /// # Errors
    /// As above.
    pub fn new(
        file: PathBuf,
        source: Box<dyn Source + Send + Sync>,
        progress: Progress,
    ) -> Result<Self, Error> {
        let reader = Reader::new(Watched { source, progress })?;
        let process = Process::read(file, &reader)?;
        let interpreter = Interpreter::read(&process, &reader, |_, _, _| ())?;
        Ok(Self {
            process,
            interpreter,
            reader,
        })
    }

    /// What the names of its items are made of.
    pub(crate) const fn texts(&self) -> Texts<'_> {
        self.interpreter.texts(&self.process)
    }

    /// Gives every item to `each`, until one of them fails: windows first, then what happened, in the
    /// order of the record.
    pub(crate) fn items(&self, mut each: impl FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        for stretch in self.interpreter.stretches() {
            each(&stretch.item())?;
        }
        let mut result = Ok(());
        let read = self.interpreter.items(&self.process, &self.reader, |item| {
            if result.is_ok() {
                result = each(item);
            }
        });
        result.and(read.map(|_| ()))
    }

    /// What a kernel's scope is called.
    pub(crate) fn scope(&self, scope: u32) -> String {
        self.interpreter.scope(&self.process, scope)
    }
}
