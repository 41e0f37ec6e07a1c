//! What was in a batch, as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Batch, Phase};

/// What was in a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Batch")]
pub struct InBatch {
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
    #[serde(serialize_with = "write_phase")]
    #[schemars(with = "PhaseName")]
    phase: Phase,
}

/// What a batch consists of.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Phase")]
#[serde(remote = "Phase", rename_all = "lowercase")]
pub enum PhaseName {
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

/// Writes a phase.
///
/// # Errors
/// Where it cannot be written.
pub fn write_phase<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    PhaseName::serialize(phase, serializer)
}

/// Writes a batch, if it is known.
///
/// # Errors
/// Where it cannot be written.
pub fn write_batch<S: Serializer>(batch: &Option<Batch>, serializer: S) -> Result<S::Ok, S::Error> {
    let batch = batch.map(|batch| InBatch {
        requests: batch.requests,
        tokens: batch.tokens,
        prefill_tokens: batch.prefill_tokens,
        decode_tokens: batch.decode_tokens(),
        phase: batch.phase(),
    });
    batch.serialize(serializer)
}
