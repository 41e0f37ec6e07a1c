//! Which iterations count for a window, by what is in their batches.
//!
//! ```text
//! condition = all {"or" all}
//! all       = not {"and" not}
//! not       = "not" not | "(" condition ")" | comparison
//! comparison = NUMBER_NAME ("=" | "!=" | "<" | "<=" | ">" | ">=") number | "phase" ("=" | "!=") PHASE
//! ```
//!
//! What is not known of a batch makes a comparison unknown, and only an iteration for which the whole
//! condition is known to hold counts.

use std::fmt;

use crate::error::{Problem, quoted, shown};

/// Comparisons that a condition may have.
pub const PARTS: usize = 16;
/// Brackets and `not` within each other.
const DEPTH: usize = 32;

/// What a comparison can name, in the order of [`Facts`], and last the phase.
const NAMES: [&str; 5] = [
    "requests",
    "tokens",
    "prefill_tokens",
    "decode_tokens",
    "phase",
];
const PHASE: usize = 4;
const PHASES: [&str; 5] = ["prefill", "decode", "mixed", "idle", "draft"];
const DRAFT: u32 = 4;
/// A phase that is not a draft's.
const PHASE_OF_ANOTHER: u32 = 0;

const WANTED: &str = "comparisons of requests, tokens, prefill_tokens, decode_tokens (with numbers) and phase (with prefill, \
                      decode, mixed, idle, draft), such as phase=decode and requests>=64; = != < <= > >=, and, or, not, brackets";

/// What is known of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    pub requests: Option<u32>,
    pub tokens: Option<u32>,
    pub prefill_tokens: Option<u32>,
    /// Whether the step is a pass of a model that drafts.
    pub is_draft: Option<bool>,
}

impl Facts {
    fn decode_tokens(self) -> Option<u32> {
        self.tokens?.checked_sub(self.prefill_tokens?)
    }

    /// The place of its phase in [`PHASES`].
    fn phase(self) -> Option<u32> {
        Some(match (self.prefill_tokens?, self.decode_tokens()?) {
            (0, 0) => 3,
            (_, 0) => 0,
            (0, _) => 1,
            _ => 2,
        })
    }

    fn value(self, name: usize) -> Option<u32> {
        match name {
            PHASE if self.is_draft == Some(true) => Some(DRAFT),
            0 => self.requests,
            1 => self.tokens,
            2 => self.prefill_tokens,
            3 => self.decode_tokens(),
            _ => self.phase(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Is,
    IsNot,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// The longer ones first.
const RELATIONS: [(&str, Relation); 7] = [
    ("==", Relation::Is),
    ("!=", Relation::IsNot),
    ("<=", Relation::LessOrEqual),
    (">=", Relation::MoreOrEqual),
    ("=", Relation::Is),
    ("<", Relation::Less),
    (">", Relation::More),
];

/// A comparison with a number, or with the place of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    name: usize,
    relation: Relation,
    with: u32,
}

impl Part {
    fn holds(self, facts: Facts) -> Option<bool> {
        let value = match facts.is_draft {
            // Whatever else is not known of the batch.
            Some(is_draft) if (self.name, self.with) == (PHASE, DRAFT) => {
                if is_draft {
                    DRAFT
                } else {
                    PHASE_OF_ANOTHER
                }
            }
            _ => facts.value(self.name)?,
        };
        Some(match self.relation {
            Relation::Is => value == self.with,
            Relation::IsNot => value != self.with,
            Relation::Less => value < self.with,
            Relation::LessOrEqual => value <= self.with,
            Relation::More => value > self.with,
            Relation::MoreOrEqual => value >= self.with,
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::Is => "=",
            Relation::IsNot => "!=",
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
            Relation::More => ">",
            Relation::MoreOrEqual => ">=",
        };
        f.write_str(NAMES[self.name])?;
        f.write_str(relation)?;
        if self.name == PHASE {
            f.write_str(PHASES[self.with as usize])
        } else {
            write!(f, "{}", self.with)
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    /// By its place in [`Condition::parts`].
    Part(usize),
    Not(Box<Self>),
    And(Box<[Self; 2]>),
    Or(Box<[Self; 2]>),
}

/// A condition on what is in a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    parts: Vec<Part>,
    node: Node,
    /// As it was typed.
    text: String,
}

impl Condition {
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            parts: Vec::new(),
        };
        let node = parser.either()?;
        if !parser.rest().is_empty() {
            return Err(parser.problem("and, or, or the end should stand"));
        }
        Ok(Self {
            parts: parser.parts,
            node,
            text: shown(text.trim().as_ref()),
        })
    }

    /// Whether it holds; none if what is known does not say.
    #[must_use]
    pub fn holds(&self, facts: Facts) -> Option<bool> {
        self.value(&self.node, facts)
    }

    fn value(&self, node: &Node, facts: Facts) -> Option<bool> {
        match node {
            Node::Part(place) => self.parts[*place].holds(facts),
            Node::Not(node) => self.value(node, facts).map(|holds| !holds),
            Node::And(sides) => self.decided(sides, false, facts),
            Node::Or(sides) => self.decided(sides, true, facts),
        }
    }

    /// `by` if either side is, and unknown if one is unknown otherwise.
    fn decided(&self, sides: &[Node; 2], by: bool, facts: Facts) -> Option<bool> {
        let [one, other] = sides;
        match (self.value(one, facts), self.value(other, facts)) {
            (Some(one), _) if one == by => Some(by),
            (_, Some(other)) if other == by => Some(by),
            (Some(_), Some(_)) => Some(!by),
            _ => None,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How often a condition and each comparison in it held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub asked: u64,
    pub held: u64,
    /// Iterations of which too little was known to say.
    pub unknown: u64,
    parts: [u64; PARTS],
}

impl Held {
    /// Counts a batch; whether `condition` holds for it.
    pub fn count(&mut self, condition: &Condition, facts: Facts) -> bool {
        self.asked += 1;
        for (held, part) in self.parts.iter_mut().zip(&condition.parts) {
            *held += u64::from(part.holds(facts) == Some(true));
        }
        let holds = condition.holds(facts);
        self.unknown += u64::from(holds.is_none());
        self.held += u64::from(holds == Some(true));
        holds == Some(true)
    }

    /// How often each comparison of `condition` held: `requests>=64 held in 0 of 300 iterations, …`.
    pub fn show(&self, condition: &Condition, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (held, part)) in self.parts.iter().zip(&condition.parts).enumerate() {
            match place {
                0 => write!(f, "{part} held in {held} of {} iterations", self.asked)?,
                _ => write!(f, ", {part} in {held}")?,
            }
        }
        match self.unknown {
            0 => Ok(()),
            unknown => write!(f, "; in {unknown} the batch was not known"),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// In bytes.
    at: usize,
    depth: usize,
    parts: Vec<Part>,
}

impl<'a> Parser<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn problem(&self, what: impl fmt::Display) -> Problem {
        let at = self.text[..self.at].chars().count();
        Problem::new(format!("at character {at}: {what}"), WANTED)
    }

    fn has(&mut self, symbol: &str) -> bool {
        let has = self.rest().starts_with(symbol);
        if has {
            self.at += symbol.len();
        }
        has
    }

    /// The word that comes next; it is not passed.
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

    fn either(&mut self) -> Result<Node, Problem> {
        let mut node = self.both()?;
        while self.has_word("or") {
            node = Node::Or(Box::new([node, self.both()?]));
        }
        Ok(node)
    }

    fn both(&mut self) -> Result<Node, Problem> {
        let mut node = self.single()?;
        while self.has_word("and") {
            node = Node::And(Box::new([node, self.single()?]));
        }
        Ok(node)
    }

    fn single(&mut self) -> Result<Node, Problem> {
        if self.depth == DEPTH {
            return Err(self.problem("too many brackets within each other"));
        }
        self.depth += 1;
        let node = if self.has_word("not") {
            Node::Not(Box::new(self.single()?))
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

    fn comparison(&mut self) -> Result<Node, Problem> {
        let word = self.word();
        let Some(name) = NAMES.iter().position(|name| *name == word) else {
            return Err(match word {
                "" => self.problem("a comparison is missing"),
                _ => self.problem(format_args!("{} is not known", quoted(word))),
            });
        };
        self.at += word.len();
        let Some((symbol, relation)) = RELATIONS
            .into_iter()
            .find(|(symbol, _)| self.rest().starts_with(symbol))
        else {
            return Err(self.problem(format_args!("{word} is not compared")));
        };
        if name == PHASE && !matches!(relation, Relation::Is | Relation::IsNot) {
            return Err(self.problem("a phase has no order, = and != compare it"));
        }
        self.at += symbol.len();
        let word = self.word();
        let with = if name == PHASE {
            let place = PHASES.iter().position(|phase| *phase == word);
            place.map(|place| place as u32)
        } else {
            word.parse().ok()
        };
        let Some(with) = with else {
            let is_no = if name == PHASE { "phase" } else { "number" };
            return Err(self.problem(format_args!("{} is not a {is_no}", quoted(word))));
        };
        if self.parts.len() == PARTS {
            return Err(self.problem(format_args!("more than {PARTS} comparisons")));
        }
        self.at += word.len();
        self.parts.push(Part {
            name,
            relation,
            with,
        });
        Ok(Node::Part(self.parts.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(requests: u32, tokens: u32, prefill_tokens: u32) -> Facts {
        Facts {
            requests: Some(requests),
            tokens: Some(tokens),
            prefill_tokens: Some(prefill_tokens),
            is_draft: Some(false),
        }
    }

    #[test]
    fn a_draft_is_known_to_be_one_where_nothing_else_is() {
        let of = |is_draft| Facts {
            is_draft,
            ..Facts::default()
        };
        for (text, draft, another) in [
            ("phase=draft", Some(true), Some(false)),
            ("phase!=draft", Some(false), Some(true)),
            ("phase=decode", Some(false), None),
            ("phase!=decode", Some(true), None),
            ("tokens>0", None, None),
        ] {
            assert_eq!(holds(text, of(Some(true))), draft, "{text}");
            assert_eq!(holds(text, of(Some(false))), another, "{text}");
            assert_eq!(holds(text, of(None)), None, "{text}");
        }
        assert_eq!(holds("phase=draft", facts(4, 10, 7)), Some(false));
    }

    fn holds(text: &str, facts: Facts) -> Option<bool> {
        let condition = Condition::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        condition.holds(facts)
    }

    #[test]
    fn every_fact_is_compared_in_every_way() {
        let mixed = facts(4, 10, 7);
        for text in [
            "requests=4",
            "requests==4",
            "requests!=5",
            "tokens<11",
            "tokens<=10",
            "prefill_tokens>6",
            "decode_tokens >= 3",
            "phase=mixed",
            "phase != decode",
        ] {
            assert_eq!(holds(text, mixed), Some(true), "{text}");
            assert_eq!(holds(&format!("not {text}"), mixed), Some(false), "{text}");
        }
        for (phase, batch) in [
            ("idle", facts(0, 0, 0)),
            ("prefill", facts(1, 5, 5)),
            ("decode", facts(5, 5, 0)),
        ] {
            assert_eq!(holds(&format!("phase={phase}"), batch), Some(true));
        }
    }

    #[test]
    fn and_binds_before_or_and_brackets_before_both() {
        let batch = facts(1, 1, 0);
        assert_eq!(
            holds("requests=1 or requests=2 and tokens=9", batch),
            Some(true)
        );
        assert_eq!(
            holds("(requests=1 or requests=2) and tokens=9", batch),
            Some(false)
        );
        assert_eq!(holds("not requests=2 and tokens=9", batch), Some(false));
        assert_eq!(holds("not(requests=2 and tokens=9)", batch), Some(true));
    }

    #[test]
    fn what_is_not_known_decides_nothing() {
        let batch = Facts {
            tokens: Some(8),
            ..Facts::default()
        };
        assert_eq!(holds("requests=1", batch), None);
        assert_eq!(holds("not phase=idle", batch), None);
        assert_eq!(holds("requests=1 or tokens=8", batch), Some(true));
        assert_eq!(holds("tokens=9 and requests=1", batch), Some(false));
        assert_eq!(holds("requests=1 and tokens=8", batch), None);
    }

    #[test]
    fn says_how_often_each_part_held() {
        struct Shown<'a>(&'a Held, &'a Condition);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.show(self.1, f)
            }
        }
        let condition = Condition::parse(" requests >= 64 and phase=decode ").unwrap();
        assert_eq!(condition.to_string(), "requests >= 64 and phase=decode");
        let mut held = Held::default();
        for n in 0..300 {
            let prefill = if n < 20 { 5 } else { 0 };
            assert!(!held.count(&condition, facts(5, 5, prefill)));
        }
        let line = "requests>=64 held in 0 of 300 iterations, phase=decode in 280";
        assert_eq!(Shown(&held, &condition).to_string(), line);
        assert!(held.count(&condition, facts(64, 64, 0)));
        held.count(&condition, Facts::default());
        assert_eq!((held.held, held.unknown), (1, 1));
        let line = "requests>=64 held in 1 of 302 iterations, phase=decode in 281; in 1 the batch was not known";
        assert_eq!(Shown(&held, &condition).to_string(), line);
    }

    #[test]
    fn what_is_no_condition_is_refused_where_it_goes_wrong() {
        for (text, problem) in [
            ("", "at character 0: a comparison is missing"),
            ("request>1", "at character 0: \"request\" is not known"),
            ("requests", "at character 8: requests is not compared"),
            ("requests>x", "at character 9: \"x\" is not a number"),
            ("requests>-1", "at character 9: \"\" is not a number"),
            (
                "tokens=99999999999",
                "at character 7: \"99999999999\" is not a number",
            ),
            (
                "phase<decode",
                "at character 5: a phase has no order, = and != compare it",
            ),
            ("phase=dekode", "at character 6: \"dekode\" is not a phase"),
            ("(tokens=1", "at character 9: a bracket is not closed"),
            (
                "tokens=1 tokens=2",
                "at character 9: and, or, or the end should stand",
            ),
            ("tokens=1 and", "at character 12: a comparison is missing"),
            ("é=1", "at character 0: \"é\" is not known"),
        ] {
            let found = Condition::parse(text).unwrap_err();
            assert_eq!(found.problem, problem, "{text}");
            assert!(found.wanted.contains("prefill_tokens"));
        }
        let deep = format!("{}tokens=1", "not ".repeat(99));
        assert!(Condition::parse(&deep).is_err());
        let many = vec!["tokens=1"; PARTS + 1].join(" or ");
        assert!(Condition::parse(&many).is_err());
        assert!(Condition::parse(&many[12..]).is_ok());
    }
}
