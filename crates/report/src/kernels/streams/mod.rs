//! Two streams of a GPU with much work each: how long both ran at once and, if they take turns, what orders them.
//!
//! If a piece of work begins only after the other stream's work has ended, there are three possible explanations. They
//! depend on the CUDA call that enqueued the piece. If the call had returned before the other work ended, the GPU held
//! the piece back: because its stream waits for an event, or because one of the two streams is the legacy default
//! stream. If the call returned later, and the host had waited until the other work ended before it made the call, the
//! host held the piece back. In all other cases, for example if the host makes the call late without such a wait, the
//! order is not explained.

mod matching;
mod order;
mod tally;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

pub(crate) use tally::StreamTally;

/// Minimum share of a stream's work in all work of its GPU in the counted iterations, as a fraction. Streams with less
/// work are not examined. An iteration is counted if it has recorded kernels and the report's figures include it.
pub(crate) const MIN_STREAM_SHARE: f64 = 0.1;
/// Maximum time in which both streams run at once, as a fraction of the time of the stream with less work. Streams with
/// more overlap do not take turns.
pub(crate) const MAX_AT_ONCE: f64 = 0.05;
/// Minimum share of explained changes from one stream to the other, as a fraction. If fewer changes are explained, the
/// order of the two streams is not known. The most frequent explanation must also occur in at least this share of the
/// iterations in which both streams have work.
pub(crate) const MIN_EXPLAINED: f64 = 0.8;

/// The mechanism that orders the work of two streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamOrder {
    /// A stream waits for an event (`cuStreamWaitEvent`).
    Event,
    /// One of the streams is the legacy default stream. Its work waits for the work of all other blocking streams, and
    /// their work waits for its work.
    Legacy,
    /// The host waits for a stream's work before it launches on the other stream.
    Host,
}

/// A stream, and the time that it ran work in the iterations with recorded kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StreamTime {
    /// CUPTI's number for the stream. The legacy default stream has the number 7.
    pub stream: u16,
    /// The time in which the stream ran kernels, copies or memory sets.
    pub gpu_ns: u64,
}

/// Two streams of a GPU with much work each, in the iterations with recorded kernels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StreamPair {
    /// The number of the GPU in the process, counted from 0.
    pub device: u8,
    /// The two streams, the one with more work first.
    pub streams: [StreamTime; 2],
    /// The time in which both streams ran work at once.
    #[serde(rename = "at_once_ns")]
    pub at_once: u64,
    /// The time in which the stream with less work in an iteration ran alone, summed over iterations. Overlap of the
    /// streams can save at most this time.
    #[serde(rename = "at_most_ns")]
    pub at_most: u64,
    /// The number of iterations in which both streams have work.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The mechanism that orders the streams; `null` if they do not take turns, or if it is not known.
    pub order: Option<StreamOrder>,
    /// The number of the stream whose work waits for the other stream's work; `null` if `order` is `null`, or if each
    /// stream waits for the other.
    pub waits: Option<u16>,
    /// The CUDA function that waits. If `order` is `event`, it makes a stream wait for an event (`cuStreamWaitEvent`).
    /// If `order` is `host`, the host waits in it. `null` if `order` is `legacy` or `null`.
    pub call: Option<String>,
    /// The number of calls of the function `call` that ordered the streams; 0 if `call` is `null`.
    #[schemars(extend("unit" = "calls"))]
    pub calls: u64,
}

/// The result of the search for two streams whose overlap would save time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum StreamSearch {
    /// No two streams have enough work of their own, or the record does not contain the streams that calls use.
    #[default]
    Nothing,
    /// There are too many kernels, copies or calls to analyze.
    TooMuch,
    /// The two streams of a GPU whose overlap would save most.
    Pair(StreamPair),
}

impl StreamSearch {
    /// Returns the two streams, if any were found.
    #[must_use]
    pub const fn pair(&self) -> Option<&StreamPair> {
        match self {
            Self::Pair(pair) => Some(pair),
            Self::Nothing | Self::TooMuch => None,
        }
    }

    /// Serializes the pair, or `null` if there is none.
    pub(crate) fn serialize_pair<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.pair().serialize(to)
    }
}

impl StreamPair {
    /// Returns true if the two streams hardly ever run at once.
    pub(crate) fn takes_turns(&self) -> bool {
        self.at_once_share() <= MAX_AT_ONCE
    }

    /// Returns the share of the time of the stream with less work in which both run, as a fraction.
    pub(crate) fn at_once_share(&self) -> f64 {
        let less = self.streams.iter().map(|one| one.gpu_ns).min();
        self.at_once as f64 / less.unwrap_or(0).max(1) as f64
    }

    /// Returns the time in which at least one of the two streams ran, in nanoseconds.
    pub(crate) fn together(&self) -> u64 {
        let both = self.streams.iter().map(|one| one.gpu_ns).sum::<u64>();
        both.saturating_sub(self.at_once)
    }
}
