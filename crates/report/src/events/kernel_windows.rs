//! The windows in which kernels were recorded.

/// The windows in which kernels were recorded, in the order of time.
#[derive(Clone, Default, Debug)]
pub struct KernelWindows {
    /// Each window from the start of its first iteration to the end of its last, in nanoseconds.
    windows: Vec<(u64, u64)>,
}

impl KernelWindows {
    /// Returns the windows in the order of time. Each one is given by its start and its end, in nanoseconds.
    #[must_use]
    pub fn new(mut windows: Vec<(u64, u64)>) -> Self {
        windows.sort_unstable();
        Self { windows }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.windows.len()
    }

    /// Returns the end of the window with this index.
    pub(crate) fn end(&self, index: usize) -> u64 {
        self.windows[index].1
    }

    /// Returns the index of the last window that began at or before a moment, which may lie after that window's end.
    /// GPU work that begins between two windows belongs to the first of them, because it was launched in that window.
    pub(crate) fn at(&self, moment: u64) -> Option<usize> {
        let after = self.windows.partition_point(|(start, _)| *start <= moment);
        after.checked_sub(1)
    }

    /// Returns true if a moment is in a window.
    pub(crate) fn contains(&self, moment: u64) -> bool {
        self.at(moment)
            .is_some_and(|index| moment <= self.end(index))
    }
}
