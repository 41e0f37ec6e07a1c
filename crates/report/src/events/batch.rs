//! The contents of a batch, in the form in which they are written as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Batch, Phase};

/// The batch of requests that one iteration worked on.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Batch")]
pub(crate) struct InBatch {
    /// The number of requests in the batch.
    #[schemars(extend("unit" = "requests"))]
    requests: u16,
    /// The number of tokens that the engine scheduled for the batch, without padding.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u32,
    /// The number of prompt tokens (prefill) among `tokens`.
    #[schemars(extend("unit" = "tokens"))]
    prefill_tokens: u32,
    /// The number of tokens among `tokens` that follow prompts (decode).
    #[schemars(extend("unit" = "tokens"))]
    decode_tokens: u32,
    /// The phase of the batch: whether its tokens are prompt tokens, tokens that follow prompts, or both.
    #[serde(serialize_with = "write_phase")]
    #[schemars(with = "PhaseName")]
    phase: Phase,
}

/// The phase of a batch: whether its tokens are prompt tokens, tokens that follow prompts, or both.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Phase")]
#[serde(remote = "Phase", rename_all = "lowercase")]
pub(crate) enum PhaseName {
    /// The batch has only prompt tokens.
    Prefill,
    /// The batch has only tokens that follow prompts.
    Decode,
    /// The batch has both prompt tokens and tokens that follow prompts.
    Mixed,
    /// The batch has no tokens.
    Idle,
    /// The iteration is a pass of a draft model for speculative decoding. The contents of its batch are not known, so
    /// the numbers of requests and tokens are 0.
    Draft,
}

/// Writes a phase of a batch (prefill, decode, …) as JSON.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_phase<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    PhaseName::serialize(phase, serializer)
}

/// Writes the contents of a batch as JSON; `null` if they are unknown.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_batch<S: Serializer>(
    batch: &Option<Batch>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let batch = batch.map(|batch| InBatch {
        requests: batch.requests,
        tokens: batch.tokens,
        prefill_tokens: batch.prefill_tokens,
        decode_tokens: batch.decode_tokens(),
        phase: batch.phase(),
    });
    batch.serialize(serializer)
}
