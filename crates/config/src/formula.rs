//! Formulas that compute the size of a batch from a function's arguments. They are a subset of Python expressions.
//!
//! ```text
//! formula = test ["if" test "else" formula]
//! test    = value [("==" | "!=" | "<" | "<=" | ">" | ">=") value | "in" "(" 'text' {"," 'text'} ")"]
//! value   = product {("+" | "-") product}
//! product = part {"*" part}
//! part    = number | 'text' | "(" formula ")" | "len" "(" formula ")"
//!         | "sum" "(" formula "for" NAME {"," NAME} "in" lists ["if" test] ")"
//!         | NAME {"." NAME | "[" formula "]"}
//! lists   = part | "zip" "(" part {"," part} ")"
//! ```
//!
//! A name refers to a variable of the enclosing `sum`, or else to an argument of the function. A formula is only data
//! ([`Node`]) and never becomes Python code. The code that evaluates it decides which objects may be read.

use std::fmt;

use crate::comparison::ComparisonOperator;

/// Maximum number of different arguments of the function that a set of formulas can use.
pub const ARGUMENTS: usize = 4;
/// Maximum number of variables in a sum and in the sums around it, counted together.
pub const VARIABLES: usize = 4;
/// Maximum depth of formulas inside other formulas.
const DEPTH: usize = 32;
/// Maximum number of operators (`+`, `-`, `*`), attributes (`.name`), items (`[index]`) and commas between texts in a
/// formula. Each of them except a comma can make the formula's tree deeper by one level, so without this limit the tree
/// could become too deep.
const LINKS: usize = 64;

/// A node of a formula's tree. A `usize` for an attribute or a text is an index of [`Formulas::names`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    Number(i64),
    Text(usize),
    /// An argument of the function. The value is its index in [`Formulas::arguments`].
    Argument(usize),
    /// A variable of a sum. The value is the number of the slot that stores the variable.
    Variable(usize),
    Attribute(Box<Self>, usize),
    /// An item of an object: `object[index]`. The two nodes are the object and the index.
    Item(Box<[Self; 2]>),
    Length(Box<Self>),
    Sum(Box<SumExpression>),
    /// A conditional expression `value if test else other`. The three nodes are in this order.
    If(Box<[Self; 3]>),
    /// A comparison of two values. The result is 1 if the comparison holds, otherwise 0.
    Compares(ComparisonOperator, Box<[Self; 2]>),
    /// A test if a value equals one of several texts, which are given as indices of [`Formulas::names`]. The result is
    /// 1 if the value equals one of them, otherwise 0.
    OneOf(Box<Self>, Vec<usize>),
    Adds(Box<[Self; 2]>),
    Subtracts(Box<[Self; 2]>),
    Multiplies(Box<[Self; 2]>),
}

/// A sum over lists: `sum(each for variables in zip(lists) if test)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SumExpression {
    pub each: Node,
    /// Slot of the variable for the first list. The variables for the other lists have the next slots.
    pub first: usize,
    pub lists: Vec<Node>,
    pub test: Option<Node>,
}

/// Formulas that are evaluated together and share their tables of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Formulas<const COUNT: usize> {
    pub nodes: [Node; COUNT],
    /// Names of attributes, and texts, that the formulas use. Nodes refer to them by index.
    pub names: Vec<String>,
    /// Names of the function's arguments that the formulas use. Nodes refer to them by index.
    pub arguments: Vec<String>,
}

/// The error for a text that is not a formula.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoFormula {
    /// Position of the error in the text, in characters; the first character has position 0.
    pub at: usize,
    pub wanted: &'static str,
}

impl fmt::Display for NoFormula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: wanted {}", self.at, self.wanted)
    }
}

impl<const COUNT: usize> Formulas<COUNT> {
    /// Parses formulas that are evaluated together. They share their tables of names.
    ///
    /// # Errors
    /// Returns an error for the first text that is not a formula.
    pub fn parse(texts: [&str; COUNT]) -> Result<Self, NoFormula> {
        let mut formulas = Self {
            nodes: [const { Node::Number(0) }; COUNT],
            names: Vec::new(),
            arguments: Vec::new(),
        };
        for (node, text) in formulas.nodes.iter_mut().zip(texts) {
            let mut parser = Parser {
                text,
                at: 0,
                depth: 0,
                links: 0,
                variables: Vec::new(),
                names: &mut formulas.names,
                arguments: &mut formulas.arguments,
            };
            *node = parser.formula()?;
            if !parser.rest().is_empty() {
                return Err(parser.wanted("the end"));
            }
        }
        Ok(formulas)
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Current position of the parser in the text, in bytes.
    at: usize,
    depth: usize,
    links: usize,
    /// Names of the variables of the enclosing sums. The index of a name is the variable's slot.
    variables: Vec<&'a str>,
    names: &'a mut Vec<String>,
    arguments: &'a mut Vec<String>,
}

type Parsed<T> = Result<T, NoFormula>;

impl<'a> Parser<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn wanted(&self, wanted: &'static str) -> NoFormula {
        let at = self.text[..self.at].chars().count();
        NoFormula { at, wanted }
    }

    fn has(&mut self, symbol: &str) -> bool {
        let has = self.rest().starts_with(symbol);
        if has {
            self.at += symbol.len();
        }
        has
    }

    /// Returns true if `symbol` comes next, and consumes it, like [`Parser::has`]. Also counts it towards the limit
    /// [`LINKS`]. Used for symbols, such as `+` or `.`, that make a formula's tree larger.
    fn links(&mut self, symbol: &str) -> Parsed<bool> {
        let has = self.has(symbol);
        self.links += usize::from(has);
        if self.links > LINKS {
            return Err(self.wanted("a shorter formula"));
        }
        Ok(has)
    }

    fn wants(&mut self, symbol: &'static str) -> Parsed<()> {
        if self.has(symbol) {
            Ok(())
        } else {
            Err(self.wanted(symbol))
        }
    }

    /// Returns the next word without consuming it. The result is empty if something other than a word comes next.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            return "";
        }
        &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
    }

    fn has_word(&mut self, word: &str) -> bool {
        let has = self.word() == word;
        if has {
            self.at += word.len();
        }
        has
    }

    fn wants_word(&mut self, word: &'static str) -> Parsed<()> {
        if self.has_word(word) {
            Ok(())
        } else {
            Err(self.wanted(word))
        }
    }

    fn name(&mut self) -> Parsed<&'a str> {
        const WORDS: [&str; 5] = ["if", "else", "for", "in", "zip"];
        let name = self.word();
        if name.is_empty() || WORDS.contains(&name) {
            return Err(self.wanted("a name"));
        }
        self.at += name.len();
        Ok(name)
    }

    /// Enters a nested formula by incrementing `depth`. The caller must decrement `depth` when it leaves the formula.
    fn deeper(&mut self) -> Parsed<()> {
        if self.depth == DEPTH {
            return Err(self.wanted("fewer formulas within each other"));
        }
        self.depth += 1;
        Ok(())
    }

    fn formula(&mut self) -> Parsed<Node> {
        self.deeper()?;
        let mut node = self.test()?;
        if self.has_word("if") {
            let test = self.test()?;
            self.wants_word("else")?;
            node = Node::If(Box::new([node, test, self.formula()?]));
        }
        self.depth -= 1;
        Ok(node)
    }

    fn test(&mut self) -> Parsed<Node> {
        let node = self.value()?;
        if let Some((sign, comparison)) = ComparisonOperator::at_start(self.rest()) {
            self.at += sign.len();
            let other = self.value()?;
            return Ok(Node::Compares(comparison, Box::new([node, other])));
        }
        if !self.has_word("in") {
            return Ok(node);
        }
        self.wants("(")?;
        let mut texts = Vec::new();
        while !self.has(")") {
            if !texts.is_empty() && !self.links(",")? {
                return Err(self.wanted(","));
            }
            texts.push(self.quoted()?);
        }
        Ok(Node::OneOf(Box::new(node), texts))
    }

    fn value(&mut self) -> Parsed<Node> {
        let mut node = self.product()?;
        loop {
            node = if self.links("+")? {
                Node::Adds(Box::new([node, self.product()?]))
            } else if self.links("-")? {
                Node::Subtracts(Box::new([node, self.product()?]))
            } else {
                return Ok(node);
            };
        }
    }

    fn product(&mut self) -> Parsed<Node> {
        let mut node = self.part()?;
        while self.links("*")? {
            node = Node::Multiplies(Box::new([node, self.part()?]));
        }
        Ok(node)
    }

    fn part(&mut self) -> Parsed<Node> {
        let rest = self.rest();
        if rest.starts_with('\'') {
            return Ok(Node::Text(self.quoted()?));
        }
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = rest.find(|c: char| !c.is_ascii_digit());
            let digits = &rest[..digits.unwrap_or(rest.len())];
            let number = digits.parse().map_err(|_| self.wanted("a number"))?;
            self.at += digits.len();
            return Ok(Node::Number(number));
        }
        if self.has("(") {
            let node = self.formula()?;
            self.wants(")")?;
            return Ok(node);
        }
        let name = self.name()?;
        let node = match name {
            "len" => {
                self.wants("(")?;
                let node = Node::Length(Box::new(self.formula()?));
                self.wants(")")?;
                node
            }
            "sum" => self.sum()?,
            _ => self.named(name)?,
        };
        self.places_in(node)
    }

    /// Parses the attributes (`.name`) and items (`[index]`) that follow a name, `len(…)` or `sum(…)`.
    fn places_in(&mut self, mut node: Node) -> Parsed<Node> {
        loop {
            node = if self.links(".")? {
                let name = self.name()?;
                Node::Attribute(Box::new(node), place(self.names, name))
            } else if self.links("[")? {
                let node = Node::Item(Box::new([node, self.formula()?]));
                self.wants("]")?;
                node
            } else {
                return Ok(node);
            };
        }
    }

    fn named(&mut self, name: &str) -> Parsed<Node> {
        if let Some(slot) = self.variables.iter().rposition(|known| *known == name) {
            return Ok(Node::Variable(slot));
        }
        let argument = place(self.arguments, name);
        if argument == ARGUMENTS {
            return Err(self.wanted("fewer arguments"));
        }
        Ok(Node::Argument(argument))
    }

    fn quoted(&mut self) -> Parsed<usize> {
        self.wants("'")?;
        let rest = &self.text[self.at..];
        let end = rest.find('\'').ok_or_else(|| self.wanted("'"))?;
        self.at += end + 1;
        Ok(place(self.names, &rest[..end]))
    }

    /// Parses a sum after the word `sum`. The summand comes before the variables that it uses, so the parser skips the
    /// summand and parses it last.
    fn sum(&mut self) -> Parsed<Node> {
        self.deeper()?;
        self.wants("(")?;
        let each_at = self.at;
        let Some(length) = find_for(&self.text[each_at..]) else {
            return Err(self.wanted("for"));
        };
        self.at += length;
        self.wants_word("for")?;
        let mut variables = vec![self.name()?];
        while self.has(",") {
            variables.push(self.name()?);
        }
        self.wants_word("in")?;
        let mut lists = Vec::new();
        if self.has_word("zip") {
            self.wants("(")?;
            lists.push(self.part()?);
            while self.has(",") {
                lists.push(self.part()?);
            }
            self.wants(")")?;
        } else {
            lists.push(self.part()?);
        }
        if lists.len() != variables.len() {
            return Err(self.wanted("a variable for each list"));
        }
        let first = self.variables.len();
        self.variables.append(&mut variables);
        if self.variables.len() > VARIABLES {
            return Err(self.wanted("fewer variables"));
        }
        let test = match self.has_word("if") {
            true => Some(self.test()?),
            false => None,
        };
        self.wants(")")?;
        let end = core::mem::replace(&mut self.at, each_at);
        let each = self.formula()?;
        self.rest();
        if self.at != each_at + length {
            return Err(self.wanted("for"));
        }
        self.at = end;
        self.depth -= 1;
        self.variables.truncate(first);
        Ok(Node::Sum(Box::new(SumExpression {
            each,
            first,
            lists,
            test,
        })))
    }
}

/// Returns the index of a name in the table `names`. Adds the name if it is new.
fn place(names: &mut Vec<String>, name: &str) -> usize {
    names
        .iter()
        .position(|known| known == name)
        .unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
}

/// Returns the position, in bytes, of the word `for` that belongs to the sum whose opening bracket is right before
/// `text`. `None` if the sum has no `for`.
fn find_for(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    let mut is_text = false;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '\'' => is_text = !is_text,
            _ if is_text => (),
            '(' | '[' => open += 1,
            ')' | ']' => open = open.checked_sub(1)?,
            'f' if open == 0 && before == ' ' && text[at..].starts_with("for ") => return Some(at),
            _ => (),
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Formulas<1> {
        Formulas::parse([text]).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn refused(text: &str) -> NoFormula {
        Formulas::parse([text]).unwrap_err()
    }

    fn argument(place: usize) -> Box<Node> {
        Box::new(Node::Argument(place))
    }

    #[test]
    fn a_path_goes_from_an_argument_through_attributes_and_items() {
        let formulas = parse("batch.reqs[0].tokens");
        assert_eq!(formulas.arguments, ["batch"]);
        assert_eq!(formulas.names, ["reqs", "tokens"]);
        let reqs = Node::Attribute(argument(0), 0);
        let item = Node::Item(Box::new([reqs, Node::Number(0)]));
        assert_eq!(formulas.nodes, [Node::Attribute(Box::new(item), 1)]);
        let formulas = parse("batch['reqs']");
        let item = Node::Item(Box::new([*argument(0), Node::Text(0)]));
        assert_eq!(formulas.nodes, [item]);
    }

    #[test]
    fn products_bind_before_sums_and_those_before_comparisons() {
        let [Node::Compares(ComparisonOperator::Less, sides)] = parse("1 + 2 * 3 - 4 < 5").nodes
        else {
            panic!("no comparison");
        };
        let six = Node::Multiplies(Box::new([Node::Number(2), Node::Number(3)]));
        let seven = Node::Adds(Box::new([Node::Number(1), six]));
        let three = Node::Subtracts(Box::new([seven, Node::Number(4)]));
        assert_eq!(*sides, [three, Node::Number(5)]);
    }

    #[test]
    fn a_sum_goes_through_lists_side_by_side() {
        let formulas = parse("sum(b.tokens[i] for i, n in zip(b.ids, b.done) if n == 0)");
        let [Node::Sum(sum)] = &formulas.nodes else {
            panic!("no sum");
        };
        assert_eq!((sum.first, sum.lists.len()), (0, 2));
        let is_zero = [Node::Variable(1), Node::Number(0)];
        let test = Node::Compares(ComparisonOperator::Is, Box::new(is_zero));
        assert_eq!(sum.test, Some(test));
        let Node::Item(each) = &sum.each else {
            panic!("no item");
        };
        assert_eq!(each[1], Node::Variable(0));
        assert_eq!(formulas.arguments, ["b"]);
    }

    #[test]
    fn sums_within_each_other_have_variables_of_their_own() {
        let formulas = parse("sum(sum(x for x in r.parts) for r in b) + sum(r for r in b)");
        let [Node::Adds(sides)] = &formulas.nodes else {
            panic!("no addition");
        };
        let [Node::Sum(outer), Node::Sum(last)] = &**sides else {
            panic!("no sums");
        };
        let Node::Sum(inner) = &outer.each else {
            panic!("no sum in it");
        };
        assert_eq!((outer.first, inner.first, last.first), (0, 1, 0));
        assert_eq!(inner.each, Node::Variable(1));
        assert_eq!(formulas.arguments, ["b"]);
    }

    #[test]
    fn a_condition_chooses() {
        let formulas = parse("b.n if b.mode in ('A', 'B') else 1 if b.mode == 'C' else 0");
        let [Node::If(parts)] = &formulas.nodes else {
            panic!("no condition");
        };
        assert!(matches!(&parts[1], Node::OneOf(_, texts) if texts.len() == 2));
        assert!(matches!(parts[2], Node::If(_)));
        assert_eq!(formulas.names, ["n", "mode", "A", "B", "C"]);
    }

    #[test]
    fn formulas_share_their_names() {
        let formulas = Formulas::parse(["len(a.x)", "a.x + b.y"]).unwrap();
        assert_eq!(formulas.arguments, ["a", "b"]);
        assert_eq!(formulas.names, ["x", "y"]);
    }

    #[test]
    fn what_is_no_formula_is_refused_where_it_goes_wrong() {
        for (text, at, wanted) in [
            ("", 0, "a name"),
            ("a.", 2, "a name"),
            ("a b", 2, "the end"),
            ("len(a", 5, ")"),
            ("a['b]", 3, "'"),
            ("sum(a)", 4, "for"),
            ("sum(a b for b in a)", 6, "for"),
            ("sum(a for x, y in a)", 19, "a variable for each list"),
            ("a if b", 6, "else"),
            ("a in b", 5, "("),
            ("ü", 0, "a name"),
            ("a.ü", 2, "a name"),
            ("99999999999999999999", 0, "a number"),
            ("a + b + c + d + e", 17, "fewer arguments"),
            ("__import__('os')", 10, "the end"),
        ] {
            assert_eq!(refused(text), NoFormula { at, wanted }, "{text}");
        }
        let deep = format!("{}a{}", "(".repeat(99), ")".repeat(99));
        assert_eq!(refused(&deep).wanted, "fewer formulas within each other");
        let deep = format!("{}a{}", "sum(1 for x in ".repeat(9999), ")".repeat(9999));
        assert_eq!(refused(&deep).wanted, "fewer formulas within each other");
        let else_if = "1 if a else ".repeat(9999) + "0";
        assert_eq!(refused(&else_if).wanted, "fewer formulas within each other");
        for link in [".a", "[0]", "+1", "-1", "*1"] {
            let long = |links| format!("a{}", link.repeat(links));
            assert_eq!(refused(&long(9999)).wanted, "a shorter formula", "{link}");
            parse(&long(LINKS));
        }
        let line = refused("a b").to_string();
        assert_eq!(line, "at character 2: wanted the end");
    }
}
