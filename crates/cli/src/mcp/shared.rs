//! State that the tools share.

use super::input::Interrupts;
use super::reports::Reports;
use crate::output::Kept;

/// State of a session. Tools run one at a time.
pub struct Shared {
    pub reports: Reports,
    /// Messages of the code that tools share with other commands.
    pub messages: Kept,
    pub interrupts: Interrupts,
}
