//! Formulas that compute the size of a batch from the arguments of an engine's step function.
//!
//! This file contains only data: formulas ([`Formulas`]) over the arguments of the function in the engine's row
//! (`engines.rs`). A test in `tests/batch/sources.rs` of the repository checks that the engines' sources contain the
//! names in the formulas.

use tllmprof_config::{Formulas, NoFormula};

/// Formulas for the size of batches in some versions of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    pub requests: &'static str,
    /// Formula for the number of scheduled tokens. Tokens that only pad the batch are not included.
    pub tokens: &'static str,
    /// Formula for the number of tokens that belong to prompts.
    pub prefill_tokens: &'static str,
    /// The package versions whose sources the formulas were derived from.
    pub versions: &'static str,
}

impl Batch {
    /// Parses the formulas for requests, tokens and prefill tokens.
    ///
    /// # Errors
    /// Returns an error for a text that is not a formula.
    pub fn formulas(&self) -> Result<Formulas<3>, NoFormula> {
        Formulas::parse([self.requests, self.tokens, self.prefill_tokens])
    }
}

const VLLM_REQUESTS: &str = "len(scheduler_output.num_scheduled_tokens)";
const VLLM_TOKENS: &str = "scheduler_output.total_num_scheduled_tokens";

/// Formulas for vLLM. A request's tokens count as prompt tokens until the request has produced a token. vLLM
/// distinguishes prefill and decode in the same way (`CachedRequestData.is_context_phase`).
const VLLM: Batch = Batch {
    requests: VLLM_REQUESTS,
    tokens: VLLM_TOKENS,
    prefill_tokens: "sum(scheduler_output.num_scheduled_tokens[r.req_id] \
                     for r in scheduler_output.scheduled_new_reqs) \
                     + sum(scheduler_output.num_scheduled_tokens[id] for id, given \
                     in zip(scheduler_output.scheduled_cached_reqs.req_ids, \
                     scheduler_output.scheduled_cached_reqs.num_output_tokens) if given == 0)",
    versions: "vllm 0.14.0, 0.18.0, 0.22.0, 0.27.0, 0.33.0",
};

pub(crate) const VLLM_V2: &[Batch] = &[VLLM];

pub(crate) const VLLM_V1: &[Batch] = &[
    VLLM,
    Batch {
        prefill_tokens: "sum(scheduler_output.num_scheduled_tokens[r.req_id] \
                         for r in scheduler_output.scheduled_new_reqs) \
                         + sum(scheduler_output.num_scheduled_tokens[id] for id, done \
                         in zip(scheduler_output.scheduled_cached_reqs.req_ids, \
                         scheduler_output.scheduled_cached_reqs.num_computed_tokens) \
                         if done < self.requests[id].num_prompt_tokens)",
        versions: "vllm 0.10.0, 0.11.0",
        ..VLLM
    },
    Batch {
        prefill_tokens: "sum(scheduler_output.num_scheduled_tokens[r.req_id] \
                         for r in scheduler_output.scheduled_new_reqs) \
                         + sum(scheduler_output.num_scheduled_tokens[r.req_id] \
                         for r in scheduler_output.scheduled_cached_reqs \
                         if r.num_computed_tokens < self.requests[r.req_id].num_prompt_tokens)",
        versions: "vllm 0.8.5",
        ..VLLM
    },
];

/// Formulas for SGLang. `extend_num_tokens` keeps its old value while a batch decodes, so the formulas depend on
/// `forward_mode`. In a prefill mode, `extend_num_tokens` also counts one token for each request in `decoding_reqs`.
/// These tokens belong to no prompt, so the formula for prefill tokens subtracts them. `decoding_reqs` has requests in
/// mixed batches, and in batches of decodes that run as a prefill because another rank has a prefill.
pub(crate) const SGLANG: &[Batch] = &[Batch {
    requests: "len(batch.reqs)",
    tokens: "batch.extend_num_tokens if batch.forward_mode._name_ \
             in ('EXTEND', 'MIXED', 'SPLIT_PREFILL', 'DLLM_EXTEND') \
             else len(batch.reqs) if batch.forward_mode._name_ == 'DECODE' else 0",
    prefill_tokens: "batch.extend_num_tokens - len(batch.decoding_reqs) \
                     if batch.forward_mode._name_ \
                     in ('EXTEND', 'MIXED', 'SPLIT_PREFILL', 'DLLM_EXTEND') else 0",
    versions: "sglang 0.4.6, 0.5.3, 0.5.10, 0.5.16, 0.5.23",
}];

/// Formulas for LMDeploy. With data parallelism, LMDeploy runs dummy batches with one token that belongs to no request.
/// Version 0.12 and later mark dummy batches with `is_dummy`.
pub(crate) const LMDEPLOY: &[Batch] = &[
    Batch {
        requests: "0 if inputs.is_dummy else inputs.seq_length.shape[0]",
        tokens: "0 if inputs.is_dummy else inputs.input_ids.shape[1]",
        prefill_tokens: "0 if inputs.is_dummy else 0 if inputs.is_decoding \
                         else inputs.input_ids.shape[1]",
        versions: "lmdeploy 0.12.0, 0.15.0, 0.18.0",
    },
    Batch {
        requests: "inputs.seq_length.shape[0]",
        tokens: "inputs.input_ids.shape[1]",
        prefill_tokens: "0 if inputs.is_decoding else inputs.input_ids.shape[1]",
        versions: "lmdeploy 0.7.3, 0.10.2",
    },
];

/// Formulas for transformers. `position_offset`, the position of a request, already includes the request's tokens in
/// this batch. So these tokens belong to the prompt if the position is at most the length of the prompt.
pub(crate) const TRANSFORMERS: &[Batch] = &[
    Batch {
        requests: "len(self.inputs_and_outputs.requests_in_batch)",
        tokens: "self.inputs_and_outputs.total_seqlen_q",
        prefill_tokens: "sum(r.query_length for r in self.inputs_and_outputs.requests_in_batch \
                         if r.state.position_offset <= len(r.state.initial_tokens))",
        versions: "transformers 5.10.4, 5.23.0, synchronous",
    },
    Batch {
        requests: "len(self.inputs_and_outputs.io_pairs[self.inputs_and_outputs.current_pair]\
                   .host_io.requests_in_batch)",
        tokens: "self.inputs_and_outputs.io_pairs[self.inputs_and_outputs.current_pair]\
                 .host_io.total_seqlen_q",
        prefill_tokens: "sum(r.query_length for r in self.inputs_and_outputs\
                         .io_pairs[self.inputs_and_outputs.current_pair].host_io.requests_in_batch \
                         if r.state.position_offset <= len(r.state.initial_tokens))",
        versions: "transformers 5.10.4, 5.23.0, asynchronous",
    },
    Batch {
        requests: "len(self.requests_in_batch)",
        tokens: "self.actual_query_length",
        prefill_tokens: "sum(len(r.tokens_to_process) for r in self.requests_in_batch \
                         if r.position_offset <= len(r.initial_tokens))",
        versions: "transformers 5.0.0",
    },
];
