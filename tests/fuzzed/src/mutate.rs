//! Makes pseudo-random changes to bytes, as a fuzzer does. The same seed gives the same changes in each run.

/// A pseudo-random source of changes to bytes.
#[derive(Debug)]
pub struct Mutator(u64);

/// Values at the limits of integer types, which are likely to cause overflows.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

impl Mutator {
    /// Returns a source of changes. Different seeds give different changes.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a pseudo-random number below a limit (xorshift64), or 0 if the limit is 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        match limit {
            0 => 0,
            _ => (self.0 >> 11) as usize % limit,
        }
    }

    /// Makes one to eight changes to the bytes. A change may insert a part of `other`.
    pub fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(8) {
            self.change_once(bytes, other);
        }
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len());
        let length = self.below(16).min(bytes.len() - at);
        match self.below(8) {
            _ if bytes.is_empty() => bytes.extend_from_slice(other),
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.below(256) as u8,
            2 => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                let width = (1 << self.below(4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            3 => bytes[at] = bytes[at].wrapping_add(self.below(7) as u8).wrapping_sub(3),
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..at + length)),
            6 => {
                let from = self.below(bytes.len() - length + 1);
                bytes.copy_within(from..from + length, at);
            }
            _ => {
                let from = self.below(other.len());
                let piece = &other[from..(from + self.below(64)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
}
