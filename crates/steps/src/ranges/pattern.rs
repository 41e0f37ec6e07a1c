//! Matches the name of an NVTX range against the regular expression in the step rule.
//!
//! The match runs for each range that the program opens, so it uses a table of states that is built in advance. A match
//! with the table allocates nothing, takes no lock, and needs only one or two loads per byte. The regex crate's own
//! engine takes a lock and may allocate. It is used only for an expression with too many states for a table.

use regex::bytes::Regex;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, MatchKind, util::start};

/// The largest size in bytes of a table of states; a larger one is not built.
const LARGEST_TABLE: usize = 2 << 20;
/// The largest number of bytes of a name that are examined if the expression has no table of states.
const LONGEST: usize = 1024;

/// A compiled regular expression.
pub enum CompiledPattern {
    /// The table of states of the expression, and the state at the beginning of a text.
    Table {
        states: Box<dense::DFA<Vec<u32>>>,
        start: StateID,
    },
    /// The expression has too many states for a table, so the regex crate's own engine matches it.
    Slow(Regex),
}

impl CompiledPattern {
    /// Builds the table of states of the expression. If the table would be too large, returns [`Self::Slow`].
    pub fn new(regex: &Regex) -> Self {
        Self::table(regex.as_str()).unwrap_or_else(|| Self::Slow(regex.clone()))
    }

    fn table(regex: &str) -> Option<Self> {
        let states = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Unanchored)
                    .match_kind(MatchKind::All)
                    .accelerate(false)
                    .dfa_size_limit(Some(LARGEST_TABLE))
                    .determinize_size_limit(Some(LARGEST_TABLE)),
            )
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .thompson(thompson::Config::new().utf8(false))
            .build(regex)
            .ok()?;
        let start = start::Config::new().anchored(Anchored::No);
        let start = states.start_state(&start).ok()?;
        let states = Box::new(states);
        Some(Self::Table { states, start })
    }

    /// Returns true if the expression matches anywhere in the text `bytes`. Without a table of states, only the first
    /// `LONGEST` bytes are examined.
    #[inline]
    pub fn matches(&self, bytes: impl Iterator<Item = u8>) -> bool {
        match self {
            Self::Table { states, start } => {
                let mut state = *start;
                for byte in bytes {
                    state = states.next_state(state, byte);
                    if states.is_special_state(state) {
                        if states.is_match_state(state) {
                            return true;
                        }
                        if states.is_dead_state(state) {
                            return false;
                        }
                    }
                }
                states.is_match_state(states.next_eoi_state(state))
            }
            Self::Slow(regex) => {
                let mut name = [0; LONGEST];
                let length = name
                    .iter_mut()
                    .zip(bytes)
                    .map(|(at, byte)| *at = byte)
                    .count();
                regex.is_match(&name[..length])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_config::Step;

    fn pattern(rule: &str) -> CompiledPattern {
        match Step::parse(rule).unwrap() {
            Step::Nvtx { name, .. } => CompiledPattern::new(&name),
            step => panic!("{step}"),
        }
    }

    fn matches(pattern: &CompiledPattern, text: &str) -> bool {
        pattern.matches(text.bytes())
    }

    #[test]
    fn the_ranges_of_known_engines() {
        let trt = pattern(r"nvtx:^\[Executor\] _forward_step");
        assert!(matches(
            &trt,
            "[Executor] _forward_step 12: 3 ctx reqs, 4 gen reqs"
        ));
        assert!(!matches(&trt, "[Executor] _sample_async 12"));
        assert!(!matches(&trt, "Executor _forward_step"));
        let vllm = pattern("nvtx:^execute_context_");
        assert!(matches(&vllm, "execute_context_1(512)_generation_7(7)"));
        assert!(!matches(&vllm, "pre_execute_context_1"));
        let sglang = pattern(r"nvtx:step\[DECODE");
        assert!(matches(&sglang, "step[DECODE bs=8]"));
        assert!(!matches(&sglang, "step[EXTEND bs=8]"));
    }

    #[test]
    fn agrees_with_the_regex_crate() {
        let rules = [
            "a",
            "^a",
            "a$",
            "^a$",
            "^$",
            "a|bc",
            "(?i)Step",
            r"\bstep\b",
            r"step \d+$",
            "x*",
            ".{3}",
            r"[^a-z]",
            r"é",
            r"^.*é$",
        ];
        let texts = [
            "",
            "a",
            "ba",
            "ab",
            "abc",
            "bc",
            "STEP 1",
            "a step 12",
            "steps",
            "step 12 ",
            "x",
            "é",
            "aé",
        ];
        for rule in rules {
            let Step::Nvtx { name, .. } = Step::parse(&format!("nvtx:{rule}")).unwrap() else {
                panic!("{rule}")
            };
            let table = CompiledPattern::new(&name);
            assert!(matches!(table, CompiledPattern::Table { .. }), "{rule}");
            for text in texts {
                let wanted = name.is_match(text.as_bytes());
                assert_eq!(matches(&table, text), wanted, "{rule} in {text:?}");
                assert_eq!(matches(&CompiledPattern::Slow(name.clone()), text), wanted);
            }
        }
    }

    #[test]
    fn too_many_states_for_a_table() {
        let pattern = pattern("nvtx:a[^x]{40}b.{12}c");
        assert!(matches!(pattern, CompiledPattern::Slow(_)));
        assert!(matches(
            &pattern,
            &format!("a{}b{}c", "y".repeat(40), "z".repeat(12))
        ));
        assert!(!matches(&pattern, "abc"));
    }
}
