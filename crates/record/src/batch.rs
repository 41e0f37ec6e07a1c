//! The batch (requests and tokens) that an inference engine computed in an iteration.

use core::fmt;

/// The numbers of requests and tokens in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    pub requests: u16,
    /// The number of scheduled tokens, not counting those that a CUDA graph adds to pad the batch.
    pub tokens: u32,
    /// The number of tokens that belong to prompts (the rest are decoded tokens); at most `tokens`.
    pub prefill_tokens: u32,
    /// True if the step is a pass of the draft model of speculative decoding.
    pub is_draft: bool,
}

/// The kind of work in a batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    Prefill,
    Decode,
    Mixed,
    /// The batch has no tokens.
    Idle,
    /// The batch is a pass of the draft model (speculative decoding), whatever its tokens are.
    Draft,
}

impl Phase {
    /// All phases, in a fixed order.
    pub const ALL: [Self; 5] = [
        Self::Prefill,
        Self::Decode,
        Self::Mixed,
        Self::Idle,
        Self::Draft,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Idle => "idle",
            Self::Draft => "draft",
        }
    }
}

/// Formats the batch as the name of its NVTX range: `batch mixed requests=3 tokens=9 prefill=7 decode=2`.
impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, decode) = (self.phase().name(), self.decode_tokens());
        let Self {
            requests,
            tokens,
            prefill_tokens: prefill,
            is_draft: _,
        } = self;
        write!(
            f,
            "batch {phase} requests={requests} tokens={tokens} prefill={prefill} decode={decode}"
        )
    }
}

/// The number of bits that each of the two token counts takes in an encoded event.
const TOKEN_BITS: u32 = 24;
const MAX_TOKENS: u32 = (1 << TOKEN_BITS) - 1;

impl Batch {
    /// The batch of a draft model's pass. Its requests and tokens are not known.
    pub const DRAFT: Self = Self {
        requests: 0,
        tokens: 0,
        prefill_tokens: 0,
        is_draft: true,
    };

    /// Returns a batch with these numbers. Returns `None` if a number is negative, if there are more prompt tokens
    /// than tokens, or if a number does not fit into an event.
    #[must_use]
    pub fn new(requests: i64, tokens: i64, prefill_tokens: i64) -> Option<Self> {
        let batch = Self {
            requests: u16::try_from(requests).ok()?,
            tokens: u32::try_from(tokens).ok()?,
            prefill_tokens: u32::try_from(prefill_tokens).ok()?,
            is_draft: false,
        };
        let fits = batch.prefill_tokens <= batch.tokens && batch.tokens <= MAX_TOKENS;
        fits.then_some(batch)
    }

    /// Parses the name of a batch's NVTX range. Returns `None` if the name has another form.
    #[must_use]
    pub fn of_range(name: &str) -> Option<Self> {
        if name == Self::DRAFT.to_string() {
            return Some(Self::DRAFT);
        }
        let mut words = name.strip_prefix("batch ")?.split(' ').skip(1);
        let mut number = |name| {
            words
                .next()?
                .strip_prefix(name)?
                .strip_prefix('=')?
                .parse()
                .ok()
        };
        let batch = Self::new(number("requests")?, number("tokens")?, number("prefill")?)?;
        (batch.to_string() == name).then_some(batch)
    }

    #[must_use]
    pub const fn decode_tokens(self) -> u32 {
        self.tokens - self.prefill_tokens
    }

    #[must_use]
    pub const fn phase(self) -> Phase {
        match (self.prefill_tokens, self.decode_tokens()) {
            _ if self.is_draft => Phase::Draft,
            (0, 0) => Phase::Idle,
            (_, 0) => Phase::Prefill,
            (0, _) => Phase::Decode,
            _ => Phase::Mixed,
        }
    }

    /// Encodes the batch as the value of its event. `iteration` is the iteration's number modulo 2^16. A
    /// draft batch is stored as a batch with more prompt tokens than tokens, which no other batch has.
    pub(crate) const fn value(self, iteration: u16) -> u64 {
        let prefill_tokens = if self.is_draft {
            MAX_TOKENS
        } else {
            self.prefill_tokens
        };
        (iteration as u64) << (2 * TOKEN_BITS)
            | (self.tokens as u64) << TOKEN_BITS
            | prefill_tokens as u64
    }

    pub(crate) const fn of_event(requests: u16, value: u64) -> Option<(u16, Self)> {
        let number = (value >> (2 * TOKEN_BITS)) as u16;
        let batch = Self {
            requests,
            tokens: (value >> TOKEN_BITS) as u32 & MAX_TOKENS,
            prefill_tokens: value as u32 & MAX_TOKENS,
            is_draft: false,
        };
        match (batch.tokens, batch.prefill_tokens) {
            (0, MAX_TOKENS) => Some((number, Self::DRAFT)),
            (tokens, prefill) if prefill > tokens => None,
            _ => Some((number, batch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_no_batch() {
        assert!(Batch::new(0, 0, 0).is_some());
        assert!(Batch::new(65_535, (1 << 24) - 1, (1 << 24) - 1).is_some());
        for (requests, tokens, prefill) in [
            (-1, 0, 0),
            (65_536, 1, 0),
            (1, -1, 0),
            (1, 1 << 24, 0),
            (1, 1, -1),
            (1, 1, 2),
            (1, i64::MAX, 0),
        ] {
            let batch = Batch::new(requests, tokens, prefill);
            assert_eq!(batch, None, "{requests} {tokens} {prefill}");
        }
    }

    #[test]
    fn a_draft_is_in_a_record_and_in_a_range_what_it_was() {
        assert_eq!(Batch::DRAFT.phase(), Phase::Draft);
        let text = "batch draft requests=0 tokens=0 prefill=0 decode=0";
        assert_eq!(Batch::DRAFT.to_string(), text);
        assert_eq!(Batch::of_range(text), Some(Batch::DRAFT));
        let idle = Batch::new(0, 0, 0).unwrap();
        let full = Batch::new(7, i64::from(MAX_TOKENS), i64::from(MAX_TOKENS)).unwrap();
        for batch in [Batch::DRAFT, idle, full] {
            let event = Batch::of_event(batch.requests, batch.value(9));
            assert_eq!(event, Some((9, batch)));
        }
        assert_eq!(Batch::of_event(0, 1), None, "a token of prompts of none");
    }

    #[test]
    fn the_phase_follows_from_the_tokens() {
        let phase = |tokens, prefill| Batch::new(3, tokens, prefill).unwrap().phase();
        assert_eq!(phase(0, 0), Phase::Idle);
        assert_eq!(phase(7, 7), Phase::Prefill);
        assert_eq!(phase(3, 0), Phase::Decode);
        assert_eq!(phase(9, 7), Phase::Mixed);
        assert_eq!(Batch::new(3, 9, 7).unwrap().decode_tokens(), 2);
        let text = "batch mixed requests=3 tokens=9 prefill=7 decode=2";
        let batch = Batch::new(3, 9, 7).unwrap();
        assert_eq!(batch.to_string(), text);
        assert_eq!(Batch::of_range(text), Some(batch));
        for other in [
            "",
            "batch 7",
            "batch decode requests=3 tokens=9 prefill=7 decode=2",
            "batch mixed requests=3 tokens=9 prefill=7 decode=2 more",
            "batch mixed requests=3 tokens=9 prefill=17",
        ] {
            assert_eq!(Batch::of_range(other), None, "{other}");
        }
        let names = Phase::ALL.map(Phase::name);
        assert_eq!(names, ["prefill", "decode", "mixed", "idle", "draft"]);
    }
}
