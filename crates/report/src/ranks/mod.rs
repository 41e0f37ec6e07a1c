//! What several processes show together.

pub mod arrivals;
pub mod groups;
pub mod names;
pub mod skew;
pub mod text;
