//! A table with one value for each thread.

/// Maximum number of threads in a table. Further threads get no value.
const MAX_THREADS: usize = 256;

/// One value for each thread. A look-up of the thread that was looked up last is fast, because consecutive events
/// often belong to one thread.
#[derive(Debug)]
pub(crate) struct ByThread<T> {
    threads: Vec<(u32, T)>,
    /// Index in `threads` of the thread that was looked up last.
    latest: usize,
}

impl<T> Default for ByThread<T> {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            latest: 0,
        }
    }
}

impl<T: Default> ByThread<T> {
    /// Returns the value of a thread, which is the default value at first. Returns `None` for a new
    /// thread if the table is full.
    #[inline]
    pub(crate) fn get_mut(&mut self, thread: u32) -> Option<&mut T> {
        if self.threads.get(self.latest).map(|(known, _)| *known) != Some(thread) {
            self.latest = self.place(thread)?;
        }
        self.threads.get_mut(self.latest).map(|(_, value)| value)
    }

    fn place(&mut self, thread: u32) -> Option<usize> {
        let known = self.threads.iter().position(|(known, _)| *known == thread);
        known.or_else(|| {
            let has_room = self.threads.len() < MAX_THREADS;
            has_room.then(|| {
                self.threads.push((thread, T::default()));
                self.threads.len() - 1
            })
        })
    }
}

impl<T> ByThread<T> {
    /// Returns the threads with their values, in the order in which they were first looked up.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.threads.iter().map(|(thread, value)| (*thread, value))
    }

    /// Returns the number of threads that were looked up so far; at most [`MAX_THREADS`].
    pub(crate) const fn len(&self) -> usize {
        self.threads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_value_until_the_table_is_full() {
        let mut counts = ByThread::<u64>::default();
        for thread in [7, 8, 7, 7, 8] {
            *counts.get_mut(thread).unwrap() += 1;
        }
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(7, &3), (8, &2)]);
        let first = 100..100 + MAX_THREADS as u32 - 2;
        assert!(first.clone().all(|thread| counts.get_mut(thread).is_some()));
        assert_eq!(counts.get_mut(first.end), None);
        assert_eq!(counts.get_mut(7), Some(&mut 3));
        assert_eq!(counts.len(), MAX_THREADS);
    }
}
