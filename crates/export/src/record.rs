//! A record that is open for export, with its small tables, such as names and scopes (modules and functions that
//! launched kernels), in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tllmprof_record::{Reader, RecordError, Source};
use tllmprof_report::Process;
use tllmprof_timeline::{Interpreter, Item, Texts};

/// Approximate number of times that an export reads a record from beginning to end. The command computes the percentage
/// of its progress from this number.
pub const PASSES: u64 = 4;

/// A function that is called with the number of bytes that were just read from a record. If the function returns an
/// error, reading ends with that error.
pub type OnRead = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// A source of a record's bytes that calls a progress function for each read.
struct MeteredSource {
    source: Box<dyn Source + Send + Sync>,
    progress: OnRead,
}

impl Source for MeteredSource {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.source.read_at(buffer, offset)?;
        (self.progress)(length as u64)?;
        Ok(length)
    }
}

/// A record that is open for export, with the tables that are needed to interpret it.
pub struct Record {
    /// The properties of the process, its iterations and its windows (profiled ranges of iterations), as the record
    /// contains them.
    pub process: Process,
    /// The tables, such as scopes and names, that are needed to interpret the record's events.
    pub(crate) interpreter: Interpreter,
    reader: Reader<MeteredSource>,
}

impl Record {
    /// Opens a record and reads the tables that are needed to interpret its events.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a record.
    pub fn open(file: &Path, progress: OnRead) -> Result<Self, RecordError> {
        let source = tllmprof_record::open_still(file)?;
        Self::new(file.to_owned(), Box::new(source), progress)
    }

    /// Opens a record like [`open`](Self::open), from any source, for example from memory.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn new(
        file: PathBuf,
        source: Box<dyn Source + Send + Sync>,
        progress: OnRead,
    ) -> Result<Self, RecordError> {
        let reader = Reader::new(MeteredSource { source, progress })?;
        let process = Process::read(file, &reader)?;
        let interpreter = Interpreter::read(&process, &reader, |_, _, _| ())?;
        Ok(Self {
            process,
            interpreter,
            reader,
        })
    }

    /// Returns the tables of texts from which the names of items are made.
    pub(crate) const fn texts(&self) -> Texts<'_> {
        self.interpreter.texts(&self.process)
    }

    /// Passes each item to `each`, until `each` returns an error: first the windows (profiled ranges of iterations),
    /// then all other items in the order of the record.
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

    /// Returns the name of the scope with the number `scope`. A scope is a part of the program in which kernels were
    /// launched.
    pub(crate) fn scope(&self, scope: u32) -> String {
        self.interpreter.scope(&self.process, scope)
    }
}
