//! What was in batches, as JSON.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Batch, Phase};

use crate::batches::{BatchSum, PhaseSum, SizeSum};
use crate::numbers::quantiles::Quantiles;

/// What was in a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Batch")]
pub struct JsonBatch {
    /// Requests in it.
    #[schemars(extend("unit" = "requests"))]
    requests: u16,
    /// Tokens that were scheduled, without those that the batch was padded by.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u32,
    /// Tokens of prompts among them.
    #[schemars(extend("unit" = "tokens"))]
    prefill_tokens: u32,
    /// The other ones.
    #[schemars(extend("unit" = "tokens"))]
    decode_tokens: u32,
    /// What it consists of.
    phase: JsonPhaseName,
}

/// What a batch consists of.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Phase")]
#[serde(rename_all = "lowercase")]
enum JsonPhaseName {
    /// Tokens of prompts alone.
    Prefill,
    /// Tokens behind prompts alone.
    Decode,
    /// Both.
    Mixed,
    /// No tokens.
    Idle,
    /// It is a pass of a model that drafts for speculative decoding; its requests and tokens are not known, and 0 here.
    Draft,
}

impl From<Phase> for JsonPhaseName {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Prefill => Self::Prefill,
            Phase::Decode => Self::Decode,
            Phase::Mixed => Self::Mixed,
            Phase::Idle => Self::Idle,
            Phase::Draft => Self::Draft,
        }
    }
}

/// The iterations in one phase.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PhaseSum")]
pub struct JsonPhase {
    /// What their batches consist of.
    phase: JsonPhaseName,
    #[serde(flatten)]
    all: JsonBatchSum,
    /// The same by the tokens in their batches, for each class in which there are iterations: 0, 1, 2 to 4, 5 to 16, 17 to
    /// 64, 65 to 256, 257 to 1024, 1025 to 4096, and more.
    sizes: Vec<JsonSize>,
}

/// The iterations of one phase in whose batches there were so many tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SizeSum")]
struct JsonSize {
    /// The least tokens of this class.
    #[schemars(extend("unit" = "tokens"))]
    min_tokens: u32,
    /// The most tokens of this class; `null`: there is no limit.
    #[schemars(extend("unit" = "tokens"))]
    max_tokens: Option<u32>,
    #[serde(flatten)]
    all: JsonBatchSum,
}

/// Iterations of some batches.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchSum")]
struct JsonBatchSum {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    iterations: u64,
    /// How long they took.
    time: Quantiles,
    /// How long they took in all.
    total_ns: u64,
    /// Requests in their batches, in all.
    #[schemars(extend("unit" = "requests"))]
    requests: u64,
    /// Tokens in their batches, in all.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u64,
    /// Tokens of prompts among them.
    #[schemars(extend("unit" = "tokens"))]
    prefill_tokens: u64,
}

impl JsonBatch {
    pub fn of(batch: Option<Batch>) -> Option<Self> {
        batch.map(|batch| Self {
            requests: batch.requests,
            tokens: batch.tokens,
            prefill_tokens: batch.prefill_tokens,
            decode_tokens: batch.decode_tokens(),
            phase: batch.phase().into(),
        })
    }
}

impl JsonPhase {
    pub fn of(sum: &PhaseSum) -> Self {
        Self {
            phase: sum.phase.into(),
            all: JsonBatchSum::of(&sum.all),
            sizes: sum.sizes.iter().map(JsonSize::of).collect(),
        }
    }
}

impl JsonSize {
    fn of(sum: &SizeSum) -> Self {
        Self {
            min_tokens: sum.least,
            max_tokens: sum.most,
            all: JsonBatchSum::of(&sum.all),
        }
    }
}

impl JsonBatchSum {
    const fn of(sum: &BatchSum) -> Self {
        Self {
            iterations: sum.iterations,
            time: sum.time,
            total_ns: sum.total,
            requests: sum.requests,
            tokens: sum.tokens,
            prefill_tokens: sum.prefill_tokens,
        }
    }
}
