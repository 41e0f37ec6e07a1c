//! Sorts short lists with little code.

use std::collections::BinaryHeap;

/// Returns the items in ascending order. Meant for lists that are sorted rarely: for each type of item, the code of
/// `sort_unstable` takes about 5 kB of the library, and that of a heap a few hundred bytes.
pub fn sorted<T: Ord>(items: Vec<T>) -> Vec<T> {
    BinaryHeap::from(items).into_sorted_vec()
}
