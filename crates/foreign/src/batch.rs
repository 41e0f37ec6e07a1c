//! The NVTX and profiler ranges that inference engines and profilers open for each step, and the descriptions of
//! batches that the names of these ranges contain.

use tllmprof_record::Batch;

/// A family of ranges: the names that one program gives to its steps. Each range of a family is one
/// step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Family {
    /// The ranges of the PyTorch profiler's schedule: `ProfilerStep#12`.
    Profiler,
    /// The ranges of vLLM's worker, and of some versions of SGLang: `execute_context_1(7)_generation_4(4)`.
    Execute,
    /// The ranges of SGLang's scheduler: `step[DECODE bs=32]`.
    Sglang,
}

impl Family {
    /// All families: sets of names that one program gives to its steps. If two families have equally many ranges in a
    /// trace, the family that comes first in this list is used.
    pub(crate) const ALL: [Self; 3] = [Self::Profiler, Self::Execute, Self::Sglang];

    /// Returns the family (the set of names that one program gives to its steps) that contains this name, or `None` if
    /// no family contains it.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let numbered = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        if name.strip_prefix("ProfilerStep#").is_some_and(numbered) {
            return Some(Self::Profiler);
        }
        if let Some(rest) = name.strip_prefix("execute_") {
            let known = ["context_", "new_"];
            let is_one = numbered(rest) || known.iter().any(|known| rest.starts_with(known));
            return is_one.then_some(Self::Execute);
        }
        (name.starts_with("step[") && name.ends_with(']')).then_some(Self::Sglang)
    }

    /// Returns the rule that counts the ranges of this family (the names that one program gives to its steps). The rule
    /// has the form in which the user would type it for `--step`.
    pub(crate) const fn rule(self) -> &'static str {
        match self {
            Self::Profiler => "nvtx:^ProfilerStep#",
            Self::Execute => "nvtx:^execute_",
            Self::Sglang => r"nvtx:^step\[",
        }
    }

    /// Returns a description of this family's ranges, in words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Profiler => "the PyTorch profiler's ranges ProfilerStep#N",
            Self::Execute => "the engine's ranges execute_…",
            Self::Sglang => "SGLang's ranges step[…]",
        }
    }
}

/// Returns true if `name` is a name that vLLM, SGLang or the PyTorch profiler gives to the range of a step.
#[must_use]
pub fn is_step_range(name: &str) -> bool {
    Family::from_name(name).is_some()
}

/// Returns the number of the step, if the range is a step of the PyTorch profiler (`ProfilerStep#12`).
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("ProfilerStep#")?;
    digits.parse().ok()
}

/// Returns the batch of a step, or `None` if the range's name does not describe a batch.
pub(crate) fn batch(name: &str) -> Option<Batch> {
    match Family::from_name(name)? {
        Family::Profiler => None,
        Family::Execute => execute(name.strip_prefix("execute_")?),
        Family::Sglang => sglang(name.strip_prefix("step[")?.strip_suffix(']')?),
    }
}

/// Returns the batch from a name such as `context_1(7)_generation_4(4)`: 1 request with 7 tokens in prefill, and 4
/// requests with 4 tokens in decode. A number and `_` may come before `context`. In the form `context_0(sq0sk0…)`, the
/// number of tokens follows `sq`. Returns `None` if the name has neither form.
fn execute(name: &str) -> Option<Batch> {
    let start = name.find("context_")?;
    let (context, generation) = name.get(start..)?.split_once(")_generation_")?;
    let (prompts, prompt_tokens) = pair(context.strip_prefix("context_")?)?;
    let (decodes, decode_tokens) = pair(generation.strip_suffix(')')?)?;
    Batch::new(
        prompts.checked_add(decodes)?,
        prompt_tokens.checked_add(decode_tokens)?,
        prompt_tokens,
    )
}

/// Returns the number of requests and of tokens from a text such as `4(16` or `4(sq16sk900…`.
fn pair(text: &str) -> Option<(i64, i64)> {
    let (requests, tokens) = text.split_once('(')?;
    let tokens = tokens.strip_prefix("sq").unwrap_or(tokens);
    let end = tokens.find(|c: char| !c.is_ascii_digit());
    let tokens = tokens.get(..end.unwrap_or(tokens.len()))?;
    Some((requests.parse().ok()?, tokens.parse().ok()?))
}

/// Returns the batch from a text such as `DECODE bs=32` or `EXTEND bs=4 toks=900`. If the text for a decode step has
/// no number of tokens, each request has one token. Returns `None` if the text does not describe a batch completely.
fn sglang(text: &str) -> Option<Batch> {
    let mut words = text.split_ascii_whitespace();
    let mode = words.next()?;
    let (mut requests, mut tokens) = (None, None);
    for word in words {
        let (key, value) = word.split_once('=')?;
        match key {
            "bs" => requests = value.parse::<i64>().ok(),
            "toks" | "tokens" | "num_tokens" => tokens = value.parse::<i64>().ok(),
            _ => (),
        }
    }
    let requests = requests?;
    match mode {
        "DECODE" => Batch::new(requests, tokens.unwrap_or(requests), 0),
        "EXTEND" => Batch::new(requests, tokens?, tokens?),
        "IDLE" => Batch::new(0, 0, 0),
        // The name of a mixed step (prefill and decode together) does not say how many of its tokens belong to
        // prompts, so the batch is not known.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> Option<(u16, u32, u32)> {
        batch(name).map(|batch| (batch.requests, batch.tokens, batch.prefill_tokens))
    }

    #[test]
    fn names_say_what_is_in_the_batch() {
        let decode =
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)";
        assert_eq!(facts(decode), Some((32, 32, 0)));
        assert_eq!(
            facts("execute_context_2(700)_generation_5(10)"),
            Some((7, 710, 700))
        );
        assert_eq!(facts("step[DECODE bs=32]"), Some((32, 32, 0)));
        assert_eq!(facts("step[EXTEND bs=2 toks=900]"), Some((2, 900, 900)));
        for unknown in [
            "execute_new_1_cached_3",
            "execute_context_1(x)_generation_2(2)",
            "execute_context_99999999999999999999(1)_generation_2(2)",
            "step[EXTEND bs=2]",
            "step[MIXED bs=2 toks=9]",
            "step[]",
            "ProfilerStep#3",
            "forward",
        ] {
            assert_eq!(facts(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn families_are_known_by_their_names() {
        assert_eq!(Family::from_name("ProfilerStep#12"), Some(Family::Profiler));
        assert_eq!(
            Family::from_name("execute_new_1_cached_3"),
            Some(Family::Execute)
        );
        assert_eq!(Family::from_name("execute_model"), None);
        assert_eq!(Family::from_name("ProfilerStep*"), None);
        assert_eq!(Family::from_name("step[DECODE bs=1]"), Some(Family::Sglang));
        assert_eq!(Family::from_name("step"), None);
        assert_eq!(number("ProfilerStep#12"), Some(12));
    }
}
