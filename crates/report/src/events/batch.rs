//! Contents of a batch, as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Batch, Phase};

/// The contents of a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Batch")]
pub struct InBatch {
    /// The number of requests in it.
    #[schemars(extend("unit" = "requests"))]
    requests: u16,
    /// The number of tokens that were scheduled, without padding.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u32,
    /// The number of these tokens that belong to prompts.
    #[schemars(extend("unit" = "tokens"))]
    prefill_tokens: u32,
    /// The number of the other tokens.
    #[schemars(extend("unit" = "tokens"))]
    decode_tokens: u32,
    /// The phase of the tokens in it.
    #[serde(serialize_with = "write_phase")]
    #[schemars(with = "PhaseName")]
    phase: Phase,
}

/// The phase of the tokens in a batch.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Phase")]
#[serde(remote = "Phase", rename_all = "lowercase")]
pub enum PhaseName {
    /// Only tokens of prompts.
    Prefill,
    /// Only tokens after prompts.
    Decode,
    /// Both.
    Mixed,
    /// No tokens.
    Idle,
    /// A pass of a model that drafts for speculative decoding. Its requests and tokens are not known, and are 0 here.
    Draft,
}

/// Writes a phase.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_phase<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    PhaseName::serialize(phase, serializer)
}

/// Writes a batch, if it is known.
///
/// # Errors
/// Returns an error if writing fails.
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
