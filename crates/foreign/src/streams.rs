//! Numbers of streams. Traces have streams with any number, or with a name. A recording (data in the form of a tllmprof
//! record) has 16 bits for each number.

use std::collections::HashMap;
use std::hash::Hash;

/// Maximum number of streams whose number in the trace is not below [`FIRST_OTHER`], or that have only a name.
const MAX_OTHERS: usize = 1 << 14;

/// A stream whose number in the trace is below this limit keeps that number. Other streams get numbers above this
/// limit: first `u16::MAX`, then the next lower numbers.
const FIRST_OTHER: u16 = u16::MAX - MAX_OTHERS as u16;

/// The numbers of a trace's streams. `K` is the form in which the trace names streams.
#[derive(Debug)]
pub struct StreamNumbers<K> {
    /// The streams that do not keep the number that they have in the trace, each with its new number.
    others: HashMap<K, u16>,
}

impl<K> Default for StreamNumbers<K> {
    fn default() -> Self {
        Self {
            others: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> StreamNumbers<K> {
    /// Returns the number of a stream, which no other stream has. `known` is the stream's number in the trace, if it
    /// has one. Returns `None` if the numbers are used up.
    pub fn get(&mut self, stream: &K, known: Option<i64>) -> Option<u16> {
        let known = known.and_then(|number| u16::try_from(number).ok());
        if let Some(number) = known.filter(|number| *number < FIRST_OTHER) {
            return Some(number);
        }
        let next = u16::MAX - self.others.len() as u16;
        match self.others.get(stream) {
            Some(number) => Some(*number),
            None if self.others.len() < MAX_OTHERS => {
                Some(*self.others.entry(stream.clone()).or_insert(next))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn streams_are_never_merged() {
        let mut numbers = StreamNumbers::default();
        let mut number = |stream: i64| numbers.get(&stream, Some(stream));
        assert_eq!((number(7), number(4103)), (Some(7), Some(4103)));
        let far: Vec<_> = (0..MAX_OTHERS as i64)
            .map(|n| number((1 << 40) + n).unwrap())
            .collect();
        let different: HashSet<_> = far.iter().collect();
        assert_eq!(different.len(), MAX_OTHERS);
        assert!(far.iter().all(|number| *number >= FIRST_OTHER));
        assert_eq!(number(1 << 40), Some(far[0]), "the second time, too");
        assert_eq!(number(-1), None);
        assert_eq!(number(7), Some(7));
    }
}
