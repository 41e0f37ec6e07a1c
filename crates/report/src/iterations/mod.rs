//! The iterations of a process: their times, as sums and as text.

pub(crate) mod joined;
pub(crate) mod outside;
pub(crate) mod sum;
pub(crate) mod text;
pub(crate) mod unqualified;
