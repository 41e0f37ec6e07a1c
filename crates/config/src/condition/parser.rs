//! Parses conditions on iterations. `condition.rs` describes the grammar.

use std::fmt;

use super::{ConditionNode, ConditionPart, FIRST_TIME, NAMES, PARTS, PHASE, PHASES, With};
use crate::comparison::ComparisonOperator;
use crate::error::{Problem, quoted};
use crate::time;

/// Maximum nesting depth in a condition. Each bracket, each `not` and the innermost comparison count as one level.
const DEPTH: usize = 32;

/// The names that a condition may use: either only names of sizes and properties of the batch, or also names of times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Vocabulary {
    Batch,
    /// Names of sizes and properties of the batch, and of times.
    All,
}

impl Vocabulary {
    const fn list(self) -> &'static [&'static str] {
        match self {
            Self::Batch => NAMES.split_at(FIRST_TIME).0,
            Self::All => &NAMES,
        }
    }

    const fn wanted(self) -> &'static str {
        match self {
            Self::Batch => {
                "comparisons of requests, tokens, prefill_tokens, decode_tokens (with numbers) and phase (with prefill, \
                 decode, mixed, idle, draft), such as phase=decode and requests>=64; = != < <= > >=, and, or, not, brackets"
            }
            Self::All => {
                "comparisons of iteration, gc, gil, wait (with times such as 5ms or 2*p50), requests, tokens, \
                 prefill_tokens, decode_tokens (with numbers) and phase (with prefill, decode, mixed, idle, draft), such as \
                 iteration > 2*p50 or gc > 10ms, or stuck > 30s; = != < <= > >=, and, or, not, brackets"
            }
        }
    }
}

pub(crate) struct Parser<'a> {
    text: &'a str,
    names: Vocabulary,
    /// Current position of the parser in the text, in bytes.
    at: usize,
    depth: usize,
    parts: Vec<ConditionPart>,
}

impl<'a> Parser<'a> {
    pub(super) const fn new(text: &'a str, names: Vocabulary) -> Self {
        Self {
            text,
            names,
            at: 0,
            depth: 0,
            parts: Vec::new(),
        }
    }

    /// Parses the whole text. Returns the comparisons, and the tree that combines them. The tree refers to comparisons
    /// by index.
    pub(crate) fn parse(mut self) -> Result<(Vec<ConditionPart>, ConditionNode), Problem> {
        let node = self.either()?;
        if !self.rest().is_empty() {
            return Err(self.problem("and, or, or the end should stand"));
        }
        Ok((self.parts, node))
    }

    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn problem(&self, what: impl fmt::Display) -> Problem {
        let at = self.text[..self.at].chars().count();
        Problem::new(format!("at character {at}: {what}"), self.names.wanted())
    }

    fn has(&mut self, symbol: &str) -> bool {
        let has = self.rest().starts_with(symbol);
        if has {
            self.at += symbol.len();
        }
        has
    }

    /// Returns the next word in the text of the condition, without consuming the word.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
    }

    fn has_word(&mut self, word: &str) -> bool {
        let has = self.word() == word;
        if has {
            self.at += word.len();
        }
        has
    }

    fn either(&mut self) -> Result<ConditionNode, Problem> {
        let mut node = self.both()?;
        while self.has_word("or") {
            node = ConditionNode::Or(Box::new([node, self.both()?]));
        }
        Ok(node)
    }

    fn both(&mut self) -> Result<ConditionNode, Problem> {
        let mut node = self.single()?;
        while self.has_word("and") {
            node = ConditionNode::And(Box::new([node, self.single()?]));
        }
        Ok(node)
    }

    fn single(&mut self) -> Result<ConditionNode, Problem> {
        if self.depth == DEPTH {
            return Err(self.problem("too many brackets within each other"));
        }
        self.depth += 1;
        let node = if self.has_word("not") {
            ConditionNode::Not(Box::new(self.single()?))
        } else if self.has("(") {
            let node = self.either()?;
            if !self.has(")") {
                return Err(self.problem("a bracket is not closed"));
            }
            node
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn comparison(&mut self) -> Result<ConditionNode, Problem> {
        let word = self.word();
        let mut names = self.names.list().iter();
        let Some(name) = names.position(|name| *name == word) else {
            return Err(match word {
                "gpu" if self.names == Vocabulary::All => {
                    self.problem("gpu is measured inside windows only, and does not open them")
                }
                "" => self.problem("a comparison is missing"),
                _ => self.problem(format_args!("{} is not known", quoted(word))),
            });
        };
        self.at += word.len();
        let rest = self.rest();
        let is = || {
            rest.starts_with('=')
                .then_some(("=", ComparisonOperator::Is))
        };
        let Some((sign, comparison)) = ComparisonOperator::at_start(rest).or_else(is) else {
            return Err(self.problem(format_args!("{word} is not compared")));
        };
        if name == PHASE
            && !matches!(
                comparison,
                ComparisonOperator::Is | ComparisonOperator::IsNot
            )
        {
            return Err(self.problem("a phase has no order, = and != compare it"));
        }
        if name >= FIRST_TIME
            && matches!(
                comparison,
                ComparisonOperator::Is | ComparisonOperator::IsNot
            )
        {
            return Err(self.problem("no time is exactly another, < <= > >= compare it"));
        }
        self.at += sign.len();
        let (word, with) = if name >= FIRST_TIME {
            self.time()?
        } else {
            self.number(name)?
        };
        if self.parts.len() == PARTS {
            return Err(self.problem(format_args!("more than {PARTS} comparisons")));
        }
        self.at += word.len();
        self.parts.push(ConditionPart {
            name,
            comparison,
            with,
        });
        Ok(ConditionNode::Part(self.parts.len() - 1))
    }

    /// Returns the number or the phase with which `name` is compared, and the text of that value. Does not consume the
    /// text.
    fn number(&mut self, name: usize) -> Result<(&'a str, With), Problem> {
        let word = self.word();
        let (with, kind) = if name == PHASE {
            let place = PHASES.iter().position(|phase| *phase == word);
            (place.map(|place| place as u32), "phase")
        } else {
            (word.parse().ok(), "number")
        };
        match with {
            Some(with) => Ok((word, With::Number(with))),
            None => Err(self.problem(format_args!("{} is not a {kind}", quoted(word)))),
        }
    }

    /// Returns the time at the current position, and its text. Does not consume the text.
    fn time(&mut self) -> Result<(&'a str, With), Problem> {
        let rest = self.rest();
        let is_part = |c: char| c.is_alphanumeric() || c == '.';
        let length = |text: &str| text.find(|c| !is_part(c)).unwrap_or(text.len());
        let first = &rest[..length(rest)];
        if first == "p50" {
            return Ok((first, With::Median(1000)));
        }
        if let Some(behind) = rest[first.len()..].trim_start().strip_prefix('*') {
            let behind = behind.trim_start();
            let median = &behind[..length(behind)];
            let whole = &rest[..rest.len() - behind.len() + median.len()];
            return match time::thousandths(first).filter(|_| median == "p50") {
                Some(thousandths) => Ok((whole, With::Median(thousandths))),
                None => {
                    Err(self.problem(format_args!("{} is not a multiple of p50", quoted(whole))))
                }
            };
        }
        match time::parse(first) {
            Some(time) => Ok((
                first,
                With::Nanoseconds(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            )),
            None => Err(self.problem(format_args!(
                "{} is no time: a number and ns, us, ms or s, or a multiple of p50",
                quoted(first)
            ))),
        }
    }
}
