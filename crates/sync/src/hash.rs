//! The hash function for tables that the library reads while it handles an intercepted call.

/// The factor by which keys are multiplied: 2⁶⁴ divided by the golden ratio. The number is odd, and its bits have no
/// regular pattern (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
pub const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a hash of 32 bits for a key: the upper half of the product of the key and [`MIX`]. A table uses some of
/// these bits as the position at which the search for the key begins. Keys are addresses or small numbers, so many
/// keys have the same low bits or the same high bits. Each bit of the hash depends on many bits of the key.
#[inline]
pub const fn spread(key: u64) -> usize {
    (key.wrapping_mul(MIX) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_alike_are_spread() {
        const PLACES: usize = 1 << 10;
        for step in [1, 8, 16, 24, 64, 4096, 1 << 20] {
            let places = (0..PLACES as u64).map(|key| spread(key * step) % PLACES);
            let used: std::collections::HashSet<_> = places.collect();
            assert!(
                used.len() > PLACES / 4,
                "every {step}: {} places",
                used.len()
            );
        }
    }
}
