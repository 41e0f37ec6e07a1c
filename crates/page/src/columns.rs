//! Columns of numbers in a compact form, for a page's data.
//!
//! A number is a sequence of groups of 7 bits, the lowest first. Each group is a byte, whose bit 7
//! is set if another group follows. A column of growing numbers is written as differences. A text
//! is written as its length in bytes, followed by UTF-8. Numbers are limited to 53 bits, because
//! the page's script has no larger exact integers.

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::DeflateEncoder;

/// The largest integer (2^53 - 1) up to which the page's script can represent all integers exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// Columns of numbers and texts, encoded as bytes.
#[derive(Default, Debug)]
pub struct Columns(Vec<u8>);

impl Columns {
    pub fn number(&mut self, number: u64) {
        let mut rest = number.min(LARGEST);
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub fn column(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.number(number));
    }

    /// Adds numbers, each as its difference from the previous number. A difference is written in zigzag form: bit 0
    /// contains its sign.
    pub fn differences(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let signed = |number: u64| number.min(LARGEST) as i64;
        self.signed_differences(numbers.into_iter().map(signed));
    }

    /// Adds numbers that may be negative. They have the same form as in [`Self::differences`].
    pub fn signed_differences(&mut self, numbers: impl IntoIterator<Item = i64>) {
        // Two numbers within this limit differ by at most `LARGEST / 2`. With the sign in bit 0, the difference is at
        // most `LARGEST`, which the page's script can represent exactly.
        let limit = (LARGEST >> 2) as i64;
        let mut before = 0;
        for number in numbers {
            let number = number.clamp(-limit, limit);
            let more = number - before;
            self.number((more << 1 ^ more >> 63) as u64);
            before = number;
        }
    }

    /// Writes the columns, compressed as raw deflate and encoded in base64.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::new(4));
        deflated.write_all(&self.0)?;
        to.write_all(BASE64_STANDARD.encode(deflated.finish()?).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::DeflateDecoder;

    use super::*;

    #[test]
    fn numbers_take_the_bytes_they_need() {
        let mut columns = Columns::default();
        columns.column([0, 127, 128, u64::MAX]);
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(columns.0, [&[0, 127, 0x80, 1], &largest[..]].concat());
        let mut columns = Columns::default();
        columns.differences([5, 6, 4]);
        assert_eq!(columns.0, [10, 2, 3]);
    }

    #[test]
    fn what_is_written_is_base64_of_raw_deflate() {
        let mut columns = Columns::default();
        columns.text("ä");
        let mut written = Vec::new();
        columns.write(&mut written).unwrap();
        let deflated = BASE64_STANDARD.decode(written).unwrap();
        let mut bytes = Vec::new();
        DeflateDecoder::new(&deflated[..])
            .read_to_end(&mut bytes)
            .unwrap();
        assert_eq!(bytes, [2, 0xc3, 0xa4]);
    }
}
