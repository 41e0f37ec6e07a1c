//! Runs the same work for many items on several threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The largest number of threads that work at the same time. More threads would need more memory.
const THREADS: usize = 8;

/// Calls `work` for each item on several threads. Returns the results in the order of the items.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(at)
        {
            done.push((at, work(item)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(THREADS).min(items.len()))
            .map(|_| scope.spawn(some))
            .collect();
        let mut done = some();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_is_done_once_and_in_order() {
        let items: Vec<_> = (0..1000_u64).collect();
        let made = super::each(&items, |item| item * 2);
        let expected: Vec<_> = (0..1000).map(|item| item * 2).collect();
        assert_eq!(made, expected);
        assert!(super::each(&[] as &[u64], |item| *item).is_empty());
    }
}
