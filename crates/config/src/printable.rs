//! Makes foreign text printable: printable text stays on one line, does not move the terminal's cursor, and does not
//! change the order in which the text around it is read.
//!
//! Foreign text comes from the profiled program or from a file, so it cannot be trusted.

use core::fmt::{self, Display, Formatter, Write};

/// Returns true for a character that is not visible but acts on a terminal or on the text around it: controls (C0,
/// DEL, C1), line and paragraph separators, direction marks, zero-width characters and tags.
pub const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// A writer that escapes hidden characters, such as `\n` and `\u{202e}`, and passes the text to another writer. This
/// writer does not allocate memory. Escaping text twice has the same result as escaping it once.
pub struct Printing<'a, W>(pub &'a mut W);

impl<W: Write> Write for Printing<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_hidden) {
            let (before, behind) = rest.split_at(at);
            self.0.write_str(before)?;
            let mut behind = behind.chars();
            match behind.next() {
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some('\t') => self.0.write_str("\\t")?,
                Some(hidden) => write!(self.0, "\\u{{{:x}}}", u32::from(hidden))?,
                None => (),
            }
            rest = behind.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Foreign bytes that are displayed in printable form: hidden characters, and bytes that are not UTF-8, are escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a [u8]);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            Printing(f).write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Returns a message in which all hidden characters, including line breaks, are escaped.
#[must_use]
pub fn printable(message: impl Display) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = write!(Printing(&mut text), "{message}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_escaped_and_what_is_seen_stays() {
        for (text, shown) in [
            ("", ""),
            (
                "decode µ 漢字 שלום e\u{301} 👍🏽 \\n \"x\"",
                "decode µ 漢字 שלום e\u{301} 👍🏽 \\n \"x\"",
            ),
            (
                "\x1b]0;PWNED\x07\x1b[31mRED\nfake: line",
                "\\u{1b}]0;PWNED\\u{7}\\u{1b}[31mRED\\nfake: line",
            ),
            ("a\r\tb\0\x7f", "a\\r\\tb\\u{0}\\u{7f}"),
            ("\u{9b}31m\u{85}", "\\u{9b}31m\\u{85}"),
            ("\u{202e}gpj.exe\u{2069}", "\\u{202e}gpj.exe\\u{2069}"),
            (
                "\u{200b}\u{feff}\u{2028}\u{2029}",
                "\\u{200b}\\u{feff}\\u{2028}\\u{2029}",
            ),
            ("\u{e0041}\u{e007f}", "\\u{e0041}\\u{e007f}"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(Printable(text.as_bytes()).to_string(), shown);
            assert_eq!(printable(shown), shown, "once is enough");
        }
    }

    #[test]
    fn every_mark_of_direction_and_every_control_is_hidden() {
        let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
        let marks = marks.into_iter().chain('\u{202a}'..='\u{202e}');
        let marks = marks.chain('\u{2066}'..='\u{2069}');
        let controls = (char::MIN..=char::MAX).filter(|c| c.is_control());
        for c in marks.chain(controls) {
            assert!(is_hidden(c), "{c:?}");
        }
        assert!(
            ('!'..='~')
                .chain('\u{a0}'..='\u{ac}')
                .all(|c| !is_hidden(c))
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_escaped() {
        assert_eq!(
            Printable(b"a\xff\xc3b\x1b").to_string(),
            "a\\xff\\xc3b\\u{1b}"
        );
    }
}
