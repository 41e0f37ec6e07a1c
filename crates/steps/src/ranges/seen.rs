//! Collects the names of NVTX ranges that the program opens. If the user's step rule matches none of them, the most
//! similar names are reported.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use tllmprof_sync::{Lock, OnlyThread};

/// The largest number of range names that are stored. `LONGEST` is the largest number of bytes that are stored of a
/// name.
const NAMES: usize = 32;
const LONGEST: usize = 48;
/// The number of ranges after which no more names are collected. A program that has opened that number of ranges
/// hardly opens ranges with new names.
const LOOKED_AT: u32 = 4096;
/// The largest number of names that the report shows.
const REPORTED: usize = 3;

/// The first names of ranges that did not match the step rule, collected until a name matches. Of names that differ
/// only in digits, only one is stored.
pub struct Seen {
    looked_at: AtomicU32,
    names: Lock<SeenNames>,
}

struct SeenNames {
    count: usize,
    names: [SeenName; NAMES],
}

#[derive(Clone, Copy)]
struct SeenName {
    length: u8,
    text: [u8; LONGEST],
    /// True if this name matches the step rule's pattern, but its range is in another NVTX domain than the rule
    /// requires.
    elsewhere: bool,
}

impl SeenName {
    fn text(&self) -> &[u8] {
        &self.text[..self.length.into()]
    }

    /// Returns true if the two names differ only in digits, and `elsewhere` is the same for both.
    fn is_like(&self, other: &Self) -> bool {
        fn words(name: &SeenName) -> impl Iterator<Item = &u8> {
            name.text().iter().filter(|byte| !byte.is_ascii_digit())
        }
        self.elsewhere == other.elsewhere && words(self).eq(words(other))
    }
}

impl Seen {
    pub const fn new() -> Self {
        const NONE: SeenName = SeenName {
            length: 0,
            text: [0; LONGEST],
            elsewhere: false,
        };
        Self {
            looked_at: AtomicU32::new(0),
            names: Lock::new(SeenNames {
                count: 0,
                names: [NONE; NAMES],
            }),
        }
    }

    /// Returns true if more names should be collected: no range has matched the step rule yet, and fewer than
    /// `LOOKED_AT` ranges were seen.
    #[inline]
    pub fn wants(&self) -> bool {
        self.looked_at.load(Ordering::Relaxed) < LOOKED_AT
    }

    /// Ends the collection of names, because a range has matched the step rule. The names are not needed for a report
    /// then.
    #[inline]
    pub fn matched(&self) {
        if self.wants() {
            self.looked_at.store(LOOKED_AT, Ordering::Relaxed);
        }
    }

    /// Adds the name of a range that did not match the step rule. `elsewhere` is true if the name matches and only
    /// the NVTX domain does not.
    #[cold]
    pub fn add(&self, bytes: impl Iterator<Item = u8>, elsewhere: bool) {
        let looked_at = self.looked_at.load(Ordering::Relaxed);
        if looked_at < LOOKED_AT {
            // Two threads may store this count at the same time. Then both ranges may count as one, and the value
            // that [`Seen::matched`] stores may be overwritten. Both cases are harmless.
            self.looked_at.store(looked_at + 1, Ordering::Relaxed);
        }
        let mut name = SeenName {
            length: 0,
            text: [0; LONGEST],
            elsewhere,
        };
        for (place, byte) in name.text.iter_mut().zip(bytes) {
            *place = byte;
            name.length += 1;
        }
        // If another thread holds the lock, the name is dropped, because the program must not wait.
        let Some(mut names) = self.names.lock_for(Duration::ZERO) else {
            return;
        };
        let count = names.count;
        let is_known = names.names[..count]
            .iter()
            .any(|known| known.is_like(&name));
        if !is_known && let Some(place) = names.names.get_mut(count) {
            *place = name;
            names.count += 1;
        }
    }

    /// Writes at most `REPORTED` names: first those that match the step rule except for the NVTX domain, then those
    /// that are most similar to `wanted`. Returns true if any name was written.
    ///
    /// # Errors
    /// Returns an error if writing to `f` fails.
    pub fn write(&self, wanted: &str, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let Some(names) = self.names.lock_for(Duration::from_millis(100)) else {
            return Ok(false);
        };
        let names = &names.names[..names.count];
        let mut written = [false; NAMES];
        for turn in 0..REPORTED.min(names.len()) {
            let nearness = |index: &usize| {
                let name = &names[*index];
                // Among equally similar names, the name that was seen first is preferred.
                (
                    name.elsewhere,
                    common(name.text(), wanted.as_bytes()),
                    NAMES - index,
                )
            };
            let left = (0..names.len()).filter(|&index| !written[index]);
            let Some(index) = left.max_by_key(nearness) else {
                break;
            };
            written[index] = true;
            f.write_str(if turn == 0 { "\"" } else { ", \"" })?;
            for chunk in names[index].text().utf8_chunks() {
                f.write_str(chunk.valid())?;
            }
            f.write_str("\"")?;
            if names[index].elsewhere {
                f.write_str(" in another domain")?;
            }
        }
        Ok(!names.is_empty())
    }

    /// Frees the lock in the child of a fork, whichever thread held it.
    pub fn in_child(&self, alone: &OnlyThread) {
        self.names.break_open(alone);
    }
}

/// Returns the length of the longest substring that both texts have, ignoring case.
fn common(a: &[u8], b: &[u8]) -> usize {
    let starts = (0..a.len()).flat_map(|i| (0..b.len()).map(move |j| (i, j)));
    starts
        .map(|(i, j)| {
            let pairs = a[i..].iter().zip(&b[j..]);
            pairs.take_while(|(x, y)| x.eq_ignore_ascii_case(y)).count()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Report<'a>(&'a Seen, &'a str);

    impl fmt::Display for Report<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(self.1, f).map(|_| ())
        }
    }

    #[test]
    fn reports_the_nearest() {
        let seen = Seen::new();
        for name in [
            "load",
            "prefill",
            "decode_step 1",
            "sample",
            "load",
            "Decode",
            "decode_step 22",
        ] {
            seen.add(name.bytes(), false);
        }
        let report = Report(&seen, "^decode step").to_string();
        assert_eq!(report, r#""decode_step 1", "Decode", "load""#);
        seen.add("step".bytes(), true);
        let report = Report(&seen, "^decode step").to_string();
        assert!(
            report.starts_with(r#""step" in another domain, "decode_step 1""#),
            "{report}"
        );
    }

    #[test]
    fn is_bounded_and_stops_at_a_match() {
        let seen = Seen::new();
        for n in 0..LOOKED_AT {
            assert!(seen.wants());
            let name = char::from_u32(0x100 + n).unwrap().to_string();
            seen.add(name.bytes(), false);
        }
        assert!(!seen.wants());
        assert_eq!(seen.names.lock().count, NAMES);
        let seen = Seen::new();
        assert_eq!(Report(&seen, "x").to_string(), "");
        seen.matched();
        assert!(!seen.wants());
    }
}
