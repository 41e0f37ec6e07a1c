//! What several processes show together.

pub mod arrivals;
pub mod groups;
pub mod names;
pub mod skew;
pub mod text;

use crate::collectives::Found as Collectives;
use crate::events::facts::Facts;
use crate::events::window::Window;

/// What of a process is compared with other processes.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    pub pid: u32,
    pub facts: &'a Facts,
    pub windows: &'a [Window],
    pub collectives: &'a Collectives,
}
