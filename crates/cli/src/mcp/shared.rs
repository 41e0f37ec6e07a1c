//! The state that all tools share.

use super::input::Interrupts;
use super::reports::Reports;
use crate::output::Kept;

/// The state of a server. Tools run one at a time, so one lock protects it.
pub(crate) struct Shared {
    pub reports: Reports,
    /// The messages that code shared with other commands logs. They are collected here instead of
    /// being printed.
    pub messages: Kept,
    pub interrupts: Interrupts,
}
