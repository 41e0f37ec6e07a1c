//! Parses whole numbers that consist only of decimal digits.

use crate::error::{Problem, quoted};

/// Parses a whole number. `wanted` describes valid values, for the error.
///
/// # Errors
/// Returns an error if the text is empty or contains a character other than `0`–`9`, such as a sign, or if the number
/// exceeds `u64::MAX`. Blanks before and after the number are allowed.
pub fn parse(text: &str, wanted: &str) -> Result<u64, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Problem::new("a number is missing", wanted));
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Problem::new(
            format!("{} is not a number", quoted(text)),
            wanted,
        ));
    }
    // The text consists of digits, so parsing fails only if the number is too large.
    text.parse()
        .map_err(|_| Problem::new(format!("{} is over {}", quoted(text), u64::MAX), wanted))
}

/// Parses a number of bytes, with an optional suffix `K`, `M` or `G` (powers of 1024).
///
/// # Errors
/// Returns the errors of [`parse`], and an error if the number of bytes exceeds `u64::MAX`.
pub fn parse_bytes(text: &str) -> Result<u64, Problem> {
    const WANTED: &str = "a number of bytes, such as 500M or 2G";
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // If the text is not a number, the error has to show the whole text, including the suffix.
    let is_number = digits.trim().bytes().all(|byte| byte.is_ascii_digit());
    parse(if is_number { digits } else { text }, WANTED)?
        .checked_mul(1 << shift)
        .ok_or_else(|| {
            Problem::new(
                format!("{} is over {} bytes", quoted(text), u64::MAX),
                WANTED,
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_only() {
        assert_eq!(parse(" 007 ", ""), Ok(7));
        assert_eq!(parse("18446744073709551615", ""), Ok(u64::MAX));
        for bad in [
            "",
            "+1",
            "-1",
            "1 2",
            "0x10",
            "1e3",
            "٣",
            "18446744073709551616",
        ] {
            assert!(parse(bad, "").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bytes() {
        assert_eq!(parse_bytes("12"), Ok(12));
        assert_eq!(parse_bytes("2k"), Ok(2048));
        assert_eq!(parse_bytes("500 M"), Ok(500 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        for bad in ["", "G", "1T", "1.5G", "18446744073709551615K"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?}");
        }
        let problem = parse_bytes("/proc/mem").unwrap_err().to_string();
        assert!(
            problem.contains("\"/proc/mem\" is not a number"),
            "{problem}"
        );
    }
}
