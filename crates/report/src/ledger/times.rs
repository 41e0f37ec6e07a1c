//! A time of the host, together with the part of that time in which the GPU was idle.

/// A host time, and the part of it in which the GPU was idle. Both are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Times {
    pub all: u64,
    pub idle: u64,
}

impl Times {
    pub(crate) const fn and(self, more: Self) -> Self {
        Self {
            all: self.all + more.all,
            idle: self.idle + more.idle,
        }
    }
}
