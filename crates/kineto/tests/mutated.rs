//! Reads damaged traces. Reading must end with a result or an error, and must not panic.

mod common;

use common::{read, reported, two_steps};

/// Number of damaged traces that the test reads.
const TRACES: u64 = 1700;

/// A generator of pseudo-random numbers that are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// JSON values with which the test replaces values of a trace.
const VALUES: &[&str] = &[
    "-1",
    "0",
    "1e308",
    "-9223372036854775808",
    "18446744073709551615",
    "null",
    "[]",
    "{}",
    "\"\"",
    "\"NaN\"",
    "true",
    "\"\\ud800\"",
    "1.0000000001",
    "NaN",
    "1e400",
    "9223372036854775807",
    "9223372036854775.807",
    "99999999999999999999999999",
];

/// Returns `text` with at most four random changes. A change replaces a byte, cuts off the end, repeats or removes some
/// bytes, or replaces a value so that the text may remain valid JSON.
fn mutate(text: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(text.len());
        match numbers.below(6) {
            0 => text[at] = numbers.below(256) as u8,
            1 => text.truncate(at.max(1)),
            2 => {
                let part = text[at..(at + numbers.below(200)).min(text.len())].to_vec();
                text.splice(at..at, part);
            }
            3 => {
                text.drain(at..(at + numbers.below(40)).min(text.len()));
            }
            _ => {
                // The text after a colon, up to the next comma or bracket, is usually a JSON value.
                let Some(colon) = text[at..].iter().position(|byte| *byte == b':') else {
                    continue;
                };
                let start = at + colon + 1;
                let length = text[start..].iter().position(|byte| b",}]".contains(byte));
                let end = start + length.unwrap_or(0);
                let value = VALUES[numbers.below(VALUES.len())];
                text.splice(start..end, value.bytes());
            }
        }
        if text.is_empty() {
            text.push(b'{');
        }
    }
    text
}

#[test]
fn damaged_traces_do_no_harm() {
    let whole = two_steps().to_string();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut read_well, mut refused) = (0, 0);
    for _ in 0..TRACES {
        let text = mutate(whole.as_bytes(), &mut numbers);
        match read(&text) {
            Ok(process) => {
                let report = reported(vec![process]);
                assert_eq!(report["processes"].as_array().map(Vec::len), Some(1));
                read_well += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                refused += 1;
            }
        }
    }
    // The test would show little if nearly all changed traces could be read, or nearly none. So there must be many of
    // both kinds.
    assert!(
        read_well > 50 && refused > 50,
        "{read_well} read, {refused} refused"
    );
}
