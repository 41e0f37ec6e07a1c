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

/// Longest word that is looked at.
const LONGEST_WORD: usize = 16;

/// A reader of JSON that has `null` for numbers that JSON does not have: NaN, Infinity and inf, which some programs
/// write.
struct Finite<R> {
    from: R,
    raw: Vec<u8>,
    /// Bytes to hand out, from `at` on.
    text: Vec<u8>,
    at: usize,
    /// The beginning of a word outside strings that may be no number.
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

    /// Takes bytes of a string up to its end, and returns what follows.
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

    /// Takes bytes outside strings up to a string or a word that may be no number, and returns what follows.
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

/// The text of a file, plain.
pub type Text<'a> = BufReader<Metered<Box<dyn Read + 'a>>>;

/// The text of a file, and the budget of its values.
///
/// # Errors
/// The file cannot be read, or its text is encoded in a way that JSON is not.
pub fn text<'a>(file: impl Read + 'a) -> io::Result<(Text<'a>, Budget)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out its bytes one by one.
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
