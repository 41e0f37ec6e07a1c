//! The iterations of a process and their times.

pub mod joined;
pub mod outside;
pub mod sum;
pub mod text;
pub mod unqualified;
