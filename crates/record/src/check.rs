//! Checksums over the words of a record, with which a reader detects changed data. The record's format calls
//! them *checks*.
//!
//! A check multiplies 64 by 64 bits and combines both halves of the product. This takes a few cycles on every
//! processor and needs no checksum instructions, which some processors lack. A change goes unnoticed once in
//! 2^32 cases (events) or 2^64 cases (header).

/// Constants that are mixed into the checks. They have no regular pattern and are odd: the fractional parts of the
/// square roots of 2, 3, 5 and 7, with the lowest bit set.
const KEYS: [u64; 4] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

/// Returns the check (checksum) of a chunk's events up to and including this event. `before` is the check up
/// to the previous event, and the array holds this event's words.
#[inline(always)]
pub(crate) const fn next(before: u32, [a, b, c]: [u64; 3]) -> u32 {
    let event = fold(a ^ KEYS[0], b ^ KEYS[1]);
    let all = fold(event ^ c ^ KEYS[2], KEYS[3] ^ (before as u64) << 16);
    all as u32 ^ (all >> 32) as u32
}

/// Returns the check (checksum) with which an empty chunk begins. It depends on the record, the chunk's
/// number and the thread.
#[inline]
pub(crate) const fn first(record: u64, number: u32, thread: u32) -> u32 {
    next(0, [record, (number as u64) << 32 | thread as u64, 0])
}

/// The check (checksum) of a sequence of words, computed word by word.
#[derive(Clone, Copy)]
pub(crate) struct Words(u64);

impl Words {
    pub(crate) const fn new() -> Self {
        Self(KEYS[0])
    }

    #[inline]
    pub(crate) const fn add(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, KEYS[1]) ^ KEYS[2];
    }

    pub(crate) const fn check(self) -> u64 {
        self.0
    }

    /// Returns the check (checksum) of all of `words`.
    pub(crate) fn check_all(words: impl IntoIterator<Item = u64>) -> u64 {
        let mut all = Self::new();
        words.into_iter().for_each(|word| all.add(word));
        all.check()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_bit_of_an_event_and_of_what_was_before_matters() {
        for words in [[0; 3], [u64::MAX; 3], [1 << 40, 7 << 32, 12]] {
            let check = next(9, words);
            let mut seen = HashSet::from([check]);
            for bit in 0..192 {
                let mut other = words;
                other[bit / 64] ^= 1 << (bit % 64);
                assert!(seen.insert(next(9, other)), "{words:?}: bit {bit}");
            }
            for bit in 0..32 {
                assert!(
                    seen.insert(next(9 ^ 1 << bit, words)),
                    "{words:?}: before {bit}"
                );
            }
        }
    }

    #[test]
    fn the_order_of_words_matters() {
        let check = Words::check_all([1, 2, 3]);
        assert_ne!(check, Words::check_all([2, 1, 3]));
        assert_ne!(check, Words::check_all([1, 2, 3, 0]));
        assert_ne!(Words::check_all([0, 0]), Words::check_all([0]));
        assert_ne!(first(1, 2, 3), first(1, 3, 2));
    }
}
