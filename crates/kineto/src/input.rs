//! The text of a trace: plain or compressed by gzip, read once from start to end.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

/// The longest event or fact, in bytes of JSON: some of it may be held in memory whole.
pub const LONGEST: u64 = 16 << 20;

/// The first bytes of a file that gzip made.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The mark of UTF-8 that some editors write first.
const UTF8: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of JSON in UTF-16.
const UTF16: [&[u8]; 4] = [
    b"\xff\xfe{\0",
    b"\xff\xfe[\0",
    b"\xfe\xff\0{",
    b"\xfe\xff\0[",
];

/// Number of bytes that are read to recognize a file by its content.
const PROBE: u64 = 1 << 20;

const BUFFER: usize = 1 << 16;

/// Number of bytes that the value that is being read may still have.
#[derive(Clone, Debug)]
pub struct Budget(Rc<Cell<u64>>);

impl Budget {
    fn new() -> Self {
        Self(Rc::new(Cell::new(LONGEST)))
    }

    /// A value begins, of which something is kept.
    pub fn begin(&self) {
        self.0.set(LONGEST);
    }

    /// A value begins, of which nothing is kept.
    pub fn skip(&self) {
        self.0.set(u64::MAX);
    }

    /// Returns true if a value was longer than any that a profiler writes.
    pub fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A reader that ends with an error where the budget does.
pub struct Metered<R> {
    from: R,
    budget: Budget,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.budget.is_spent() {
            return Err(io::Error::other("a value is too long"));
        }
        let length = self.from.read(to)?;
        let left = self.budget.0.get();
        self.budget.0.set(left.saturating_sub(length as u64));
        Ok(length)
    }
}

/// The text of a file, plain.
pub type Text<'a> = BufReader<Metered<Box<dyn Read + 'a>>>;

/// The text of a file, and the budget of its values.
///
/// # Errors
/// The file cannot be read, or its text is encoded in a way that JSON is not.
pub fn text<'a>(file: impl Read + 'a) -> io::Result<(Text<'a>, Budget)> {
    let budget = Budget::new();
    let from = plain(file)?;
    let metered = Metered {
        from,
        budget: budget.clone(),
    };
    let mut text = BufReader::with_capacity(BUFFER, metered);
    let beginning = text.fill_buf()?;
    if beginning.starts_with(GZIP) {
        return Err(io::Error::other(
            "gzip inside gzip (wanted: JSON that was compressed once)",
        ));
    }
    if is_utf16(beginning) {
        return Err(io::Error::other("JSON in UTF-16 (wanted: UTF-8)"));
    }
    if beginning.starts_with(UTF8) {
        text.consume(UTF8.len());
    }
    Ok((text, budget))
}

/// The file's content, decompressed where it is compressed.
fn plain<'a>(file: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut file = BufReader::with_capacity(BUFFER, file);
    Ok(match file.fill_buf()?.starts_with(GZIP) {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    })
}

/// Returns true if a file that begins like this is JSON, or may be compressed JSON.
pub fn may_be_json(beginning: &[u8]) -> bool {
    beginning.starts_with(GZIP)
        || is_utf16(beginning)
        || first(beginning).is_some_and(|byte| b"{[".contains(&byte))
}

fn is_utf16(beginning: &[u8]) -> bool {
    UTF16.iter().any(|known| beginning.starts_with(known))
}

/// Returns true if a file's content is JSON of any kind, maybe compressed.
///
/// # Errors
/// The file cannot be read.
pub fn is_json(file: impl Read) -> io::Result<bool> {
    let mut beginning = Vec::new();
    // Damaged compression is for the one who reads the file to report.
    let _ = plain(file)?.take(64).read_to_end(&mut beginning);
    Ok(may_be_json(&beginning))
}

/// Returns true if a file is JSON that has the words of a trace near its beginning.
///
/// # Errors
/// The file cannot be read.
pub fn looks_like_trace(file: impl Read) -> io::Result<bool> {
    let mut beginning = Vec::new();
    let _ = plain(file)?.take(PROBE).read_to_end(&mut beginning);
    let is_json = first(&beginning).is_some_and(|byte| b"{[".contains(&byte));
    let text = String::from_utf8_lossy(&beginning);
    Ok(is_json && (text.contains("\"traceEvents\"") || text.contains("\"deviceProperties\"")))
}

fn first(text: &[u8]) -> Option<u8> {
    let text = text.strip_prefix(UTF8).unwrap_or(text);
    text.iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace())
}
