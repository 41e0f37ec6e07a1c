//! A difference in time between iterations, with its cause. The module also defines the names of causes.

use schemars::JsonSchema;
use serde::Serialize;

use cause::{REST, WORK};

/// Names of the causes of time, as reports show them.
pub(crate) mod cause {
    pub(crate) const GC: &str = "GC";
    pub(crate) const GIL: &str = "waiting for the GIL";
    /// The thread was ready to run but had no processor.
    pub(crate) const DELAYED: &str = "waiting for a processor";
    pub(crate) const BLOCKED: &str = "asleep or blocked";
    pub(crate) const LAUNCHING: &str = "launching";
    pub(crate) const WORK: &str = "GPU work";
    /// The GPU was idle, and none of the other causes explains that.
    pub(crate) const LATE: &str = "late launch";
    /// The part of a slow iteration's extra time that no cause explains.
    pub(crate) const REST: &str = "unexplained";
}

/// Prefix of the names of causes in which the host waits for the GPU.
pub(crate) const WAITING: &str = "waiting for the GPU";

/// A cause on which a slow iteration spent more or less time than comparable iterations, or a late rank more or less
/// time than the median rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Difference {
    /// The name of the cause: a `cause` of the ledger, `GPU work` for GPU work that the host waited for, or
    /// `unexplained` for the remaining time.
    pub cause: String,
    /// Details of the difference, in words; `null` if there is nothing to add.
    pub detail: Option<String>,
    /// The name of the thread that held the GIL, if the cause is a wait for the GIL; `null` otherwise, or if the thread
    /// is not known.
    pub held_by: Option<String>,
    /// The extra time that was spent on the cause, relative to the mean of comparable iterations or to the median rank;
    /// negative if less time was spent.
    #[serde(rename = "more_ns")]
    pub more: i64,
}

impl Difference {
    pub fn new(cause: &str, more: i64, detail: Option<String>) -> Self {
        Self {
            cause: cause.to_owned(),
            detail,
            held_by: None,
            more,
        }
    }

    /// Returns true if this is the unexplained part of the extra time.
    #[must_use]
    pub fn is_rest(&self) -> bool {
        self.cause == REST
    }

    /// Returns true if the cause is more GPU work, or a longer wait for the GPU.
    #[must_use]
    pub fn is_work(&self) -> bool {
        (self.cause == WORK || self.cause.starts_with(WAITING)) && self.more > 0
    }
}
