//! The state that all tools of `tllmprof mcp` share.

use super::input::Interrupts;
use super::reports::Reports;
use crate::output::Kept;

/// The state of a server. One lock protects all of it, because tools run one at a time.
pub(crate) struct Shared {
    pub reports: Reports,
    /// Log messages of code that other commands use too. They are collected here instead of being printed.
    pub messages: Kept,
    pub interrupts: Interrupts,
}
