//! Reads the JSON text of a trace, plain or compressed by gzip, as a stream.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;

/// Maximum length in bytes of the JSON of one value, such as an event. The limit bounds memory,
/// because parts of a value are kept in memory while it is read.
pub(crate) const LONGEST: u64 = 16 << 20;

/// The first bytes of every file that gzip wrote.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The byte order mark of UTF-8, which some editors write at the start of a file.
const UTF8: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of JSON in UTF-16.
const UTF16: [&[u8]; 4] = [
    b"\xff\xfe{\0",
    b"\xff\xfe[\0",
    b"\xfe\xff\0{",
    b"\xfe\xff\0[",
];

/// Number of bytes at the beginning of a file that are read to recognize a trace.
const PROBE: u64 = 1 << 20;

const BUFFER: usize = 1 << 16;

/// The number of bytes that may still be read of the current JSON value.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Rc<Cell<u64>>);

impl Budget {
    fn new() -> Self {
        Self(Rc::new(Cell::new(LONGEST)))
    }

    /// Sets the limit for the JSON value that begins now. The limit is needed because parts of the
    /// value are kept in memory.
    pub(crate) fn begin(&self) {
        self.0.set(LONGEST);
    }

    /// Removes the limit for the JSON value that begins now, because the value is skipped and takes
    /// no memory.
    pub(crate) fn skip(&self) {
        self.0.set(u64::MAX);
    }

    /// Returns true if no more bytes may be read, because the current JSON value is too long.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A reader that returns an error once the bytes of the budget are used up.
pub(crate) struct Metered<R> {
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

/// Maximum length, in bytes, of a word that may be NaN, Infinity or inf. Only words outside JSON strings are
/// examined.
const LONGEST_WORD: usize = 16;

/// A reader that replaces NaN, Infinity and inf by `null`. Some programs write them, but JSON does not allow them.
struct Finite<R> {
    from: R,
    raw: Vec<u8>,
    /// Processed bytes. Those from index `at` on have not been returned to the caller yet.
    text: Vec<u8>,
    at: usize,
    /// The beginning of a word outside JSON strings. The whole word may turn out to be NaN, Infinity or inf.
    word: Vec<u8>,
    is_in_string: bool,
    is_escaped: bool,
}

impl<R: Read> Finite<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            raw: vec![0; BUFFER],
            text: Vec::with_capacity(BUFFER),
            at: 0,
            word: Vec::with_capacity(LONGEST_WORD),
            is_in_string: false,
            is_escaped: false,
        }
    }

    fn end_word(&mut self) {
        let word = self.word.strip_prefix(b"-").unwrap_or(&self.word);
        let is_none = ["nan", "infinity", "inf"];
        match is_none
            .iter()
            .any(|none| word.eq_ignore_ascii_case(none.as_bytes()))
        {
            true => self.text.extend_from_slice(b"null"),
            false => self.text.extend_from_slice(&self.word),
        }
        self.word.clear();
    }

    /// Copies the bytes of a JSON string to `text`, up to the string's end. Returns the remaining bytes.
    fn take_string<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut at = 0;
        if std::mem::take(&mut self.is_escaped) {
            at = 1;
        }
        let end = loop {
            let special = bytes[at..].iter().position(|byte| b"\"\\".contains(byte));
            match special.map(|more| at + more) {
                None => break bytes.len(),
                Some(quote) if bytes[quote] == b'"' => {
                    self.is_in_string = false;
                    break quote + 1;
                }
                Some(escape) if escape + 1 == bytes.len() => {
                    self.is_escaped = true;
                    break bytes.len();
                }
                Some(escape) => at = escape + 2,
            }
        };
        let (string, rest) = bytes.split_at(end);
        self.text.extend_from_slice(string);
        rest
    }

    /// Copies bytes outside JSON strings to `text`, up to a string or a word that may be NaN, Infinity or
    /// inf. Returns the remaining bytes.
    fn take_plain<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let special = bytes.iter().position(|byte| b"\"-NnIi".contains(byte));
        let (plain, rest) = bytes.split_at(special.unwrap_or(bytes.len()));
        self.text.extend_from_slice(plain);
        let Some((byte, rest)) = rest.split_first() else {
            return rest;
        };
        if *byte == b'"' {
            self.text.push(b'"');
            self.is_in_string = true;
        } else {
            self.word.push(*byte);
        }
        rest
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while let Some((byte, rest)) = bytes.split_first() {
            if self.is_in_string {
                bytes = self.take_string(bytes);
            } else if self.word.is_empty() {
                bytes = self.take_plain(bytes);
            } else if byte.is_ascii_alphabetic() && self.word.len() < LONGEST_WORD {
                self.word.push(*byte);
                bytes = rest;
            } else {
                self.end_word();
            }
        }
    }
}

impl<R: Read> Read for Finite<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.at == self.text.len() {
            self.text.clear();
            self.at = 0;
            let mut raw = std::mem::take(&mut self.raw);
            let length = self.from.read(&mut raw);
            if let Ok(length) = length {
                self.take(&raw[..length]);
            }
            self.raw = raw;
            if length? == 0 {
                self.end_word();
                break;
            }
        }
        let length = (&self.text[self.at..]).read(to)?;
        self.at += length;
        Ok(length)
    }
}

/// A reader of the decompressed text of a file.
pub(crate) type TextReader<'a> = BufReader<Metered<Box<dyn Read + 'a>>>;

/// Returns a reader of the file's text, and the budget that limits the length of each JSON value.
///
/// # Errors
/// Returns an error if the file cannot be read, is compressed twice, or begins like JSON in UTF-16.
pub(crate) fn text<'a>(file: impl Read + 'a) -> io::Result<(TextReader<'a>, Budget)> {
    let budget = Budget::new();
    let from: Box<dyn Read + 'a> = Box::new(Finite::new(plain(file)?));
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

/// A reader of the content of a file that gzip wrote. The file may consist of several members, one after the other.
struct Gunzip<R> {
    /// The member that is being read. `None` after the last member.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let length = member.read(to)?;
            if length > 0 || to.is_empty() {
                return Ok(length);
            }
            let Some(mut rest) = self.member.take().map(GzDecoder::into_inner) else {
                break;
            };
            let next = rest.fill_buf()?;
            if next.first() == GZIP.first() {
                self.member = Some(GzDecoder::new(rest));
            } else if !next.is_empty() {
                return Err(io::Error::other(
                    "other bytes follow the compressed text (wanted: the whole file as gzip wrote it)",
                ));
            }
        }
        Ok(0)
    }
}

/// Returns a reader of the file's content. A file that begins with gzip's first bytes is
/// decompressed.
fn plain<'a>(file: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut file = BufReader::with_capacity(BUFFER, file);
    Ok(match file.fill_buf()?.starts_with(GZIP) {
        true => Box::new(Gunzip {
            member: Some(GzDecoder::new(file)),
        }),
        false => Box::new(file),
    })
}

/// Returns true if a file that begins with the bytes `beginning` may be JSON: it begins like JSON, or gzip wrote it.
pub fn may_be_json(beginning: &[u8]) -> bool {
    beginning.starts_with(GZIP)
        || is_utf16(beginning)
        || first(beginning).is_some_and(|byte| b"{[".contains(&byte))
}

fn is_utf16(beginning: &[u8]) -> bool {
    UTF16.iter().any(|known| beginning.starts_with(known))
}

/// Returns true if a file, which may be compressed, begins like JSON.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn is_json(file: impl Read) -> io::Result<bool> {
    let mut beginning = Vec::new();
    // Errors of decompression are ignored. They occur again, and are reported, when the file is read as a trace.
    let _ = plain(file)?.take(64).read_to_end(&mut beginning);
    Ok(may_be_json(&beginning))
}

/// Returns true if a file contains JSON with the key `traceEvents` or `deviceProperties` in its first [`PROBE`] bytes.
///
/// # Errors
/// Returns an error if the file cannot be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns only one byte per call.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let length = to.len().min(1);
            self.0.read(&mut to[..length])
        }
    }

    #[test]
    fn numbers_that_json_does_not_have_are_null_outside_strings() {
        for (given, wanted) in [
            ("[NaN,-Infinity, inf]", "[null,null, null]"),
            (
                r#"{"a NaN, \" inf":"NaN","b":nan}"#,
                r#"{"a NaN, \" inf":"NaN","b":null}"#,
            ),
            (
                "[-1712195495519689.047e-3,true,1e9]",
                "[-1712195495519689.047e-3,true,1e9]",
            ),
            ("infinite", "infinite"),
            ("NaN", "null"),
            ("\"no end, NaN", "\"no end, NaN"),
            ("", ""),
        ] {
            let mut text = String::new();
            let read = Finite::new(given.as_bytes()).read_to_string(&mut text);
            assert_eq!((read.unwrap(), &*text), (wanted.len(), wanted));
            text.clear();
            let read = Finite::new(Slow(given.as_bytes())).read_to_string(&mut text);
            assert_eq!((read.unwrap(), &*text), (wanted.len(), wanted));
        }
    }
}
