//! Analyses that compare several processes, such as the ranks of a job.

pub(crate) mod arrivals;
pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod skew;
pub(crate) mod text;

use std::path::Path;

use crate::collectives::Collectives;
use crate::events::facts::Facts;
use crate::events::window::Window;

/// The data of a process that are needed to compare it with other processes.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    pub pid: u32,
    pub file: &'a Path,
    pub facts: &'a Facts,
    pub windows: &'a [Window],
    pub collectives: &'a Collectives,
}
