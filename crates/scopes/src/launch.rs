//! A kernel's launch.

/// What is known of a kernel where it is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The driver's handle of its function; 0 where a runtime that is not followed launches it.
    pub function: usize,
    pub grid: [u32; 3],
}
