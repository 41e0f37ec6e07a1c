//! The setting `TLLMPROF_SCOPES`, which names functions. GPU work is attributed to the named function whose call
//! launched it.

use std::fmt;

use regex::bytes::Regex;

use crate::error::{Problem, quoted};
use crate::function::PyFunction;
use crate::step;

/// One rule of `TLLMPROF_SCOPES`, which selects functions. Each call of such a function is a scope: GPU work that is
/// launched during the call is attributed to this scope.
#[derive(Clone, Debug)]
pub enum ScopeRule {
    /// Native functions that regular expressions select, by the function's and the library's name.
    Native(NativeFunctions),
    Python(PyFunction),
}

/// A rule for native functions: regular expressions for the function's name and for its library's
/// name.
#[derive(Clone, Debug)]
pub struct NativeFunctions {
    pub name: Regex,
    pub library: Option<Regex>,
}

impl ScopeRule {
    const WANTED: &str =
        "sym:REGEX, sym:REGEX@LIBREGEX or py:MODULE:QUALNAME, or several with commas";

    /// Parses a comma-separated list of scope rules. A comma that is not followed by the beginning of another rule
    /// belongs to a regex.
    ///
    /// # Errors
    /// Returns an error if a rule is of an unknown type, a regex does not compile, or a name cannot be a Python name.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, Problem> {
        let mut rules = Vec::new();
        let mut rest = text.trim();
        loop {
            let end = rest
                .match_indices(',')
                .map(|(at, _)| at)
                .find(|at| kind(&rest[at + 1..]).is_some());
            rules.push(Self::parse(&rest[..end.unwrap_or(rest.len())])?);
            match end {
                Some(end) => rest = &rest[end + 1..],
                None => return Ok(rules),
            }
        }
    }

    pub(crate) fn native(self) -> Option<NativeFunctions> {
        match self {
            Self::Native(functions) => Some(functions),
            Self::Python(_) => None,
        }
    }

    fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        match kind(text) {
            Some(("sym", rule)) => {
                let (name, library) = step::split_at_sign(rule);
                let library = library.map(|library| step::regex(library, "library", Self::WANTED));
                Ok(Self::Native(NativeFunctions {
                    name: step::regex(name, "function", Self::WANTED)?,
                    library: library.transpose()?,
                }))
            }
            Some((_, rule)) => PyFunction::parse(rule)
                .map(Self::Python)
                .map_err(|problem| Problem::new(problem.problem, Self::WANTED)),
            None => {
                let problem = format!("{} begins with neither sym: nor py:", quoted(text));
                Err(Problem::new(problem, Self::WANTED))
            }
        }
    }
}

/// Returns the type of the scope rule at the beginning of `text` (`sym` or `py`), and the text after the type. `None`
/// if `text` begins with neither.
fn kind(text: &str) -> Option<(&str, &str)> {
    let (kind, rule) = text.trim_start().split_once(':')?;
    matches!(kind, "sym" | "py").then_some((kind, rule))
}

impl fmt::Display for NativeFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sym:{}", self.name)?;
        match &self.library {
            Some(library) => write!(f, "@{library}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ScopeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(functions) => functions.fmt(f),
            Self::Python(function) => write!(f, "py:{function}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Vec<String> {
        let rules = ScopeRule::parse_list(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        rules.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_is_split_where_a_rule_begins() {
        assert_eq!(written("sym:^ggml_cuda_op_"), ["sym:^ggml_cuda_op_"]);
        assert_eq!(
            written(" sym:a{1,2}b@lib[,]c , py:m:C.f,sym:^g$"),
            ["sym:a{1,2}b@lib[,]c", "py:m:C.f", "sym:^g$"]
        );
    }

    #[test]
    fn says_what_is_wrong() {
        let problem = |text: &str| ScopeRule::parse_list(text).expect_err(text).problem;
        assert_eq!(problem(""), "\"\" begins with neither sym: nor py:");
        assert_eq!(problem("ggml"), "\"ggml\" begins with neither sym: nor py:");
        assert_eq!(problem("sym:"), "the regex for the function is empty");
        assert_eq!(problem("sym:f@"), "the regex for the library is empty");
        assert_eq!(
            problem("sym:f,sym:(g"),
            "the regex \"(g\" does not compile: unclosed group"
        );
        assert_eq!(problem("py:f"), "\"f\" has no \":\" behind the module");
        assert!(ScopeRule::parse_list("py:m:f,").is_err());
    }
}
