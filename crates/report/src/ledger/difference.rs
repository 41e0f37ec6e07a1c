//! Differences between iterations, and what causes of time are called.

use schemars::JsonSchema;
use serde::Serialize;

use cause::{REST, WORK};

/// What causes are called.
pub mod cause {
    pub const GC: &str = "GC";
    pub const GIL: &str = "waiting for the GIL";
    /// Having no processor.
    pub const DELAYED: &str = "waiting for a processor";
    pub const BLOCKED: &str = "asleep or blocked";
    pub const LAUNCHING: &str = "launching";
    pub const WORK: &str = "GPU work";
    /// The GPU had nothing to do, and nothing else says why.
    pub const LATE: &str = "late launch";
    /// What is left.
    pub const REST: &str = "unexplained";
}

/// What causes that wait for the GPU begin with.
pub const WAITING: &str = "waiting for the GPU";

/// Something that an iteration took longer, or less long.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Difference {
    /// What it is: a cause of the ledger, `GPU work`, which is waited for, or `unexplained`, which is the rest.
    pub cause: String,
    /// What was different about it; `null`: only how long it took.
    pub detail: Option<String>,
    /// The thread that held the GIL, of a wait for it; `null`: not known.
    pub held_by: Option<String>,
    /// How much longer it took than in the mean of the others; negative: it took less long.
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

    /// Whether it is what is left.
    #[must_use]
    pub fn is_rest(&self) -> bool {
        self.cause == REST
    }

    /// Whether it is more work of the GPU, or waiting for it.
    #[must_use]
    pub fn is_work(&self) -> bool {
        (self.cause == WORK || self.cause.starts_with(WAITING)) && self.more > 0
    }
}
