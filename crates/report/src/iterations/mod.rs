//! The iterations of a process: what they come to.

pub mod joined;
pub mod sum;
pub mod unqualified;
