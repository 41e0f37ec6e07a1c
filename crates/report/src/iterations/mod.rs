//! The iterations of a process and their times.

pub(crate) mod joined;
pub(crate) mod outside;
pub(crate) mod sum;
pub(crate) mod text;
pub(crate) mod unqualified;
