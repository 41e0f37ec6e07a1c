//! The iterations of a process: what they come to.

pub mod joined;
pub mod outside;
pub mod sum;
pub mod text;
pub mod unqualified;
